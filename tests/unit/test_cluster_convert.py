"""What a helper answers, partly written by jobs, becomes models or "unknown": never an error, never an absence."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest
from fuzzing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pbs_adapter import cluster_convert as convert
from pbs_adapter.errors import PbsUnavailable
from pbs_adapter.models import CensusJob, JobsReport, Observation, PbsView, Seen

UID = "11111111-2222-3333-4444-555555555555"
STATUS = {"version": 1, "uid": UID, "phase": "Running", "result": None, "containers": {}}
RECORDINGS = Path(__file__).parents[1] / "contract" / "pbs" / "recordings" / "release"


def report(*observations: Any, **fields: Any) -> JobsReport:
    head = {"cursor": "a.1", "full": True, "complete": True, "observations": list(observations), "server_up": True}
    return convert.jobs_report({**head, **fields})


def test_doctests() -> None:
    assert doctest.testmod(convert).failed == 0


def test_a_whole_report() -> None:
    pbs = {
        "seen": "present",
        "at": 5,
        "state": "R",
        "substate": 42,
        "comment": "c",
        "queue": "q",
        "exec_vnode": "(n:ncpus=1)",
    }
    raw = {"uid": UID, "job_id": "1.pbs", "submitting": False, "claimed": True, "stopping": True, "pbs": pbs}
    made = report({**raw, "status": STATUS}, gone=["b"], server_up=False, server_message="down")
    view = PbsView(Seen.PRESENT, 5.0, "R", 42, "c", "q", "(n:ncpus=1)", None)
    seen = Observation(UID, "1.pbs", False, True, True, view, STATUS)
    assert made == JobsReport("a.1", True, True, (seen,), ("b",), False, "down")


@pytest.mark.parametrize("entry", [None, 1, "x", [], {}, {"uid": 5}, {"uid": ""}, {"uid": "../x"}, {"uid": "a" * 65}])
def test_an_entry_without_a_pod_makes_the_report_incomplete(entry: Any) -> None:
    made = report({"uid": UID}, entry)
    assert [observation.uid for observation in made.observations] == [UID]
    assert not made.complete


@pytest.mark.parametrize("raw", [None, {}, "x", 7])
def test_without_a_list_nothing_is_complete(raw: Any) -> None:
    assert not report(observations=raw).complete


@pytest.mark.parametrize("seen", [None, "", "Present", 1, [], {}, "gone"])
def test_an_unknown_view_is_unknown(seen: Any) -> None:
    made = report({"uid": UID, "pbs": {"seen": seen}})
    assert made.complete
    assert made.observations[0].pbs.seen is Seen.UNKNOWN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at", "x"),
        ("at", float("inf")),
        ("at", True),
        ("substate", "42"),
        ("substate", True),
        ("exit_status", 1.5),
        ("state", 5),
        ("comment", ["a"]),
        ("queue", None),
        ("exec_vnode", {}),
        ("estimated", "soon"),
        ("estimated", float("nan")),
    ],
)
def test_fields_of_the_wrong_type_are_as_if_missing(field: str, value: Any) -> None:
    assert report({"uid": UID, "pbs": {"seen": "present", field: value}}).observations[0].pbs == PbsView(Seen.PRESENT)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ([], "not an object"),
        ("x", "not an object"),
        ({}, "version None"),
        ({**STATUS, "version": 2}, "version 2"),
        ({**STATUS, "version": "1" * 99}, "version '1111"),
        ({**STATUS, "uid": "other"}, "another pod"),
    ],
)
def test_a_status_that_is_not_podruns_is_left_out(status: Any, problem: str) -> None:
    observation = report({"uid": UID, "status": status}).observations[0]
    assert observation.status is None
    assert problem in observation.status_problem


def test_long_texts_are_cut() -> None:
    assert len(report({"uid": UID, "pbs": {"comment": "c" * 10**6}}).observations[0].pbs.comment) == 4096


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["uid", "job_id", "pbs", "status", "status_problem", "claimed", "seen", "at", "state", "substate", "comment"]
odd = st.dictionaries(
    st.sampled_from(KEYS), json_values | st.dictionaries(st.sampled_from(KEYS), json_values), max_size=6
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(odd | json_values, max_size=3), json_values, json_values)
def test_nothing_raises(observations: list[Any], gone: Any, cursor: Any) -> None:
    made = report(*observations, gone=gone, cursor=cursor)
    assert all(isinstance(observation.uid, str) for observation in made.observations)


WHOLE: dict[str, Any] = {
    "cursor": "a.1", "full": True, "complete": True, "more": False, "gone": ["b"], "server_up": True,
    "server_message": "", "read_age": 0.5, "poll_age": 1, "observations": [],
}  # fmt: skip
SEEN: dict[str, Any] = {
    "uid": UID, "job_id": "1.a", "submitting": False, "claimed": True, "stopping": False, "status_problem": "",
    "pbs": {
        "seen": "present", "at": 5.0, "state": "R", "substate": 42, "comment": "c", "queue": "q",
        "exec_vnode": "(n:ncpus=1)", "exit_status": 0, "estimated": 7.0,
    },
    "status": STATUS | {"containers": {"main": {"state": "running", "run": 0, "last": None}}},
}  # fmt: skip
huge = st.sampled_from([10**400, -(10**18), 1 << 63, "\ud800" * 10, "x" * 100_000, [[]] * 1000, {"a": {"b": {}}}])


def spoilt(tree: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The tree with one of its fields, at whatever depth, replaced by anything."""
    here = st.sampled_from(sorted(tree)).flatmap(
        lambda name: (json_values | huge).map(lambda value, name=name: tree | {name: value})
    )
    inner = [
        spoilt(value).map(lambda made, name=name: tree | {name: made})
        for name, value in tree.items()
        if isinstance(value, dict) and value
    ]
    return st.one_of(here, *inner)


