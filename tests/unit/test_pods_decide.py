"""The table of decisions: a situation and the actions that must follow, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from podcases import NOW, UID, absent, container, ended, pod, podrun, seen, situation

from bridge.api import names
from bridge.kube.clock import rfc3339
from bridge.pods.containers import Waiting
from bridge.pods.decide import Action, Annotate, Cancel, Decision, Refresh, Submit, WriteStatus, decide
from bridge.pods.record import Failure, Record, Situation
from bridge.pods.status import status, waits_unsatisfiable
from pbs_adapter.models import Observation, PbsView, Seen

DONE = {names.JOB_ID: "12.alpha", names.SUBMITTED: UID}
GONE = pod(deleting=NOW + 20)
DAEMON = [{"kind": "DaemonSet", "controller": True}]
RAN = [{"name": "main", "state": {"running": {}}}]
BIG = "asks ncpus 40, the largest host has 32"


def done(**fields: Any) -> dict[str, Any]:
    """A pod whose metadata patch has been written."""
    return pod(metadata__annotations=DONE, **fields)


def words(decision: Decision) -> list[str]:
    """The actions in words: enough to tell right from wrong."""

    def word(action: Action) -> str:
        match action:
            case WriteStatus(fields) | Submit(dict(fields)):
                containers = fields.get("containerStatuses") or []
                waiting = [c["state"].get("waiting", {}).get("reason") for c in containers]
                what = "status" if isinstance(action, WriteStatus) else "submit"
                return " ".join(filter(None, [what, fields["phase"], fields.get("reason"), *waiting]))
            case Cancel(grace, force):
                return f"cancel {grace}" + (" force" if force else "")
            case Annotate(job_id):
                return f"annotate {job_id}"
            case _:
                name = type(action).__name__.lower()
                return f"{name} {action.reason}" if name == "announce" else name  # type: ignore[union-attr]

    return [word(a) for a in decision.actions]


BOUND = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(NOW - 60)}]
CASES: list[tuple[str, Situation, list[str]]] = [
    # nothing on the cluster
    ("new pod", situation(pod()), ["status Pending ContainerCreating", "submit"]),
    ("new pod, scheduled", situation(pod(status__conditions=BOUND)), ["submit Pending ContainerCreating"]),
    (
        "new pod, scheduled, config missing",
        situation(pod(status__conditions=BOUND), record={"hold": Waiting("CreateContainerConfigError", "x")}),
        ["status Pending CreateContainerConfigError", "submit"],
    ),
    ("first report not in", situation(pod(), sure=False), ["status Pending ContainerCreating"]),
    ("cluster away", situation(pod(), reachable=False, trouble="no route"), ["status Pending ClusterUnreachable"]),
    ("retry not due", situation(pod(), record={"retry_at": NOW + 5}), ["status Pending ContainerCreating"]),
    (
        "config missing",
        situation(pod(), record={"hold": Waiting("CreateContainerConfigError", "x"), "retry_at": NOW + 3}),
        ["status Pending CreateContainerConfigError"],
    ),
    (
        "config missing, due again",
        situation(pod(), record={"hold": Waiting("CreateContainerConfigError", "x"), "retry_at": NOW}),
        ["status Pending CreateContainerConfigError", "submit"],
    ),
    (
        "backlog",
        situation(pod(), record={"hold": Waiting("PBSBacklog"), "retry_at": NOW + 9}),
        ["status Pending PBSBacklog"],
    ),
    ("cluster's size not known yet", situation(pod(), misfit=None), ["status Pending ContainerCreating"]),
    (
        "larger than any host",
        situation(pod(), misfit=BIG, record={"misfit_since": NOW - 5}),
        ["announce PBSUnsatisfiable", "status Pending PBSUnsatisfiable"],
    ),
    (
        "larger than any host for ten minutes",
        situation(pod(), misfit=BIG, record={"misfit_since": NOW - 600}),
        ["announce PBSUnsatisfiable", "status Failed PBSUnsatisfiable"],
    ),
    (
        "larger than any host for as long as the settings say",
        situation(pod(), misfit=BIG, record={"misfit_since": NOW - 5}, patience=5),
        ["announce PBSUnsatisfiable", "status Failed PBSUnsatisfiable"],
    ),
    (
        "larger than any host for long, cluster away",
        situation(pod(), misfit=BIG, record={"misfit_since": NOW - 900}, reachable=False, trouble="no route"),
        ["status Pending ClusterUnreachable"],
    ),
    (
        "larger than any host, lock without id",
        situation(pod(), seen(job_id=None, submitting=True), misfit=BIG, record={"misfit_since": NOW - 900}),
        ["status Pending ContainerCreating", "submit"],
    ),
    ("larger than any host, in PBS", situation(done(), seen("Q"), misfit=BIG), ["status Pending PBSQueued"]),
    ("larger than any host, deleted", situation(GONE, misfit=BIG), ["status Failed"]),
    (
        "a larger host appeared",
        situation(
            pod(status__containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "PBSUnsatisfiable"}}}])
        ),
        ["status Pending ContainerCreating", "submit"],
    ),
    (
        "lock without id",
        situation(pod(), seen(job_id=None, submitting=True)),
        ["status Pending ContainerCreating", "submit"],
    ),
    (
        "refused",
        situation(pod(), record={"failure": Failure("UnsupportedPodField", "no")}),
        ["announce UnsupportedPodField", "status Failed UnsupportedPodField"],
    ),
    (
        "rejected by admission",
        situation(pod(), record={"failure": Failure("OutOfcpu", "no", rejected=True)}),
        ["announce OutOfcpu", "status Failed OutOfcpu"],
    ),
    (
        "submitted once, and all traces gone",
        situation(done()),
        ["announce PBSJobVanished", "status Failed PBSJobVanished"],
    ),
    (
        "ran once, and all traces gone",
        situation(pod(status__containerStatuses=RAN)),
        ["announce PBSJobVanished", "status Failed PBSJobVanished"],
    ),
    (
        "ran once, report not in",
        situation(done(status__containerStatuses=RAN), sure=False),
        [],
    ),
    # on the cluster
    ("id, not annotated", situation(pod(), seen("Q")), ["annotate 12.alpha"]),
    (
        "a copy of a pod that was submitted",
        situation(pod(metadata__annotations=DONE | {names.SUBMITTED: "another"})),
        ["status Pending ContainerCreating", "submit"],
    ),
    (
        "another id forged",
        situation(pod(metadata__annotations={names.JOB_ID: "1.x"}), seen("Q")),
        ["annotate 12.alpha"],
    ),
    ("queued", situation(done(), seen("Q")), ["status Pending PBSQueued"]),
    (
        "queued with comment",
        situation(done(), seen(pbs=PbsView(Seen.PRESENT, NOW, "Q", comment="Not Running: x"))),
        ["announce PBSWaiting", "status Pending PBSQueued"],
    ),
    ("held", situation(done(), seen("H")), ["announce PBSHeld", "status Pending PBSHeld"]),
    (
        "held, not for too long",
        situation(done(), seen("H"), record={"held_since": NOW - 59}, held_limit=60),
        ["announce PBSHeld", "status Pending PBSHeld"],
    ),
    (
        "held for too long",
        situation(done(), seen("H"), record={"held_since": NOW - 60}, held_limit=60),
        ["announce PBSHeld", "status Failed PBSHeld"],
    ),
    ("running", situation(done(), seen("R", podrun())), ["status Running"]),
    ("running, status spoilt", situation(done(status__containerStatuses=RAN), seen("R", claimed=True)), []),
    (
        "running, its place in the queue forged",
        situation(done(status__containerStatuses=RAN), seen("Q", claimed=True)),
        [],
    ),
    ("running, cluster away", situation(done(), seen("R", podrun()), reachable=False, trouble="x"), ["status Running"]),
    ("suspended", situation(done(), seen("S", podrun())), ["status Running"]),
    ("succeeded", situation(done(), seen(status=ended())), ["status Succeeded"]),
    ("failed", situation(done(), seen(status=ended("Failed"))), ["status Failed"]),
    (
        "vanished",
        situation(done(), seen(status=podrun(), pbs=absent())),
        ["announce PBSJobVanished", "status Failed PBSJobVanished"],
    ),
    (
        "crash loop",
        situation(
            done(),
            seen(
                "R",
                podrun(
                    containers={
                        "main": container(
                            "waiting", reason="CrashLoopBackOff", last=container("terminated", exit_code=1)
                        )
                    }
                ),
            ),
        ),
        ["announce BackOff", "status Running CrashLoopBackOff"],
    ),
    ("refresh due", situation(done(), seen("R", podrun()), record={"refresh_at": NOW}), ["status Running", "refresh"]),
    ("refresh not due", situation(done(), seen("R", podrun()), record={"refresh_at": NOW + 1}), ["status Running"]),
    (
        "refresh after the end",
        situation(done(), seen(status=ended()), record={"refresh_at": NOW}),
        ["status Succeeded"],
    ),
    (
        "refresh, cluster away",
        situation(done(), seen("R", podrun()), record={"refresh_at": NOW}, reachable=False, trouble="x"),
        ["status Running"],
    ),
    # deletion
    ("deleted before submission", situation(GONE), ["status Failed"]),
    ("deleted before submission, status written", situation(pod(phase="Failed", deleting=NOW)), ["delete"]),
    ("deleted, report not in", situation(GONE, sure=False, reachable=False), ["status Pending ContainerCreating"]),
    ("deleted while queued", situation(GONE, seen("Q")), ["announce Killing", "cancel 30", "status Pending PBSQueued"]),
    (
        "deleted while running",
        situation(GONE, seen("R", podrun())),
        ["announce Killing", "cancel 30", "status Running"],
    ),
    (
        "cannot be asked, until lately",
        situation(pod(deleting=NOW - 60), seen("R", podrun()), record={"cancel_failed_at": NOW - 14}),
        ["announce Killing", "cancel 30", "status Running"],
    ),
    (
        "cannot be asked",
        situation(pod(deleting=NOW - 60), seen("R", podrun()), record={"cancel_failed_at": NOW - 15}),
        ["cancel 0 force", "status Running"],
    ),
    ("cancel sent", situation(GONE, seen("R", podrun()), record={"cancel_grace": 30}), ["status Running"]),
    (
        "shorter grace asked",
        situation(pod(deleting=NOW + 5, grace=5), seen("R", podrun()), record={"cancel_grace": 30}),
        ["announce Killing", "cancel 5", "status Running"],
    ),
    (
        "no grace asked",
        situation(pod(deleting=NOW, grace=0), seen("R", podrun())),
        ["announce Killing", "cancel 2", "status Running"],
    ),
    (
        "deleted, its status was refused once",
        situation(pod(phase="Running", deleting=NOW), seen(status=ended()), record={"refusals": 1}),
        ["status Succeeded"],
    ),
    (
        "deleted, its status was refused once just now",
        situation(
            pod(phase="Running", deleting=NOW), seen(status=ended()), record={"refusals": 1, "refused_until": NOW + 9}
        ),
        [],
    ),
    (
        "deleted, no status of it is taken",
        situation(pod(phase="Running", deleting=NOW), seen(status=ended()), record={"refusals": 2}),
        ["delete"],
    ),
    (
        "its status is refused for now, the job ends",
        situation(
            pod(phase="Running", metadata__annotations=DONE),
            seen(status=ended()),
            record={"refusals": 1, "refused_until": NOW + 9},
        ),
        [],
    ),
    (
        "podrun's status cannot be read",
        situation(
            pod(phase="Running", metadata__annotations=DONE, status__containerStatuses=RAN),
            seen("R", status=None, claimed=True, status_problem="version 9 is not known"),
        ),
        ["announce StatusUnreadable"],
    ),
    (
        "longer grace asked",
        situation(pod(deleting=NOW + 60, grace=60), seen("R", podrun()), record={"cancel_grace": 30}),
        ["status Running"],
    ),
    (
        "grace long over",
        situation(pod(deleting=NOW - 16), seen("R", podrun()), record={"cancel_grace": 30}),
        ["cancel 0 force", "status Running"],
    ),
    (
        "forced a moment ago",
        situation(pod(deleting=NOW - 16), seen("R", podrun()), record={"cancel_grace": 30, "forced_at": NOW - 5}),
        ["status Running"],
    ),
    ("deleted, cluster away", situation(GONE, seen("R", podrun()), reachable=False, trouble="x"), ["status Running"]),
    ("deleted, job ended well", situation(GONE, seen(status=ended(reason="Stopped"))), ["status Succeeded"]),
    ("deleted, job ended badly", situation(GONE, seen(status=ended("Failed", reason="Stopped"))), ["status Failed"]),
    (
        "deleted, queued job gone",
        situation(GONE, seen(pbs=absent(), stopping=True)),
        ["status Failed"],
    ),
    ("deleted, tombstone only", situation(GONE, seen(job_id=None, stopping=True)), ["status Failed"]),
    (
        "deleted while the lock stands",
        situation(GONE, seen(job_id=None, submitting=True)),
        ["announce Killing", "cancel 30", "status Pending ContainerCreating"],
    ),
    # after the end
    ("ended", situation(pod(phase="Succeeded"), seen(status=ended())), []),
    ("ended, directory removed", situation(pod(phase="Succeeded")), []),
    ("ended, another status comes", situation(pod(phase="Succeeded"), seen(status=ended("Failed"))), []),
    ("failed by us, job lives", situation(pod(phase="Failed"), seen("Q")), ["cancel 0 force"]),
    ("failed by us, force sent", situation(pod(phase="Failed"), seen("Q"), record={"forced_at": NOW - 1}), []),
    ("ended and deleted", situation(pod(phase="Succeeded", deleting=NOW), seen(status=ended())), ["delete"]),
    (
        "ended and deleted, job lives",
        situation(pod(phase="Failed", deleting=NOW), seen("R", podrun())),
        ["cancel 0 force"],
    ),
    # DaemonSets
    ("daemon pod", situation(pod(metadata__ownerReferences=DAEMON)), ["status Pending DaemonSetOnVirtualNode"]),
    ("daemon pod deleted", situation(pod(metadata__ownerReferences=DAEMON, deleting=NOW)), ["delete"]),
]


@pytest.mark.parametrize(("case", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_actions(case: Situation, expected: list[str]) -> None:
    assert words(decide(case)) == expected


@pytest.mark.parametrize("case", [c[1] for c in CASES], ids=[c[0] for c in CASES])
def test_deciding_changes_nothing(case: Situation) -> None:
    before = repr(case)
    assert decide(case) == decide(case)
    assert repr(case) == before


@pytest.mark.parametrize("case", [c[1] for c in CASES], ids=[c[0] for c in CASES])
def test_a_status_that_was_written_is_not_written_again(case: Situation) -> None:
    """What the API server then holds satisfies the next decision: no patch loop."""
    writes = [a for a in decide(case).actions if isinstance(a, WriteStatus)]
    if not writes:
        return
    case.pod["status"] = {k: v for k, v in (case.pod["status"] | writes[0].fields).items() if v is not None}
    diary = {"hold": case.record.hold, "failure": case.record.failure, "retry_at": NOW + 1}
    again = decide(replace(case, record=Record(**diary)))
    assert not [a for a in again.actions if isinstance(a, WriteStatus)]


class TestMessages:
    """Only a message changed: at most one write in five minutes."""

    def case(self, record: dict[str, Any], comment: str = "Not Running: B") -> Situation:
        thing = done()
        first = status(situation(thing, seen(pbs=PbsView(Seen.PRESENT, NOW, "Q", comment="Not Running: A"))))
        thing["status"] = first
        observation = seen(pbs=PbsView(Seen.PRESENT, NOW, "Q", comment=comment))
        return situation(thing, observation, record={"wrote": first, "wrote_at": NOW - 1} | record)

    def test_the_first_change_is_written(self) -> None:
        assert "status Pending PBSQueued" in words(decide(self.case({})))

    def test_the_next_one_waits(self) -> None:
        decision = decide(self.case({"message_at": NOW - 10}))
        assert words(decision) == ["announce PBSWaiting"]
        assert decision.wake_at == NOW + 290

    def test_a_change_of_state_does_not_wait(self) -> None:
        case = self.case({"message_at": NOW - 10})
        running = situation(case.pod, seen("R", podrun()), record={"wrote": case.record.wrote, "message_at": NOW - 10})
        assert words(decide(running)) == ["status Running"]


def test_a_status_that_somebody_else_changed_is_sent_again_after_ten_seconds() -> None:
    thing = done()
    wrote = status(situation(thing, seen("R", podrun())))
    thing["status"] = wrote | {"conditions": [c | {"status": "False"} for c in wrote["conditions"]]}
    early = decide(situation(thing, seen("R", podrun()), record={"wrote": wrote, "wrote_at": NOW - 2}))
    assert (words(early), early.wake_at) == ([], NOW + 8)
    late = decide(situation(thing, seen("R", podrun()), record={"wrote": wrote, "wrote_at": NOW - 11}))
    assert words(late) == ["status Running"]


def test_an_api_server_that_keeps_no_observed_generation_is_not_told_again_and_again() -> None:
    """Kubernetes 1.33 gives pods a generation, and drops what is observed of it."""
    thing = done()
    thing["metadata"]["generation"] = 2
    wrote = status(situation(thing, seen("R", podrun())))
    assert wrote["observedGeneration"] == 2
    kept = {key: value for key, value in wrote.items() if key != "observedGeneration"}
    kept["conditions"] = [{k: v for k, v in c.items() if k != "observedGeneration"} for c in wrote["conditions"]]
    thing["status"] = kept
    assert words(decide(situation(thing, seen("R", podrun()), record={"wrote": wrote, "wrote_at": NOW - 60}))) == []
    stale = [c | {"observedGeneration": 1} for c in wrote["conditions"]]
    thing["status"] = wrote | {"observedGeneration": 1, "conditions": stale}
    assert words(decide(situation(thing, seen("R", podrun())))) == ["status Running"]


def test_a_pod_too_large_is_looked_at_when_its_time_is_over() -> None:
    case = situation(pod(), misfit=BIG, record={"misfit_since": NOW - 200})
    first = decide(case)
    assert first.wake_at == NOW + 400
    writes = [a for a in first.actions if isinstance(a, WriteStatus)]
    assert writes[0].fields["containerStatuses"][0]["state"]["waiting"]["message"] == BIG
    late = decide(replace(case, now=NOW + 400)).actions
    assert [a.fields["message"] for a in late if isinstance(a, WriteStatus)] == [BIG]


def test_the_wait_for_a_larger_host_goes_on_across_restarts() -> None:
    started = {"phase": "Pending", "startTime": "2026-11-30T09:00:00Z"}
    waiting = [{"name": "main", "state": {"waiting": {"reason": "PBSUnsatisfiable"}}}]
    shown = {"metadata": {}, "status": started | {"containerStatuses": waiting}}
    assert waits_unsatisfiable(shown) == 1_796_029_200.0
    assert waits_unsatisfiable({"metadata": {}, "status": started}) is None
    assert waits_unsatisfiable({"metadata": {}}) is None


def test_a_login_node_that_is_away_for_an_hour_ends_nothing() -> None:
    for minutes in range(0, 61, 5):
        for observation in (seen("Q"), seen("R", podrun()), seen("H"), None):
            away = situation(
                done(status__containerStatuses=RAN), observation, reachable=False, sure=False, trouble="x",
                now=NOW + 60 * minutes, record={"refresh_at": NOW},
            )  # fmt: skip
            phases = [a.fields["phase"] for a in decide(away).actions if isinstance(a, WriteStatus)]
            assert not {"Failed", "Succeeded"} & set(phases)
            assert not [a for a in decide(away).actions if isinstance(a, Cancel | Refresh)]


def test_a_podrun_that_starts_is_not_worth_a_patch_of_its_own() -> None:
    queued = status(situation(pod(), seen("R")))
    starting = podrun("Starting", containers={"main": container("waiting", reason="ContainerCreating")})
    assert status(situation(pod(), seen("R", starting))) == queued


@pytest.mark.parametrize(
    ("observation", "written", "writes"),
    [
        (seen(), NOW - 1, False),
        (seen(), NOW - 6, True),
        (seen(), 0.0, True),
        (seen("Q"), NOW - 1, True),
        (seen("", podrun()), NOW - 1, True),
    ],
    ids=["not looked yet", "PBS did not tell", "after a restart", "PBS has told", "it runs already"],
)
def test_the_first_word_of_pbs_is_waited_for(observation: Observation, written: float, writes: bool) -> None:
    there = pod(metadata__annotations=DONE)
    decision = decide(situation(there, observation, record={"wrote_at": written}))
    assert any(isinstance(action, WriteStatus) for action in decision.actions) == writes
    assert writes or decision.wake_at == written + 5.0
