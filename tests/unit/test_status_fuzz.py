"""Whatever a job forges as status.json: it is refused with a sentence, or what is passed on has the right shape."""

from __future__ import annotations

import json
from typing import Any

from fuzzing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pbs_adapter import cluster_convert
from pbs_adapter.remote.helper_status import parse_status
from pbs_adapter.remote.status_shape import PHASES, STATES

UID = "7f0c6f4e-0000-4000-8000-000000000001"
RUN = {
    "reason": "Error",
    "message": "",
    "started_at": 1.5,
    "finished_at": 2.5,
    "exit_code": 1,
    "signal": None,
    "run": 0,
}
CONTAINER = RUN | {"kind": "app", "state": "terminated", "restart_count": 1, "last": RUN}
STATUS: dict[str, Any] = {
    "version": 1, "uid": UID, "seq": 3, "written_at": 2.5, "host": "n1", "job_id": "7.alpha", "started_at": 1.0,
    "phase": "Running", "reason": "", "message": "", "result": None, "containers": {"main": CONTAINER},
}  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from([*PHASES, *STATES]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """A good status with one field replaced, and perhaps one in its container."""
    status = STATUS | draw(st.dictionaries(st.sampled_from(sorted(STATUS)), VALUES, max_size=1))
    inner = draw(st.dictionaries(st.sampled_from(sorted(CONTAINER)), VALUES, max_size=2))
    if isinstance(status["containers"], dict) and "main" in status["containers"]:
        status["containers"] = {draw(st.just("main") | st.text(max_size=6)): CONTAINER | inner}
    return json.dumps(status).encode()


@st.composite
def torn(draw: st.DrawFn) -> bytes:
    """A good status with bytes replaced, or cut off."""
    text = bytearray(json.dumps(STATUS).encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 20))] = draw(
            st.binary(max_size=6) | st.sampled_from([b'"', b"{", b"[" * 99])
        )
    return bytes(text)


@settings(max_examples=examples(100), deadline=None)
@given(forged() | torn() | st.binary(max_size=60))
def test_forged_and_torn(text: bytes) -> None:
    status, problem = parse_status(text, UID)
    assert (status is None) == bool(problem)
    if status is None:
        return
    assert status["uid"] == UID
    assert status["phase"] in PHASES
    head = {"cursor": "1", "full": True, "complete": True, "gone": [], "server_up": True, "server_message": ""}
    observation = {"uid": UID, "job_id": None, "claimed": True, "status": status, "pbs": {}}
    report = cluster_convert.jobs_report(json.loads(json.dumps(head | {"observations": [observation]})))
    assert [each.uid for each in report.observations] == [UID]
