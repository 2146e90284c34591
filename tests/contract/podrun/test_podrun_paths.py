"""Paths that containers can change while they are mounted: links, exchanges in a loop, old and new bubblewrap."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from podrunkit import USER, Json, Pod, container, mount, until

pytestmark = pytest.mark.usefixtures("bubblewrap")

# bubblewrap as RHEL 8 and 9 ship it knows no --bind-fd: neither in its help nor as an option.
OLD = """#!/bin/sh
if [ "$1" = --help ]; then {real} --help 2>&1 | grep -v bind-fd; exit 0; fi
if [ "$1" = --args ] && tr '\\0' '\\n' < /proc/self/fd/$2 | grep -q bind-fd; then
  echo "bwrap: Unknown option" >&2; exit 1
fi
exec {real} "$@"
"""


@pytest.fixture(params=["new", "old"])
def bwrap(request: pytest.FixtureRequest, outside: Path) -> Iterator[str]:
    """A bubblewrap that binds descriptors, and one that does not. HPC_BRIDGE_TEST_BWRAP names a real old one."""
    if request.param == "new":
        yield ""
        return
    if real := os.environ.get("HPC_BRIDGE_TEST_BWRAP"):
        yield real
        return
    program = outside.with_name(outside.name + ".bwrap")
    # Not str.format: the shell has braces of its own.
    program.write_text(OLD.replace("{real}", str(shutil.which("bwrap"))))
    program.chmod(0o755)
    yield str(program)
    program.unlink()


@pytest.fixture
def make(make_pod: Callable[..., Pod], bwrap: str) -> Callable[..., Pod]:
    def made(uid: str = "11111111-2222-3333-4444-555555555555") -> Pod:
        pod = make_pod(uid)
        if bwrap:
            pod.environment["HPC_BRIDGE_BWRAP"] = bwrap
        return pod

    return made


def own(*paths: Path) -> None:
    """Give them to the account."""
    if os.getuid() == 0:
        for path in paths:
            os.chown(path, USER, USER, follow_symlinks=False)


def host(source: Path | str, allowed: Path | str, **fields: object) -> Json:
    return mount(str(source), "/shared", absolute=True, allowed=str(allowed), **fields)


def test_a_host_path_leaves_its_directory_by_no_link(make: Callable[..., Pod], outside: Path) -> None:
    """Found by the security review: /scratch/x -> the spool showed other pods' secrets."""
    allowed, other = outside / "allowed", outside / "other"
    sibling = make("sibling").write(container("main", "true"), secrets={"key": b"canary-of-the-sibling"})
    for folder in (allowed, other, allowed / "deep"):
        folder.mkdir()
    (other / "file").write_text("canary\n")
    links = {
        "absolute": str(other),
        "relative": "../other",
        "spool": str(sibling.directory),
        "twice": "deep/again",
        "deep/again": "../relative",
    }
    for name, target in links.items():
        (allowed / name).symlink_to(target)
    own(allowed, other, allowed / "deep")
    pod = make("own")
    pod.write(
        *(
            container(
                f"c{n}", "cat /shared/* /shared/secrets/*; touch /shared/x", mounts=[host(allowed / name, allowed)]
            )
            for n, name in enumerate(links)
        ),
        container(
            "made",
            "true",
            mounts=[host(allowed / "relative" / "made", allowed, type="DirectoryOrCreate")],
        ),
    ).run()
    for name, state in pod.status["containers"].items():
        assert state["reason"] == "StartError", name
        assert "leads out of" in state["message"], name
    assert sorted(os.listdir(other)) == ["file"]


def test_links_that_stay_inside_are_followed(make: Callable[..., Pod], outside: Path) -> None:
    (outside / "real" / "data").mkdir(parents=True)
    (outside / "real" / "data" / "file").write_text("content\n")
    (outside / "current").symlink_to("real")
    (outside / "absolute").symlink_to(outside / "current" / "data")
    (outside / "up").symlink_to("real/data/../data")
    own(*outside.rglob("*"))
    paths = ("current/data", "absolute", "up")
    pod = make().write(
        *(
            container(f"c{n}", "cat /shared/file; touch /shared/$HOSTNAME", mounts=[host(outside / path, outside)])
            for n, path in enumerate(paths)
        )
    )
    status = pod.run()
    assert status["result"] == "Succeeded", [state["message"] for state in status["containers"].values()]
    assert [pod.output(f"c{n}") for n in range(len(paths))] == [b"content\n"] * len(paths)
    assert (outside / "real" / "data" / "hello").exists()


