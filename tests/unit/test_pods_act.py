"""What errors of the cluster make of a pod: the table from the adapter's errors to holds and failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memorykube import MemoryKube
from podcases import NOW, UID, pod
from virtualtime import VirtualClock, settle

from bridge.api.settings import Cluster
from bridge.kube import paths
from bridge.plan.model import NodeFacts
from bridge.plan.plan import plan
from bridge.pods.act import UNNOTICED, Scene, act
from bridge.pods.decide import Action, Annotate, AnnotateSpan, Submit
from bridge.pods.inputs import InputSource
from bridge.pods.record import Record
from pbs_adapter import errors
from pbs_adapter.models import JobRef, JobRequest

CLUSTER = Cluster.model_validate(
    {
        "name": "alpha",
        "queue": "workq",
        "images": [{"image": "*"}],
        "accounts": [{"transport": {"type": "local"}, "sharedTrust": True}],
    }
)
THING = pod(spec__containers=[{"name": "main", "image": "sh", "command": ["true"]}])


class Link:
    """Takes jobs, or raises what it was given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.jobs: list[JobRequest] = []

    async def submit(self, job: JobRequest) -> str:
        if self.error is not None:
            raise self.error
        self.jobs.append(job)
        return "12.alpha"


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def event(self, thing: dict[str, Any], kind: str, reason: str, message: str) -> None:
        self.seen.append((kind, reason, message))


async def submit(link: Link, record: Record, thing: dict[str, Any] = THING) -> Events:
    events, clock = Events(), VirtualClock(NOW)
    scene = Scene(
        kube=None, link=link, events=events, inputs=InputSource(None, clock), clock=clock,  # type: ignore[arg-type]
        cluster=CLUSTER, instance="i", facts=lambda: NodeFacts("pbs-alpha"), observe_submit=lambda _seconds: None,
    )  # fmt: skip
    await act(scene, Submit(), thing, plan(thing, CLUSTER), JobRef("default", UID), record)
    return events


