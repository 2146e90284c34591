"""Directories whose files do not answer: they keep nobody else waiting, and are read again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pbs_adapter.remote import helper_watch
from pbs_adapter.remote.helper_board import Board
from pbs_adapter.remote.helper_dirs import Marks, Spool
from pbs_adapter.remote.helper_volumes import File
from pbs_adapter.remote.helper_watch import Watcher


class Hanging(Spool):
    """A spool on a file system that does not answer for some of the directories until `go`."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), "instance", "alpha", "token")
        self.stuck: set[str] = set()
        self.asked = 0
        self.go = threading.Event()

    def marks(self, uid: str) -> Marks | None:
        if uid in self.stuck:
            self.asked += 1
            self.go.wait()
        return super().marks(uid)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr(helper_watch, "PATIENCE", 0.1)
    made = Hanging(tmp_path / "spool")
    yield made
    made.go.set()


def until(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not look():
        assert time.monotonic() < end
        time.sleep(0.005)


def status(spool: Spool, uid: str, message: str) -> None:
    tree = {"version": 1, "uid": uid, "phase": "Running", "message": message, "containers": {}}
    spool.write(uid, [File("status.json", 0o600, json.dumps(tree).encode())], [])
    Path(spool.path, "dirty", uid).touch()


def test_a_directory_that_hangs_keeps_nobody_waiting(spool: Hanging) -> None:
    uids = [f"pod-{i}" for i in range(100)]
    for uid in uids:
        spool.stage(uid, [File("job.id", 0o600, b"1.alpha")], [])
    spool.stuck = set(uids[:30])
    board = Board("token")
    watcher = Watcher(spool, board, lambda: None)
    threading.Thread(target=watcher.run, daemon=True).start()
    assert watcher.scanned.wait(30), "the scan is over although thirty never answered"
    shown = {o["uid"]: o for o in board.report("", 0)["observations"]}
    assert set(shown) == set(uids)
    for uid in uids[:30]:
        assert "have not answered" in shown[uid]["status_problem"]
        assert shown[uid]["claimed"], "what is not known is never submitted again"
        assert shown[uid]["pbs"]["seen"] == "unknown"
    status(spool, uids[0], "hung")
    status(spool, uids[99], "news")

    def message(uid: str) -> str:
        entry = board.get(uid)
        return "" if entry is None or entry.marks.status is None else str(entry.marks.status["message"])

    until(lambda: message(uids[99]) == "news")
    assert spool.asked == 30, "no thread more waits for a directory that hangs already"
    assert threading.active_count() < 60
    spool.stuck = set()
    spool.go.set()
    until(lambda: message(uids[0]) == "hung")
    until(lambda: all((e := board.get(uid)) is not None and not e.marks.problem for uid in uids))


def test_a_directory_that_fails_is_told_and_read_again(spool: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_watch, "_AGAIN", 0.0)
    monkeypatch.setattr(helper_watch, "DIRTY_BUSY", 0.01)
    for uid in ("bad", "good"):
        spool.stage(uid, [], [])
        status(spool, uid, "first")
    fails = True
    real = Spool.marks

    def marks(self: Spool, uid: str) -> Marks | None:
        if uid == "bad" and fails:
            raise OSError(116, "Stale file handle")
        return real(self, uid)

    monkeypatch.setattr(Hanging, "marks", marks)
    board = Board("token")
    watcher = Watcher(spool, board, lambda: None)
    threading.Thread(target=watcher.run, daemon=True).start()
    assert watcher.scanned.wait(20)
    entry = board.get("bad")
    assert entry is not None
    assert "Stale file handle" in entry.marks.problem
    status(spool, "good", "second")
    until(lambda: (e := board.get("good")) is not None and (e.marks.status or {}).get("message") == "second")
    fails = False
    until(lambda: (e := board.get("bad")) is not None and e.marks.problem == "" and e.marks.status is not None)


def test_a_spool_with_too_many_directories_is_read_in_part_and_said(
    spool: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("helper_watch.MOST_PODS", "helper_dirs.MOST_PODS"):
        monkeypatch.setattr(f"pbs_adapter.remote.{module}", 20)
    for index in range(50):
        Path(spool.pods, f"pod-{index}").mkdir()
    board = Board("token")
    watcher = Watcher(spool, board, lambda: None)
    threading.Thread(target=watcher.run, daemon=True).start()
    until(lambda: not board.report("", 0)["server_up"])
    report = board.report("", 0)
    assert len(report["observations"]) == 20
    assert not report["complete"], "nobody may conclude that a pod has no directory"
    assert "more than 20" in report["server_message"]
