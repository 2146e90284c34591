"""The long poll's pages: whatever changes between two of them, what they add up to is what the board has."""

from __future__ import annotations

import json
from typing import Any

from fuzzing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.clusters.books import Books
from pbs_adapter import cluster_convert as convert
from pbs_adapter.remote import helper_board, wire
from pbs_adapter.remote.helper_board import PAGE_BYTES, Board
from pbs_adapter.remote.helper_dirs import Marks
from pbs_adapter.remote.helper_views import View
from pbs_adapter.remote.status_shape import MAX_CONTAINERS, MAX_WORDS, reduce_status


def board(pods: int = 0, **marks: Any) -> Board:
    made = Board("abc")
    for number in range(pods):
        made.put_marks(f"pod-{number}", Marks(job_id=f"{number}.a", **marks))
    made.put_scanned()
    made.put_server(True)
    return made


def page(made: Board, books: Books) -> bool:
    """Ask for the next page and enter it; whether there are more."""
    report = made.report(books.cursor, 0)
    books.apply(convert.jobs_report(json.loads(json.dumps(report))), 1.0, 2.0)
    return bool(report["more"])


def test_a_long_report_comes_in_pages_and_is_complete_with_the_last() -> None:
    made, books = board(2500), Books()
    first = made.report("", 0)
    assert (first["full"], first["more"], len(first["observations"])) == (True, True, 1000)
    more = [page(made, books) and not books.complete for _ in range(3)]
    assert more == [True, True, False]
    assert books.complete
    assert len(books.observations) == 2500
    assert made.report(books.cursor, 0)["observations"] == []


def test_the_largest_status_fits_a_page_and_a_page_fits_a_frame() -> None:
    """270 statuses of 250 kB made a report that could never be sent: one pod's news were the whole account's."""
    run = {"state": "running", "message": "\U0001f600" * 5000, "last": {"message": "\U0001f600" * 5000}}
    worst = {
        "version": 1,
        "uid": "pod-0",
        "phase": "Running",
        "message": "\U0001f600" * MAX_WORDS,
        "containers": {f"{number:063}": run for number in range(MAX_CONTAINERS)},
        "unknown": ["x" * 100_000],
    }
    status, problem = reduce_status(worst, "pod-0")
    assert status is not None, problem
    made = board(40, status=status, claimed=True)
    for number in range(40):
        made.put_view(f"pod-{number}", View("present", comment="\U0001f600" * 4096, exec_vnode="\U0001f600" * 8192))
    cursor, seen, more = "", set(), True
    while more:
        report = made.report(cursor, 0)
        assert len(wire.encode_head(report)) <= wire.MAX_REPLY_HEAD
        assert len(report["observations"]) == 1 or len(wire.encode_head(report)) < PAGE_BYTES + 1000
        cursor, more = report["cursor"], report["more"]
        seen |= {observation["uid"] for observation in report["observations"]}
    assert len(seen) == 40


def test_removals_that_are_no_longer_remembered_do_not_start_a_long_report_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr(helper_board, "PAGE_CHANGES", 10)
    monkeypatch.setattr(helper_board, "_GONE_KEPT", 3)
    made, books = board(5), Books()
    for number in range(5):
        made.put_marks(f"pod-{number}", None)  # long forgotten by the time that the report begins
    for number in range(100, 150):
        made.put_marks(f"pod-{number}", Marks())
    rounds = 0
    while page(made, books):
        rounds += 1
        assert rounds < 10
    assert set(books.observations) == {f"pod-{number}" for number in range(100, 150)}


changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 30), st.integers(0, 3)),
        st.tuples(st.just("gone"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("page"), st.just(0), st.just(0)),
        st.tuples(st.just("lost"), st.just(0), st.just(0)),  # the answer never came: the same cursor is asked with
        st.tuples(st.just("anew"), st.just(0), st.just(0)),  # another connection: the cursor means nothing
    ),
    max_size=80,
)


@settings(max_examples=examples(150), deadline=None)
@given(changes, st.integers(1, 6), st.integers(0, 4))
def test_whatever_changes_between_pages_the_books_end_as_the_board_is(
    steps: list[tuple[str, int, int]], size: int, kept: int
) -> None:
    before = helper_board.PAGE_CHANGES, helper_board._GONE_KEPT
    helper_board.PAGE_CHANGES, helper_board._GONE_KEPT = size, kept
    try:
        made, books, truth = board(), Books(), dict[str, str]()
        for what, number, value in steps:
            uid = f"pod-{number}"
            if what == "put":
                made.put_marks(uid, Marks(job_id=f"{value}.a"))
                truth[uid] = f"{value}.a"
            elif what == "gone":
                made.put_marks(uid, None)
                truth.pop(uid, None)
            elif what == "page":
                page(made, books)
                if books.complete:
                    assert {uid: seen.job_id for uid, seen in books.observations.items()} == truth
            elif what == "lost":
                made.report(books.cursor, 0)
            else:
                books.cursor = ""
        while page(made, books):
            pass
        assert books.complete
        assert {uid: seen.job_id for uid, seen in books.observations.items()} == truth
    finally:
        helper_board.PAGE_CHANGES, helper_board._GONE_KEPT = before


def test_the_ages_of_the_last_scan_and_the_last_poll_are_told() -> None:
    made = board(1)
    made._read_at -= 100  # files hang
    report = convert.jobs_report(made.report("", 0))
    assert report.read_age is not None
    assert report.read_age >= 100
    assert report.poll_age is not None
    assert report.poll_age < 50
    books = Books()
    books.apply(report, 1.0, 2.0)
    assert "files hang" in books.problem
    made.put_alive()
    books.apply(convert.jobs_report(made.report(books.cursor, 0)), 1.0, 2.0)
    assert books.problem == ""