def test_neither_the_spool_nor_what_holds_it_is_mounted(make: Callable[..., Pod]) -> None:
    pod = make()
    whole = pod.spool.parent
    pod.write(
        container("holds", "ls /shared", mounts=[host(pod.spool, whole)]),
        container("lies", "ls /shared", mounts=[host(pod.spool / "instance" / "pods", whole)]),
        container("own", "ls /shared", mounts=[host(pod.directory, whole)]),
    ).run()
    messages = {name: state["message"] for name, state in pod.status["containers"].items()}
    assert "holds the spool" in messages["holds"]
    assert "lies in the spool" in messages["lies"]
    assert "lies in the spool" in messages["own"]


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names for each other, over and over, as fast as another container could."""
    libc = ctypes.CDLL(None, use_errno=True)
    over = threading.Event()
    names = os.fsencode(one), os.fsencode(other)

    def loop() -> None:
        while not over.is_set():
            libc.renameat2(-100, names[0], -100, names[1], 2)  # RENAME_EXCHANGE

    threads = [threading.Thread(target=loop)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


TRIES = int(os.environ.get("HPC_BRIDGE_TEST_TRIES", "25"))


@pytest.mark.parametrize("kind", ["subPath", "hostPath"])
def test_a_race_of_directory_and_link_is_never_won(make: Callable[..., Pod], outside: Path, kind: str) -> None:
    """With bubblewrap that binds by path the review read another pod's secret at the second try."""
    pod = make()
    secret, allowed = outside / "secret", outside / "allowed"
    secret.mkdir()
    (secret / "canary").write_text("canary of another pod\n")
    allowed.mkdir()
    volume = pod.path("volumes/data") if kind == "subPath" else allowed
    what = mount("volumes/data", "/shared", sub_path="a") if kind == "subPath" else host(allowed / "a", allowed)
    pod.write(
        container("main", "cat /shared/canary; echo over; exit 1", mounts=[what]),
        restart_policy="Always",
        crash_backoff={"base": 0.01, "max": 0.01},
    )
    (volume / "a").mkdir()
    (volume / "b").symlink_to(secret)
    own(secret, secret / "canary", allowed, *volume.iterdir())
    runs = 0
    with exchanging(volume / "a", volume / "b"):
        pod.start()
        end = time.monotonic() + 60
        while runs < TRIES and time.monotonic() < end:
            runs = max(runs, pod.state().get("restart_count", 0))
            for log in pod.path("logs/main").glob("*.log") if pod.path("logs/main").exists() else ():
                try:
                    assert b"canary of" not in log.read_bytes(), f"at run {runs}"
                except FileNotFoundError:
                    continue
            time.sleep(0.01)
    pod.stop(2)
    pod.wait()
    assert runs >= min(TRIES, 5)


def test_a_mount_inside_a_volume_follows_no_link(make: Callable[..., Pod], outside: Path) -> None:
    """Mount points are made in volumes; a link there must not have one made, or something mounted, elsewhere."""
    pod = make()
    mounts = [mount("volumes/data", "/data"), mount("volumes/inner", "/data/link/inner")]
    message = "/data/link/message"
    pod.write(
        container("mount", "true", mounts=mounts),
        container("message", "echo x > /data/link/message", mounts=mounts[:1], termination_message_path=message),
        container("fine", "touch /data/deep/inner/x", mounts=[mounts[0], mount("volumes/inner", "/data/deep/inner")]),
    )
    pod.path("volumes/data/link").symlink_to(outside)
    pod.run()
    for name in ("mount", "message"):
        state = pod.state(name)
        assert (state["reason"], "symbolic link" in state["message"]) == ("StartError", True), state
    assert pod.state("fine")["exit_code"] == 0
    assert pod.path("volumes/inner/x").exists()
    assert list(outside.iterdir()) == []


def test_nothing_is_made_outside_by_links_on_the_way(make: Callable[..., Pod], outside: Path) -> None:
    """bubblewrap makes mount points and the working directory before it enters the container, where /oldroot is all of
    the host: a link in a volume or in /tmp of an earlier run, or one of /proc, made files next to other pods' jobs."""
    pod = make()
    root = f"/oldroot{outside}"
    data, inner = mount("volumes/data", "/data"), mount("volumes/inner", f"/proc/self/root{root}/mount")
    pod.write(
        container("plant", f"ln -s {root} /data/link", kind="init", mounts=[data]),
        container("cwd", "true", cwd="/data/link/cwd", mounts=[data]),
        container("dots", "true", cwd="//etc/../data/./link/dots", mounts=[data]),
        container("tmp", f"mv /tmp/link /tmp/old; ln -s {root} /tmp/link; exit 1", cwd="/tmp/link/tmp"),
        container("proc", "true", cwd=f"/proc/self/root{root}/proc"),
        container("message", "true", termination_message_path=f"/proc/self/root{root}/message"),
        container("inner", "true", mounts=[inner]),
        container("fine", "pwd; touch x", cwd="/data/deep/folder", mounts=[data]),
        container("temporary", "pwd", cwd="/tmp/deep/folder"),
        restart_policy="OnFailure",
    )
    pod.start()
    until(lambda: pod.state("fine").get("exit_code") == 0 and pod.state("temporary").get("exit_code") == 0, "the fine")
    until(
        lambda: all(pod.state(n).get("restart_count") for n in ("cwd", "tmp", "proc", "message", "inner")),
        "further tries",
    )
    pod.stop(2)
    pod.wait()
    assert list(outside.iterdir()) == []
    assert pod.path("volumes/data/deep/folder/x").exists()


def test_no_descriptor_of_podrun_reaches_a_container(make: Callable[..., Pod], outside: Path) -> None:
    mounts = [host(outside, outside), mount("volumes/data", "/data", sub_path="a"), mount("volumes/i", "/data/i")]
    pod = make().write(container("main", "ls -l /proc/self/fd", mounts=mounts))
    status = pod.run()
    assert status["result"] == "Succeeded", [state["message"] for state in status["containers"].values()]
    lines = [line for line in pod.output().splitlines() if b"->" in line]
    assert not [line for line in lines if str(outside).encode() in line or b"volumes" in line]


def test_a_container_that_was_not_compared_never_starts(make: Callable[..., Pod], outside: Path) -> None:
    """podrun is killed with containers held: they must not go on because nobody answers."""
    from pbs_adapter.remote.podrun_verify import Verifier

    verifier = Verifier([])
    reader = os.dup(verifier.held)
    verifier.close()
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
