"""podrun as a program, and pod directories to run it in."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from podrunkit import IDENTITY, PYTHON, USER, Pod, session, until

from pbs_adapter.bundle import zipapp


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """podrun as a zipapp that the ordinary user can read."""
    if not PYTHON:
        pytest.skip("no python3 of the system")
    folder = Path(tempfile.mkdtemp(prefix="podrun-program-"))
    folder.chmod(0o755)
    name, content = zipapp("podrun")
    path = folder / name
    path.write_bytes(content)
    path.chmod(0o644)
    yield path
    shutil.rmtree(folder)


def _empty(leader: int) -> bool:
    return not session(leader)


@pytest.fixture
def make_pod(program: Path) -> Iterator[Callable[..., Pod]]:
    """Makes pods of one spool; what they started is gone afterwards."""
    spool = Path(tempfile.mkdtemp(prefix="podrun-spool-"))
    pods: list[Pod] = []

    def make(uid: str = "11111111-2222-3333-4444-555555555555") -> Pod:
        pods.append(Pod(spool, program, uid))
        return pods[-1]

    yield make
    for pod in pods:
        pod.kill()
        if pod.process is not None:
            until(partial(_empty, pod.pid), "the session to end")
    shutil.rmtree(spool)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory of the cluster beside the spool, writable for the account."""
    folder = Path(tempfile.mkdtemp(prefix="podrun-outside-"))
    if os.getuid() == 0:
        os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def pod(make_pod: Callable[..., Pod]) -> Pod:
    return make_pod()


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """Skips where bubblewrap is missing or cannot be used by an ordinary user."""
    command = ["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap (bwrap) is not installed")
    done = subprocess.run(command, capture_output=True, **IDENTITY)
    if done.returncode:
        pytest.skip(f"bubblewrap does not work here: {done.stderr.decode()}")
