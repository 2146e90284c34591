"""What job reports add up to."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.clusters.books import Books
from bridge.clusters.health import ClusterHealth, differs, judge
from pbs_adapter.models import JobsReport, LinkHealth, Observation


def seen(uid: str, job_id: str | None = "1.a") -> Observation:
    return Observation(uid, job_id=job_id)


def report(*observations: Observation, full: bool = False, gone: tuple[str, ...] = (), **fields: Any) -> JobsReport:
    base: dict[str, Any] = {"cursor": "c", "complete": True}
    return JobsReport(full=full, observations=observations, gone=gone, **(base | fields))


@pytest.mark.parametrize(
    ("before", "next_report", "changed", "after"),
    [
        ([], report(seen("a"), full=True), {"a"}, {"a"}),
        (["a"], report(seen("a"), full=True), set(), {"a"}),
        (["a", "b"], report(seen("a"), full=True), {"b"}, {"a"}),
        (["a"], report(seen("a", "2.a"), full=True), {"a"}, {"a"}),
        (["a"], report(seen("b")), {"b"}, {"a", "b"}),
        (["a"], report(seen("a")), set(), {"a"}),
        (["a", "b"], report(gone=("b", "never")), {"b"}, {"a"}),
        (["a"], report(), set(), {"a"}),
    ],
)
def test_reports(before: list[str], next_report: JobsReport, changed: set[str], after: set[str]) -> None:
    books = Books(observations={uid: seen(uid) for uid in before})
    assert books.apply(next_report, 10.0, 11.0) == changed
    assert set(books.observations) == after
    assert (books.complete, books.problem, books.cursor, books.reported_at) == (True, "", "c", 11.0)


def test_a_report_asked_for_before_a_submission_says_nothing_about_it() -> None:
    books = Books()
    assert books.note("a", "7.a", now=10.5)
    assert books.apply(report(full=True), asked_at=10.0, now=12.0) == set()
    assert books.observations["a"].job_id == "7.a"
    assert books.apply(report(full=True), asked_at=12.0, now=13.0) == {"a"}
    assert not books.observations


def test_a_submission_without_an_answer_counts_as_seen() -> None:
    books = Books()
    assert books.note("a", None, now=1.0)
    assert books.observations["a"].submitting
    assert books.note("a", "7.a", now=2.0)
    assert not books.note("a", None, now=3.0)
    assert books.observations["a"].job_id == "7.a"


def test_a_failed_poll_keeps_what_is_known_but_nothing_is_sure() -> None:
    books = Books()
    books.apply(report(seen("a"), full=True), 1.0, 2.0)
    books.failed("gone away")
    assert set(books.observations) == {"a"}
    assert (books.complete, books.problem) == (False, "gone away")


def test_a_server_that_does_not_answer_is_a_problem() -> None:
    books = Books()
    books.apply(report(full=True, server_up=False, server_message="errno=111"), 1.0, 2.0)
    assert books.problem == "PBS does not answer: errno=111"


UP, DOWN = LinkHealth(True, 0.0), LinkHealth(False, 0.0, "refused")
BEFORE = ClusterHealth(False, "", since=5.0)


@pytest.mark.parametrize(
    ("channels", "problems", "reachable", "message"),
    [
        ({"a": UP}, {"a": ""}, True, ""),
        ({"a": UP}, {"a": "PBS does not answer: x"}, False, "PBS does not answer: x"),
        ({"a": DOWN}, {"a": ""}, False, "refused"),
        ({}, {"a": "not connected yet"}, False, "not connected yet"),
        ({"a": UP, "b": DOWN}, {"a": "", "b": ""}, True, "account b: refused"),
        ({"a": DOWN, "b": DOWN}, {"a": "", "b": "x"}, False, "account a: refused; account b: refused"),
    ],
)
def test_health(channels: dict[str, LinkHealth], problems: dict[str, str], reachable: bool, message: str) -> None:
    health = judge(BEFORE, channels, problems, now=9.0)
    assert (health.reachable, health.message) == (reachable, message)
    assert health.since == (9.0 if reachable else 5.0)
    assert differs(BEFORE, health)
    assert not differs(health, judge(health, channels, problems, now=10.0))