class Slow(Link):
    """Takes a job after some seconds of the clock."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    async def submit(self, job: JobRequest) -> str:
        await self.clock.sleep(self.seconds)
        return await super().submit(job)


@pytest.mark.parametrize(("takes", "shown"), [(UNNOTICED / 2, False), (UNNOTICED * 2, True)])
async def test_a_submission_is_shown_if_it_takes_long(takes: float, shown: bool) -> None:
    kube, clock = MemoryKube(), VirtualClock(NOW)
    await kube.create(paths.pods("default"), THING)
    link, record = Slow(clock, takes), Record()
    scene = Scene(
        kube=kube, link=link, events=Events(), inputs=InputSource(kube, clock), clock=clock,
        cluster=CLUSTER, instance="i", facts=lambda: NodeFacts("pbs-alpha"), observe_submit=lambda _seconds: None,
    )  # fmt: skip
    action = Submit({"phase": "Pending"})
    work = asyncio.ensure_future(act(scene, action, THING, plan(THING, CLUSTER), JobRef("default", UID), record))
    await settle()
    await clock.advance(takes + 0.1)
    changed = await work
    assert len(link.jobs) == 1
    assert (changed or {}).get("status") == ({"phase": "Pending"} if shown else None)


async def test_a_job_that_pbs_takes() -> None:
    link, record = Link(), Record(attempts=2)
    events = await submit(link, record)
    assert [job.ref for job in link.jobs] == [JobRef("default", UID)]
    assert (record.hold, record.failure, record.attempts) == (None, None, 0)
    assert events.seen == [("Normal", "PBSSubmitted", "Submitted to cluster alpha as job 12.alpha to queue workq")]


@pytest.mark.parametrize(
    ("error", "reason", "pause"),
    [
        (errors.Unreachable("no route"), "ClusterUnreachable", 4.0),
        (errors.PbsUnavailable("server down"), "ClusterUnreachable", 4.0),
        (errors.Backlog("limit"), "PBSBacklog", 15.0),
        (errors.SiteFault("a hook threw"), "PBSSiteFault", 4.0),
        (errors.OutcomeUnknown("lost"), "ContainerCreating", 2.0),
    ],
)
async def test_what_is_tried_again(error: Exception, reason: str, pause: float) -> None:
    record = Record()
    events = await submit(Link(error), record)
    assert record.failure is None
    assert record.hold is not None
    assert (record.hold.reason, record.hold.message, record.retry_at) == (reason, str(error), NOW + pause)
    assert [(kind, why) for kind, why, _ in events.seen] == [("Warning", reason)]
    assert (await submit(Link(error), record)).seen == []  # the same trouble is told once


async def test_pauses_grow_to_a_minute() -> None:
    record, pauses = Record(), []
    for _ in range(8):
        await submit(Link(errors.Unreachable("x")), record)
        pauses.append(record.retry_at - NOW)
    assert pauses == [4, 8, 16, 32, 60, 60, 60, 60]


async def test_what_pbs_refuses_fails_the_pod_with_its_words() -> None:
    record = Record()
    await submit(Link(errors.Rejected("qsub: Unknown queue")), record)
    assert record.failure is not None
    assert (record.failure.reason, record.failure.message) == ("PBSRejected", "qsub: Unknown queue")


async def test_what_pbs_refuses_of_a_replica_set_waits_and_is_tried_again() -> None:
    record = Record()
    owned = {**THING["metadata"], "ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}
    thing = {**THING, "metadata": owned, "spec": {**THING["spec"], "restartPolicy": "Always"}}
    events = await submit(Link(errors.Rejected("qsub: Queue is not enabled")), record, thing)
    assert record.failure is None
    assert record.hold is not None
    assert (record.hold.reason, record.retry_at) == ("PBSRejected", NOW + 300)
    assert events.seen == [("Warning", "PBSRejected", "qsub: Queue is not enabled")]
    await submit(Link(), record, thing)  # the queue is enabled again
    assert (record.hold, record.failure) == (None, None)


async def test_an_account_that_obeys_another_agent_ends_no_pod() -> None:
    record = Record()
    await submit(Link(errors.Fenced("epoch 3")), record)
    assert record.failure is None
    assert record.hold is not None
    assert record.hold.reason == "ClusterUnreachable"


@pytest.mark.parametrize(
    ("action", "written"),
    [
        (
            Annotate("12.alpha"),
            {"job-id": "12.alpha", "cluster": "alpha", "submitted": UID, "account": "default"},
        ),
        (AnnotateSpan("1 domain"), {"numa": "1 domain"}),
    ],
)
async def test_a_node_writes_annotations_with_the_status_alone(action: Action, written: dict[str, str]) -> None:
    """A kubelet may not patch pods, only their status."""
    kube, clock = MemoryKube(), VirtualClock(NOW)
    thing = pod(spec__tolerations=[{"key": "node.kubernetes.io/not-ready", "tolerationSeconds": 300}])
    await kube.create(paths.pods("default"), thing)
    scene = Scene(
        kube=kube, link=Link(), events=Events(), inputs=InputSource(kube, clock), clock=clock,
        cluster=CLUSTER, instance="i", facts=lambda: NodeFacts("pbs-alpha"), observe_submit=lambda _seconds: None,
    )  # fmt: skip
    kube.writes.clear()
    changed = await act(scene, action, thing, plan(thing, CLUSTER), JobRef("default", UID), Record())
    assert changed is not None
    found = changed["metadata"].get("annotations", {})
    assert {key.removeprefix("status.hpc-bridge.io/"): value for key, value in found.items()} == written
    assert changed["spec"]["tolerations"] == thing["spec"]["tolerations"]
    assert kube.writes == [("patch", paths.pod_status("default", thing["metadata"]["name"]))]


async def test_a_pod_that_asks_for_too_much_waits_and_is_not_looked_at_again_at_once() -> None:
    """A kilobyte of manifest that would be gigabytes of variables: nothing is submitted, and the reason is told."""
    env = [{"name": "A", "value": "x" * 1000}, {"name": "B", "value": "$(A)" * 1000}]
    thing = pod(spec__containers=[{"name": "main", "image": "sh", "command": ["true"], "env": env}])
    link, record, events = Link(), Record(), Events()
    clock = VirtualClock(NOW)
    scene = Scene(
        kube=None, link=link, events=events, inputs=InputSource(None, clock), clock=clock,  # type: ignore[arg-type]
        cluster=CLUSTER, instance="i", facts=lambda: NodeFacts("pbs-alpha"), observe_submit=lambda _seconds: None,
    )  # fmt: skip
    await act(scene, Submit(), thing, plan(thing, CLUSTER), JobRef("default", UID), record)
    assert link.jobs == []
    assert record.hold is not None
    assert record.hold.reason == "CreateContainerConfigError"
    assert "variable B of container main would be longer than 131071 bytes" in record.hold.message
    assert record.retry_at == NOW + 60


async def test_what_an_author_should_know_is_told_once_the_job_is_there() -> None:
    thing = pod(spec__serviceAccountName="workflow", spec__containers=THING["spec"]["containers"])
    events, clock = Events(), VirtualClock(NOW)
    scene = Scene(
        kube=None, link=Link(), events=events, inputs=InputSource(None, clock), clock=clock,  # type: ignore[arg-type]
        cluster=CLUSTER, instance="i", facts=lambda: NodeFacts("pbs-alpha"), observe_submit=lambda _seconds: None,
    )  # fmt: skip
    await act(scene, Submit(), thing, plan(thing, CLUSTER), JobRef("default", UID), Record())
    assert [(kind, reason) for kind, reason, _ in events.seen][-1] == ("Warning", "NoAPIServerAddress")


async def test_a_fault_of_the_site_is_waited_for_and_not_for_ever() -> None:
    link, record = Link(errors.SiteFault("hook 'x' encountered an exception")), Record()
    pauses = []
    for _ in range(8):
        await submit(link, record)
        pauses.append(record.retry_at - NOW)
    assert record.failure is None
    assert pauses == sorted(pauses), "growing pauses"
    assert pauses[-1] > 4 * pauses[0]
    record.fault_since = NOW - CLUSTER.site_fault_limit
    await submit(link, record)
    assert record.failure is not None
    assert record.failure.reason == "PBSSiteFault"
    assert "siteFaultLimit" in record.failure.message
