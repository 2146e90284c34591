"""The spool is ours alone: the helper and the install script ask the same, of the same directories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pbs_adapter.remote.helper_dirs import Spool
from pbs_adapter.remote.helper_errors import OpError
from pbs_adapter.transport.install import SAFE

NOBODY = 65534


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "home/spool/bin").mkdir(parents=True)
    (tmp_path / "home").chmod(0o755)
    (tmp_path / "home/spool").chmod(0o700)
    (tmp_path / "home/spool/bin").chmod(0o700)
    yield tmp_path / "home"
    (tmp_path / "home").chmod(0o755)


def by_helper(spool: Path) -> str:
    try:
        Spool(str(spool), "instance", "alpha", "token")
    except OpError as error:
        return error.message if error.kind == "permanent" else error.kind
    return ""


def by_script(spool: Path) -> str:
    script = f'{SAFE}fail() {{ echo "$1"; exit 1; }}\nsafe "$@"\n'
    argv = ["/bin/sh", "-c", script, "sh", str(spool), str(spool / "bin")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not done.stderr
    assert bool(done.returncode) == bool(done.stdout)
    return done.stdout.strip()


def as_it_is(home: Path) -> None:
    pass


def below_a_sticky_directory(home: Path) -> None:
    home.chmod(0o1777)


def in_a_private_group(home: Path) -> None:
    """A group of the user's own name: that is how many sites make home directories."""
    home.chmod(0o775)


def through_a_link(home: Path) -> None:
    (home / "spool").rename(home / "real")
    (home / "spool").symlink_to("real")


def open_to_all(home: Path) -> None:
    (home / "spool").chmod(0o777)


def open_parent(home: Path) -> None:
    home.chmod(0o777)


def open_parent_of_the_target(home: Path) -> None:
    (home / "scratch").mkdir()
    (home / "spool").rename(home / "scratch/real")
    (home / "spool").symlink_to("scratch/real")
    (home / "scratch").chmod(0o777)


@pytest.mark.parametrize("look", [by_helper, by_script])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (as_it_is, ""),
        (below_a_sticky_directory, ""),
        (in_a_private_group, ""),
        (through_a_link, ""),
        (open_to_all, "can be written by others"),
        (open_parent, "home can be written by others, who could replace"),
        (open_parent_of_the_target, "scratch can be written by others, who could replace"),
    ],
)
def test_modes(home: Path, look: Callable[[Path], str], make: Callable[[Path], None], said: str) -> None:
    make(home)
    found = look(home / "spool")
    assert bool(found) == bool(said), found
    assert said in found


@pytest.mark.parametrize("look", [by_helper, by_script])
def test_owners(home: Path, look: Callable[[Path], str]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a directory to another user")
    os.chown(home, NOBODY, -1)
    assert look(home / "spool") == "", "who owns a directory that nobody else can write to was chosen by the site"
    os.chown(home / "spool", NOBODY, -1)
    assert "belongs to user 65534" in look(home / "spool")
    os.chown(home / "spool", 0, -1)
    (home.parent).chmod(0o1777)
    assert "made by another user" in look(home / "spool"), "in a directory of everybody he may have been first"
    (home.parent).chmod(0o700)
    home.chmod(0o775)
    os.chown(home, 0, NOBODY)
    assert "home can be written by others" in look(home / "spool"), "a group of others"


@pytest.mark.parametrize("name", ["instance", "instance/alpha", "instance/alpha/pods", "instance/alpha/dirty"])
def test_every_directory_of_the_spool(home: Path, name: str) -> None:
    assert by_helper(home / "spool") == ""
    (home / "spool" / name).chmod(0o777)
    assert f"{name}: can be written by others" in by_helper(home / "spool")
