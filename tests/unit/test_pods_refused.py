"""Pods that cannot be run: who ends, who waits, and what the status of an ended pod says of its containers."""

from __future__ import annotations

from typing import Any

import pytest
from podcases import NOW, absent, container, pod, podrun, seen, situation
from test_pods_decide import CASES, words

from bridge.pods.decide import WriteStatus, decide
from bridge.pods.record import Failure, Situation
from bridge.pods.status import status

REFUSALS = ("UnsupportedPodField", "ImageNotMapped", "InvalidAnnotation", "NoClusterAccount")
BIG = "asks ncpus 40, the largest host has 32"


def owned(kind: str, policy: str = "Always", **fields: Any) -> dict[str, Any]:
    """A pod that a controller of this kind owns."""
    owners = [{"kind": kind, "controller": True}]
    return pod(metadata__ownerReferences=owners, spec__restartPolicy=policy, **fields)


@pytest.mark.parametrize("reason", REFUSALS)
@pytest.mark.parametrize(
    ("thing", "waits"),
    [
        (owned("ReplicaSet"), True),
        (owned("StatefulSet"), True),
        (owned("ReplicationController"), True),
        (owned("CloneSet"), True),  # of a controller that nobody here has heard of
        (owned("Job", "Never"), False),
        (owned("Job", "OnFailure"), False),
        (owned("Workflow", "Never"), False),
        (pod(spec__restartPolicy="Always"), False),
    ],
    ids=["ReplicaSet", "StatefulSet", "ReplicationController", "CloneSet", "Job", "Job 2", "Workflow", "bare"],
)
def test_a_refused_pod_waits_where_another_would_come_at_once(thing: Any, waits: bool, reason: str) -> None:
    done = decide(situation(thing, record={"failure": Failure(reason, "because")}))
    shown = f"status Pending {reason}" if waits else f"status Failed {reason}"
    assert words(done) == [f"announce {reason}", shown]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (situation(owned("ReplicaSet", deleting=NOW), record={"failure": Failure("X", "no")}), ["status Failed"]),
        (
            situation(owned("ReplicaSet"), record={"failure": Failure("OutOfcpu", "no", rejected=True)}),
            ["announce OutOfcpu", "status Failed OutOfcpu"],
        ),
        (
            situation(owned("ReplicaSet"), misfit=BIG, record={"misfit_since": NOW - 600}),
            ["announce PBSUnsatisfiable", "status Pending PBSUnsatisfiable"],
        ),
        (situation(owned("ReplicaSet"), seen(job_id=None)), ["status Pending ContainerCreating", "submit"]),
    ],
    ids=["deleted", "rejected as by a kubelet", "larger than every host for long", "refused by PBS, after a restart"],
)
def test_pods_of_a_replica_set(case: Situation, expected: list[str]) -> None:
    assert words(decide(case)) == expected


@pytest.mark.parametrize("case", [c[1] for c in CASES], ids=[c[0] for c in CASES])
def test_nothing_waits_in_a_pod_that_has_failed(case: Situation) -> None:
    """A refused pod has no containers at all; others ended, seen or not. Tools wait for that."""
    for action in decide(case).actions:
        if isinstance(action, WriteStatus) and action.fields["phase"] == "Failed":
            for each in action.fields.get("containerStatuses") or []:
                assert "terminated" in each["state"], each


def test_a_refused_pod_has_no_containers() -> None:
    thing = pod(status__containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "PBSUnsatisfiable"}}}])
    fields = status(situation(thing), failure=Failure("PBSUnsatisfiable", BIG))
    assert fields["containerStatuses"] is None  # takes away what was shown while it waited


def test_the_containers_of_a_pod_that_never_ran_end_as_a_kubelets() -> None:
    gone = status(situation(pod(deleting=NOW + 20), seen(pbs=absent(), stopping=True)))
    ends = [c["state"]["terminated"] for c in gone["containerStatuses"]]
    assert [(e["exitCode"], e["reason"]) for e in ends] == [(137, "ContainerStatusUnknown")]


def test_a_container_that_waited_for_its_next_run_has_the_end_of_the_last() -> None:
    last = container("terminated", exit_code=3, reason="Error")
    status_json = podrun(containers={"main": container("waiting", reason="CrashLoopBackOff", last=last)})
    gone = status(situation(pod(), seen(status=status_json, pbs=absent())))
    assert [c["state"]["terminated"]["exitCode"] for c in gone["containerStatuses"]] == [3]


def test_containers_behind_a_failed_init_container_keep_waiting_as_a_kubelets() -> None:
    thing = pod()
    thing["spec"]["initContainers"] = [{"name": "first", "image": "sh"}]
    failed = {"first": container("terminated", exit_code=3, reason="Error")}
    fields = status(situation(thing, seen(status=podrun("Ended", result="Failed", containers=failed))))
    assert "waiting" in fields["containerStatuses"][0]["state"]
    initialized = next(c for c in fields["conditions"] if c["type"] == "Initialized")
    assert (initialized["reason"], initialized["message"]) == (
        "ContainersNotInitialized",
        "containers with incomplete status: [first]",
    )
