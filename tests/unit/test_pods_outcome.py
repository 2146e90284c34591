"""What observations mean: the table from PBS's and podrun's words to the stage of a job."""

from __future__ import annotations

from typing import Any

import pytest
from podcases import absent, container, ended, podrun, seen

from bridge.pods.outcome import PBS_EXIT, Stage, outcome
from pbs_adapter.models import Observation, PbsView, Seen

STAGES: list[tuple[str, Observation | None, Stage]] = [
    ("nothing", None, Stage.NONE),
    ("directory only", seen(job_id=None), Stage.SUBMITTING),
    ("lock", seen(job_id=None, submitting=True), Stage.SUBMITTING),
    ("cancelled before submission", seen(job_id=None, stopping=True), Stage.ENDED),
    ("cancelled while submitting", seen(job_id=None, stopping=True, submitting=True), Stage.SUBMITTING),
    ("cancelled while submitting, and PBS has no job", seen(job_id=None, stopping=True, submitting=True, pbs=absent()),
     Stage.ENDED),
    ("qsub was refused, to be tried again", seen(job_id=None, pbs=absent()), Stage.SUBMITTING),
    ("id, PBS not asked", seen(), Stage.QUEUED),
    ("queued", seen("Q"), Stage.QUEUED),
    ("waiting", seen("W"), Stage.QUEUED),
    ("transit", seen("T"), Stage.QUEUED),
    ("held", seen("H"), Stage.HELD),
    ("PBS says running, podrun has said nothing", seen("R"), Stage.QUEUED),
    ("claimed", seen("R", claimed=True), Stage.QUEUED),
    ("podrun starts", seen("R", podrun("Starting", containers={})), Stage.QUEUED),
    ("init containers", seen("R", podrun("Initializing")), Stage.RUNNING),
    ("running", seen("R", podrun()), Stage.RUNNING),
    ("running, PBS not asked", seen("", podrun()), Stage.RUNNING),
    ("suspended", seen("S", podrun()), Stage.SUSPENDED),
    ("suspended by use", seen("U", podrun()), Stage.SUSPENDED),
    ("exiting", seen("E", podrun()), Stage.RUNNING),
    ("finished in PBS, not confirmed", seen("F", podrun()), Stage.RUNNING),
    ("ended", seen("R", ended()), Stage.ENDED),
    ("ended and gone", seen(status=ended(), pbs=absent()), Stage.ENDED),
    ("moved away", seen("M"), Stage.UNKNOWN),
    ("gone", seen(pbs=absent()), Stage.ENDED),
    ("claimed, its id unknown, and gone", seen(job_id=None, claimed=True, pbs=absent()), Stage.ENDED),
]  # fmt: skip


@pytest.mark.parametrize(("observation", "stage"), [c[1:] for c in STAGES], ids=[c[0] for c in STAGES])
def test_stage(observation: Observation | None, stage: Stage) -> None:
    assert outcome(observation).stage is stage


ENDS: list[tuple[str, Observation, bool, str, bool]] = [
    ("success", seen(status=ended()), True, "", False),
    ("failure", seen(status=ended("Failed")), False, "", False),
    ("deadline", seen(status=ended("Failed", reason="DeadlineExceeded")), False, "DeadlineExceeded", False),
    ("walltime", seen(status=ended("Failed", reason="PBSWalltimeExceeded")), False, "PBSWalltimeExceeded", False),
    ("qdel, podrun saw it", seen(status=ended("Failed", reason="PBSJobDeleted")), False, "PBSJobDeleted", True),
    ("stopped, exit 0", seen(status=ended(reason="Stopped")), True, "", False),
    ("stopped, exit 3", seen(status=ended("Failed", reason="Stopped")), False, "", False),
    (
        "success claimed beside a deadline",
        seen(status=ended(reason="DeadlineExceeded")),
        False,
        "DeadlineExceeded",
        False,
    ),
    ("nonsense for a result", seen(status=ended(result="yes")), False, "", False),
    ("nonsense for a reason", seen(status=ended("Failed", reason=["x"])), False, "", False),
    ("vanished", seen(status=podrun(), pbs=absent()), False, "PBSJobVanished", True),
    ("vanished, PBS says exit 0", seen(status=podrun(), pbs=absent(exit_status=0)), False, "PBSJobVanished", True),
    ("killed by qdel", seen(status=podrun(), pbs=absent(exit_status=265, substate=91)), False, "PBSJobDeleted", True),
    ("queued, then qdel", seen(pbs=absent(substate=91)), False, "PBSJobDeleted", True),
    ("our own cancel of a queued job", seen(pbs=absent(), stopping=True), False, "", False),
    ("walltime by PBS", seen(status=podrun(), pbs=absent(exit_status=-29)), False, "PBSWalltimeExceeded", False),
    ("node lost", seen(status=podrun(), pbs=absent(exit_status=-20)), False, "PBSJobVanished", True),
    ("requeued", seen(claimed=True, status=podrun(), pbs=absent(exit_status=75)), False, "PBSJobRequeued", True),
    ("memory", seen(status=podrun(), pbs=absent(exit_status=-27)), False, "OOMKilled", False),
    ("a code of the future", seen(status=podrun(), pbs=absent(exit_status=-99)), False, "PBSJobVanished", False),
]


@pytest.mark.parametrize(
    ("observation", "succeeded", "reason", "disruption"), [c[1:] for c in ENDS], ids=[c[0] for c in ENDS]
)
def test_end(observation: Observation, succeeded: bool, reason: str, disruption: bool) -> None:
    result = outcome(observation)
    assert (result.stage, result.succeeded, result.reason, result.disruption) == (
        Stage.ENDED, succeeded, reason, disruption,
    )  # fmt: skip


def test_absence_is_never_success() -> None:
    for status in (None, podrun(), podrun("Stopping")):
        for code in (None, 0, 1, 271, *PBS_EXIT):
            assert not outcome(seen(status=status, pbs=absent(exit_status=code))).succeeded


def test_the_comment_of_pbs_is_the_message() -> None:
    text = "Not Running: Insufficient amount of resource: ncpus (R: 8 A: 0 T: 8)"
    result = outcome(seen(pbs=PbsView(Seen.PRESENT, 1.0, "Q", comment=text)))
    assert (result.reason, result.message) == ("PBSQueued", text)


@pytest.mark.parametrize("containers", [None, [], {"main": 3}, {"main": container("terminated")}])
def test_odd_containers_are_survived(containers: Any) -> None:
    assert outcome(seen("R", podrun("Starting", containers=containers))).stage in (Stage.QUEUED, Stage.RUNNING)
