"""Running commands that may hang, shout or leave a daemon behind, within a budget of connections."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from pbs_adapter.remote import helper_budget, helper_pbs
from pbs_adapter.remote.helper_budget import Budget, Ledger
from pbs_adapter.remote.helper_errors import OpError
from pbs_adapter.remote.helper_pbs import Pbs, command_environment, run_command

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

    def time(self) -> float:
        return self.now


def test_the_budget_is_a_burst_and_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(helper_budget, "time", clock)
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
    monkeypatch.setattr(helper_budget, "time", clock)
    budget = Budget(150)
    taken = []
    for _ in range(1800):
        taken += [clock.now for _ in range(9) if budget.take(0)]
        clock.now += 0.1
    assert max(sum(at <= other < at + 60 for other in taken) for at in taken) <= 150
    assert len(taken) == 50 + 3 * 100 - 1


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory as /tmp is; where we are not root it cannot be made, and the account's own stands in."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    monkeypatch.setattr(helper_budget, "_INSTEAD", str(path))
    return path


def ledger(tmp_path: Path) -> Ledger:
    return Ledger("pbs", str(tmp_path))


def test_all_helpers_of_a_host_share_one_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: Path) -> None:
    """Two accounts, or two Kubernetes clusters, and a helper that follows upon another."""
    clock = Clock()
    monkeypatch.setattr(helper_budget, "time", clock)
    first, second = Budget(30, ledger(tmp_path)), Budget(30, ledger(tmp_path))
    assert [first.take(0) for _ in range(6)] == [True] * 6
    clock.now += 0.2
    assert [second.take(0) for _ in range(5)] == [True] * 4 + [False]
    del first
    clock.now += 0.2
    third = Budget(30, ledger(tmp_path))
    assert not third.idle()
    taken = 10
    for _ in range(600):
        clock.now += 0.1
        taken += second.take(0) + third.take(0)
    assert 28 <= taken <= 34, "a minute of the two has what one has"


def test_what_helpers_of_long_ago_left_is_removed(tmp_path: Path, shared: Path) -> None:
    mine = ledger(tmp_path)
    folder = Path(mine._folder)
    for age, name in ((10, "young"), (10_000, "old")):
        path = folder / f"hpc-bridge-pbs.another-pbs.{os.getuid()}.{name}"
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    (folder / "of-somebody-else").touch()
    ledger(tmp_path)
    assert sorted(path.name.rpartition(".")[2] for path in folder.iterdir()) == ["of-somebody-else", "young"]


def test_what_others_write_slows_down_and_never_stops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: Path
) -> None:
    clock = Clock()
    monkeypatch.setattr(helper_budget, "time", clock)
    mine = ledger(tmp_path)
    budget, folder = Budget(30, mine), Path(mine._folder)
    name, boot = mine._prefix, helper_budget.boot_id()
    for index, text in enumerate(("", "garbage", "another-boot\n99.9 " * 9, f"{boot}\nnan inf x", f"{boot}\n1e9 -5")):
        (folder / f"{name}{index}").write_text(text)
    os.mkfifo(folder / f"{name}pipe")
    (folder / f"{name}link").symlink_to("/dev/zero")
    (folder / f"{name}folder").mkdir()
    with open(folder / f"{name}huge", "wb") as file:
        file.truncate(1 << 40)
    for index in range(3000):
        (folder / f"unknown.{index}").touch()
    assert [budget.take(0) for _ in range(11)] == [True] * 10 + [False], "all that is no word of anybody"
    taken = 0
    for second in range(60):
        clock.now += 6.0
        for index in range(10):  # he claims all there is, again and again, in as many files as he likes
            (folder / f"{name}liar{index}").write_text(f"{boot}\n" + f"{clock.now - 0.5} " * 1500)
        taken += budget.take(0) if second >= 20 else 0
    assert 240 / 24 * 0.8 <= taken <= 240 / 24 * 1.2, "an eighth of the rate is nobody else's"


def test_without_a_directory_for_all_the_account_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for mode in (0o700, 0o777):
        path = tmp_path / f"{mode:o}"
        path.mkdir()
        path.chmod(mode)
        monkeypatch.setattr(helper_budget, "_INSTEAD", str(path))
        assert not ledger(tmp_path).common
    first, second = Budget(12, ledger(tmp_path)), Budget(12, ledger(tmp_path))
    assert [first.take(0) for _ in range(5)] == [True] * 4 + [False]
    assert not second.idle()


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
