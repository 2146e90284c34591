"""What an answer of PBS, or the lack of one, says of a job."""

from __future__ import annotations

from typing import Any

import pytest

from pbs_adapter.remote.helper_board import Board
from pbs_adapter.remote.helper_dirs import Marks
from pbs_adapter.remote.helper_views import (
    ABSENT,
    PRESENT,
    UNKNOWN,
    Missing,
    View,
    after_check,
    check_due,
    from_job,
    from_row,
    is_over,
    needs_detail,
    without_job,
)
from pbs_adapter.remote.parse import Job, TableRow, parse_jobs_text

ENDED: dict[str, Any] = {"phase": "Ended"}
LOST = 60.0


def row(state: str, queue: str = "workq") -> TableRow:
    return TableRow("1.a", "u", queue, "n", "", 1, 1, None, None, state, None, "", "")


def job(state: str, **attributes: Any) -> Job:
    text = f"Job Id: 1.a\n    job_state = {state}\n    queue = workq\n"
    text += "".join(f"    {name} = {value}\n" for name, value in attributes.items())
    return parse_jobs_text(text.encode()).jobs["1.a"]


WAITING = View(PRESENT, 5.0, "Q", 10, "Not Running: full", "workq")
RUNNING = View(PRESENT, 5.0, "R", 42, "Job run at", "workq", "(n:ncpus=1)")


@pytest.mark.parametrize(
    ("old", "row", "expected"),
    [
        (View(), row("Q"), View(PRESENT, 9.0, "Q", None, "", "workq")),
        (WAITING, row("Q"), WAITING._replace(at=9.0)),
        (WAITING, row("R"), View(PRESENT, 9.0, "R", None, "", "workq")),
        (RUNNING, row("E"), View(PRESENT, 9.0, "E", None, "", "workq", "(n:ncpus=1)")),
        (RUNNING, row("Q"), View(PRESENT, 9.0, "Q", None, "", "workq")),
        (RUNNING._replace(seen=ABSENT), row("R"), View(PRESENT, 9.0, "R", None, "", "workq", "(n:ncpus=1)")),
        (WAITING, row("Q", "averyveryvery*"), WAITING._replace(at=9.0)),
    ],
)
def test_from_row(old: View, row: TableRow, expected: View) -> None:
    assert from_row(old, row, 9.0) == expected


def test_from_job() -> None:
    assert from_job(job("R", substate=42, Exit_status=1, comment="x"), 9.0) == View(PRESENT, 9.0, "R", 42, "x", "workq")
    assert from_job(job("F", substate=93, Exit_status=-29), 9.0).exit_status == -29


@pytest.mark.parametrize(
    ("view", "detail_at", "expected"),
    [
        (WAITING, None, True),
        (WAITING, 90.0, False),
        (WAITING, 30.0, True),
        (RUNNING, 30.0, False),
        (RUNNING._replace(substate=None), 30.0, True),
        (View(), None, False),
        (WAITING._replace(state="F"), None, False),
    ],
)
def test_needs_detail(view: View, detail_at: float | None, expected: bool) -> None:
    assert needs_detail(view, detail_at, 100.0) == expected


@pytest.mark.parametrize(
    ("marks", "deleted", "expected"),
    [
        (Marks(job_id="1.a"), False, False),
        (Marks(job_id="1.a"), True, True),
        (Marks(job_id="1.a", claimed=True), True, False),
        (Marks(job_id="1.a", claimed=True, status=ENDED), False, True),
        (Marks(job_id="1.a", claimed=True, status={"phase": "Running"}), False, False),
    ],
)
def test_is_over(marks: Marks, deleted: bool, expected: bool) -> None:
    assert is_over(marks, deleted) == expected


@pytest.mark.parametrize(
    ("missing", "found", "clock", "seen"),
    [
        (None, None, 100.0, UNKNOWN),
        (Missing(100.0, 100.0, False), None, 130.0, UNKNOWN),
        (Missing(100.0, 100.0, False), None, 160.0, ABSENT),
        (None, "F", 100.0, PRESENT),
        (Missing(100.0, 100.0, False), "F", 160.0, PRESENT),
        (Missing(100.0, 100.0, True), "F", 109.0, PRESENT),
        (Missing(100.0, 100.0, True), "F", 110.0, ABSENT),
        (Missing(100.0, 100.0, True), None, 160.0, ABSENT),
        (Missing(100.0, 100.0, False), "R", 160.0, PRESENT),
    ],
)
def test_after_check(missing: Missing | None, found: str | None, clock: float, seen: str) -> None:
    view, noted = after_check(RUNNING, missing, job(found) if found else None, 9.0, clock, LOST)
    assert view.seen == seen
    assert (noted is None) == (found == "R")


@pytest.mark.parametrize(
    ("missing", "clock", "due"),
    [(None, 1.0, True), (Missing(1.0, 1.0, False), 60.0, False), (Missing(1.0, 1.0, False), 61.0, True)],
)
def test_check_due(missing: Missing | None, clock: float, due: bool) -> None:
    assert check_due(missing, clock, LOST) == due


def test_without_a_job() -> None:
    assert without_job(Marks(), 1.0).seen == ABSENT
    assert without_job(Marks(locked=True), 1.0).seen == UNKNOWN
    assert without_job(Marks(claimed=True), 1.0).seen == UNKNOWN


def uids(report: dict[str, Any]) -> list[str]:
    return [observation["uid"] for observation in report["observations"]]


def test_the_board_reports_what_is_newer_than_the_cursor() -> None:
    board = Board("token")
    board.put_marks("a", Marks(job_id="1.a"))
    assert not board.report("", 0)["complete"]
    board.put_scanned()
    board.put_server(True)
    first = board.report("", 0)
    assert (uids(first), first["full"], first["complete"]) == (["a"], True, True)
    board.put_marks("b", Marks(job_id="2.a"), fresh=True)
    second = board.report(first["cursor"], 0)
    assert (uids(second), second["full"]) == (["b"], False)
    assert second["observations"][0]["pbs"]["state"] == "Q"
    board.put_view("a", WAITING)
    third = board.report(second["cursor"], 0)
    assert uids(third) == ["a"]
    board.put_view("a", WAITING._replace(at=77.0))
    assert uids(board.report(third["cursor"], 0)) == [], "a later time alone is no news"
    board.put_marks("a", None)
    assert board.report(third["cursor"], 0)["gone"] == ["a"]
    assert uids(board.report("", 0)) == ["b"]
    assert board.report("another.1", 0)["full"]


def test_a_server_that_goes_down_is_news() -> None:
    board = Board("token")
    board.put_scanned()
    board.put_server(True)
    cursor = board.report("", 0)["cursor"]
    board.put_server(False, "cannot connect")
    report = board.report(cursor, 0)
    assert report["cursor"] != cursor
    assert (report["server_up"], report["server_message"], report["complete"]) == (False, "cannot connect", True)


def test_a_cursor_older_than_what_is_remembered_gives_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pbs_adapter.remote.helper_board._GONE_KEPT", 2)
    board = Board("token")
    board.put_scanned()
    cursor = board.report("", 0)["cursor"]
    for uid in "abcd":
        board.put_marks(uid, Marks())
        board.put_marks(uid, None)
    assert board.report(cursor, 0)["full"]