@settings(max_examples=examples(300), deadline=None)
@given(spoilt(WHOLE), spoilt(SEEN))
def test_whatever_stands_in_one_field_the_report_is_bounded_and_of_the_right_types(top: Any, entry: Any) -> None:
    for head in (top, WHOLE | {"observations": [entry]}, top | {"observations": [entry, SEEN]}):
        made = convert.jobs_report(head)
        assert {type(value) for value in (made.full, made.complete, made.more, made.server_up)} == {bool}
        assert len(made.cursor) <= 200
        assert not (made.complete and made.spoilt)
        for age in (made.read_age, made.poll_age):
            assert age is None or 0 <= abs(age) < 1e12
        for seen in made.observations:
            assert len(seen.uid) <= 64
            view = seen.pbs
            numbers = (view.substate, view.exit_status)
            assert all(number is None or abs(number) < 1 << 31 for number in numbers)
            shown = json.dumps([seen.status, view.comment, view.queue, view.exec_vnode, seen.status_problem])
            assert len(shown) < 700_000
            shown.encode("utf-8")
            assert "\\ud800\\ud800" not in shown


def recorded(name: str) -> bytes:
    output: str = json.loads((RECORDINGS / f"{name}.json").read_text())["stdout"]
    return output.encode()


def test_a_census_of_a_real_pbs() -> None:
    outputs = [recorded("server_full"), recorded("queues_full"), recorded("nodes_numa_idle")]
    sizes = dict(zip(("server_size", "queues_size", "vnodes_size"), map(len, outputs), strict=True))
    head = {"at": 7.5, "host": {"os": "Debian", "n": 1}, "runtimes": ["host+bwrap", 5], **sizes}
    census = convert.census(head, b"".join(outputs))
    assert census.at == 7.5
    assert census.server.default_queue == "workq"
    assert "workq" in [queue.name for queue in census.queues]
    assert any(vnode.ncpus > 0 for vnode in census.vnodes)
    assert census.host == {"os": "Debian", "n": "1"}
    assert census.runtimes == ("host+bwrap",)


def census_answer(table: bytes, **more: Any) -> tuple[dict[str, Any], bytes]:
    outputs = [recorded("server_full"), recorded("queues_full"), recorded("nodes_numa_idle"), table]
    names = ("server_size", "queues_size", "vnodes_size", "jobs_size")
    sizes = dict(zip(names, map(len, outputs), strict=True))
    return {"at": 7.5, "host": {"user": "alice"}, **sizes, **more}, b"".join(outputs)


def test_the_list_of_all_jobs() -> None:
    head, body = census_answer(recorded("jobs_table_wide"), jobs_at=7.0, jobs_problem="")
    census = convert.census(head, body)
    assert (census.jobs_at, census.account) == (7.0, "alice")
    by_number = {job.number: job for job in census.jobs}
    running, waiting = by_number["0"], by_number["3"]
    assert running == CensusJob("0", "alice", "workq", 4, 300, "R", 0, 1 << 30, 1)
    assert waiting == CensusJob("3", "alice", "workq", 500, 300, "Q", None, None, 1)


@pytest.mark.parametrize(
    ("table", "more"),
    [
        (b"", {}),
        (b"", {"jobs_at": 9.0, "jobs_problem": "no answer from PBS in time"}),
        (b"qstat: something else\n", {"jobs_at": 9.0}),
    ],
)
def test_without_a_new_list_the_last_one_stays(table: bytes, more: dict[str, Any]) -> None:
    last = convert.census(*census_answer(recorded("jobs_table_wide"), jobs_at=7.0))
    census = convert.census(*census_answer(table, **more), last)
    assert census.jobs == last.jobs
    assert census.jobs_at == 7.0


def test_no_jobs_are_a_list_too() -> None:
    census = convert.census(*census_answer(b"", jobs_at=9.0, jobs_problem=""))
    assert (census.jobs, census.jobs_at) == ((), 9.0)


@pytest.mark.parametrize("head", [{}, {"server_size": 10**9}, {"server_size": -1, "queues_size": "x"}])
def test_a_census_that_is_cut_off_is_told(head: dict[str, Any]) -> None:
    with pytest.raises(PbsUnavailable, match="cannot be read"):
        convert.census(head, b'{"Server":{')
