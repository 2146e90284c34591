"""No process of the test bed outlives what started it, whatever ends that."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.testbed.errors import TestbedError
from bridge.testbed.processes import Process, ProcessGroup, alive


def eventually(check: Callable[[], bool], what: str, timeout: float = 60) -> None:
    """Poll until `check` holds."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"not after {timeout} s: {what}"
        time.sleep(0.05)


STUBBORN = "trap '' TERM; setsid sleep 1000 & (setsid sh -c 'sleep 1001 & sleep 1002' &) ; while :; do sleep 1003; done"


def test_stop_ends_the_whole_tree_with_daemons_and_sessions(tmp_path: Path) -> None:
    process = Process("stubborn", ["sh", "-c", STUBBORN], log=tmp_path / "log", grace=0.1)
    eventually(lambda: len(process.pids) >= 6, "all started")
    pids = process.pids
    process.stop()
    assert [pid for pid in pids if alive(pid)] == []
    assert process.returncode == 128 + signal.SIGKILL


def test_a_daemon_does_not_outlive_a_program_that_ends_by_itself(tmp_path: Path) -> None:
    script = "setsid sleep 1000 & echo $! > pid; exit 3"
    process = Process("short", ["sh", "-c", script], log=tmp_path / "log", cwd=tmp_path)
    assert process.wait(30) == 3
    assert not alive(int((tmp_path / "pid").read_text()))
    process.stop()


OWNER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored
from pathlib import Path
from bridge.testbed.processes import Process
folder = Path(sys.argv[1])
argv, afterwards = ["sh", "-c", sys.argv[2]], [["touch", str(folder / "x")]]
process = Process("x", argv, log=folder / "log", grace=0.1, afterwards=afterwards)
while len(process.pids) < 6:
    time.sleep(0.05)
(folder / "pids.part").write_text(" ".join(map(str, process.pids)))
(folder / "pids.part").rename(folder / "pids")
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), STUBBORN], stderr=subprocess.DEVNULL)
    eventually((tmp_path / "pids").exists, "started")
    owner.send_signal(number)
    try:
        owner.wait(60)
    finally:
        owner.kill()
        owner.wait()
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    eventually(lambda: not any(alive(pid) for pid in pids), "all gone")
    assert (tmp_path / "x").exists()


def test_a_group_stops_the_newest_first(tmp_path: Path) -> None:
    script = "trap 'echo %s >> order; exit' TERM; : > ready-%s; while :; do sleep 0.02; done"
    with ProcessGroup() as group:
        for name in ("a", "b"):
            argv = ["sh", "-c", script % (name, name)]
            process = group.add(Process(name, argv, log=tmp_path / name, cwd=tmp_path))
            process.wait_until((tmp_path / f"ready-{name}").exists, "start")
    assert (tmp_path / "order").read_text() == "b\na\n"


def test_a_program_that_fails_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = Process("broken", ["sh", "-c", "echo no such luck; exit 5"], log=tmp_path / "log")
    with pytest.raises(TestbedError, match=r"broken ended with status 5:\nno such luck"):
        process.wait_until(lambda: False, "luck")
    process.stop()


def test_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    process = Process("nothing", ["/no/such/program"], log=tmp_path / "log")
    with pytest.raises(TestbedError, match="No such file"):
        process.wait_until(lambda: False, "anything")
    process.stop()
