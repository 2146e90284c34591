"""No bytes at all make a parser raise anything but ParseError; those of jobs do not raise at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pbs_adapter.remote import parse

RECORDINGS = Path(__file__).parents[1] / "contract" / "pbs" / "recordings"
SAMPLES = [
    json.loads((RECORDINGS / version / f"{name}.json").read_text())["stdout"].encode()
    for version in ("release", "main")
    for name in ("jobs_numeric_looking_values", "job_unknown_and_known", "nodes_numa_busy", "queues_full_busy")
] + [
    json.loads((RECORDINGS / "release" / f"{name}.json").read_text())["stdout"].encode()
    for name in ("jobs_odd_environment_text", "jobs_table_wide", "server_full_busy")
]
OF_BYTES: list[Callable[[bytes], Any]] = [
    parse.parse_jobs,
    parse.parse_jobs_text,
    parse.parse_job_table,
    parse.parse_queues,
    parse.parse_nodes,
    parse.parse_server,
]
OF_TEXT: list[Callable[[str], Any]] = [
    parse.parse_size,
    parse.parse_duration,
    parse.parse_pbs_time,
    parse.parse_select,
    parse.parse_exec_vnode,
    lambda text: parse.parse_resource("x", text),
    lambda text: parse.limit_for_user(parse.parse_limits("x", text), "alice"),
    lambda text: parse.classify_error("qsub", 1, text),
    parse.error_text,
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A recording with a few pieces replaced, removed or cut off."""
    text = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        pieces = st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\n", b":", b"\\ud800", b"-", b"9" * 400])
        text[at : at + draw(st.integers(0, 30))] = draw(st.one_of(pieces, st.binary(max_size=8)))
    return bytes(text)


def harmless(function: Callable[[Any], Any], argument: object) -> None:
    with contextlib.suppress(parse.ParseError):
        repr(function(argument)).encode("utf-8", "backslashreplace")


@settings(max_examples=examples(80), deadline=None)
@given(text=st.one_of(st.binary(max_size=300), damaged()))
def test_bytes(text: bytes) -> None:
    for function in OF_BYTES:
        harmless(function, text)
    answer = parse.parse_jobs(text)
    for job in answer.jobs.values():
        # Whatever was read can be sent on: only surrogates that stand for bytes are left.
        (job.name + job.comment + "".join(job.variables.values())).encode("utf-8", "surrogateescape")


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
_NAMES = (
    "Job_Name Job_Owner job_state substate ctime Resource_List resources_used Variable_List estimated array_index "
    "array_state_count Exit_status state jobs resources_available max_run max_run_res state_count acl_users"
)


@settings(max_examples=examples(30), deadline=None)
@given(tree=st.dictionaries(st.sampled_from(_NAMES.split()), _JSON), name=st.text(max_size=8))
def test_wrong_types(tree: dict[str, Any], name: str) -> None:
    for section, function in (("Jobs", OF_BYTES[0]), ("Queue", OF_BYTES[3]), ("nodes", OF_BYTES[4])):
        function(json.dumps({section: {name: tree}}).encode())
    parse.group_by_host(parse.parse_nodes(json.dumps({"nodes": {name: tree}}).encode()).values())


_SYNTAX = st.text(alphabet="0123456789:+=()[],.kmgtpbw-\"'aePTu \n\\", max_size=40)


@pytest.mark.parametrize("function", OF_TEXT)
@settings(max_examples=examples(40), deadline=None)
@given(text=st.one_of(_SYNTAX, st.text(max_size=30)))
def test_text(function: Callable[[str], Any], text: str) -> None:
    harmless(function, text)
