"""Running commands that may hang, shout or leave a daemon behind, within a budget of connections."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from pbs_adapter.remote import helper_pbs
from pbs_adapter.remote.helper_errors import OpError
from pbs_adapter.remote.helper_pbs import Budget, Pbs, command_environment, run_command

ENV = {"PATH": "/usr/bin:/bin"}


def run(script: str, timeout: float = 30.0) -> helper_pbs.Result:
    return run_command(["/bin/sh", "-c", script], timeout, "/", ENV)


def test_both_outputs_and_the_status() -> None:
    assert run("echo out; echo err >&2; exit 3") == helper_pbs.Result(3, b"out\n", "err\n")


def test_input_is_empty() -> None:
    assert run("cat").status == 0


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    result = run(f"exec 3>{tmp_path}/pipe; (trap '' TERM; sleep 1000)& sleep 1000", timeout=0.5)
    assert result.status is None
    assert result.text() == "no answer from PBS in time"
    os.set_blocking(end, True)
    assert os.read(end, 1) == b"", "the last process that held the pipe is gone"
    os.close(end)


def test_a_daemon_that_keeps_the_pipes_is_not_waited_for(tmp_path: Path) -> None:
    started = time.monotonic()
    result = run(f"setsid sleep 20 & echo $! >{tmp_path}/pid; echo done")
    assert (result.status, result.stdout) == (0, b"done\n")
    assert time.monotonic() - started < 20
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_endless_output_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_pbs, "_MAX_OUTPUT", 1 << 20)
    assert run("exec cat /dev/zero").status is None


def test_large_output_is_whole() -> None:
    assert len(run("head -c 3000000 /dev/zero").stdout) == 3000000


def test_nothing_of_the_session_reaches_a_command() -> None:
    session = {
        "HOME": "/home/a",
        "TOKEN": "x",
        "PBS_O_PATH": "x",
        "PBS_JOBID": "1",
        "PBS_SERVER": "s",
        "LC_ALL": "cs_CZ",
    }
    env = command_environment(session | {"PATH": "/opt/bin:relative::/bin"}, "/opt/pbs")
    assert env == {
        "HOME": "/home/a",
        "PBS_SERVER": "s",
        "PBS_EXEC": "/opt/pbs",
        "PATH": "/opt/pbs/bin:/opt/bin:/bin:/usr/local/bin:/usr/bin",
        "TZ": "UTC",
        "LANG": "C.UTF-8",
    }


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_the_budget_is_a_burst_and_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(helper_pbs, "time", clock)
    budget = Budget(30)
    assert budget.idle()
    assert [budget.take(0) for _ in range(11)] == [True] * 10 + [False]
    assert not budget.idle()
    clock.now += 3.0
    assert not budget.take(0, keep=1), "that one is kept for others"
    assert [budget.take(0), budget.take(0)] == [True, False]
    clock.now += 3600.0
    assert [budget.take(0) for _ in range(11)] == [True] * 10 + [False], "no more than the burst is saved"


def test_no_minute_has_more_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(helper_pbs, "time", clock)
    budget = Budget(150)
    taken = []
    for _ in range(1800):
        taken += [clock.now for _ in range(9) if budget.take(0)]
        clock.now += 0.1
    assert max(sum(at <= other < at + 60 for other in taken) for at in taken) <= 150
    assert len(taken) == 50 + 3 * 100 - 1


def test_helpers_that_follow_upon_each_other_share_a_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "budget"
    monkeypatch.setattr(helper_pbs, "time", clock)
    first = Budget(30, str(path))
    assert [first.take(0) for _ in range(11)] == [True] * 10 + [False]
    clock.now += 3.0
    second = Budget(30, str(path))
    assert [second.take(0), second.take(0)] == [True, False]
    for other in (
        "another-host 1 0",
        "garbage",
        f"{helper_pbs.boot_id()} {clock.now + 9} 0",
        f"{helper_pbs.boot_id()} x y",
    ):
        path.write_text(other)
        assert Budget(30, str(path)).idle()
    assert Budget(30, str(tmp_path / "no" / "folder")).take(0)


def test_a_used_up_budget_is_a_wait_for_the_agent() -> None:
    budget = Budget(1)
    while budget.take(0):
        pass
    pbs = Pbs(None, budget)
    with pytest.raises(OpError) as caught:
        pbs.query([sys.executable, "-c", ""], timeout=0.0)
    assert caught.value.kind == "pbs"


def test_a_login_node_without_pbs() -> None:
    with pytest.raises(OpError, match="set pbs_exec"):
        Pbs("/nonexistent", Budget(100)).query(["no-such-qstat"])
