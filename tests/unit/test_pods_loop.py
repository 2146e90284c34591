"""The loop of one node's pods in virtual time: slow qsubs, late answers, refusals, restarts, other settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from censuses import census
from embedded import EmbeddedCluster
from podcases import ended, pod, podrun
from podkube import PodKube
from virtualtime import VirtualClock

from bridge.api import names
from bridge.api.settings import Cluster
from bridge.clusters.link import ClusterLink
from bridge.kube import paths
from bridge.kube.clock import rfc3339
from bridge.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound, Unavailable
from bridge.plan.model import NodeFacts
from bridge.pods.act import Scene
from bridge.pods.inputs import InputSource
from bridge.pods.loop import PodLoop
from pbs_adapter.errors import Retry
from pbs_adapter.models import JobRef, JobRequest, Observation, PbsView, Seen

Json = dict[str, Any]
MAPPED = [{"image": "sh"}]


def settings(*, images: object = MAPPED, namespaces: dict[str, list[str]] | None = None) -> Cluster:
    served = namespaces or {"default": ["*"]}
    accounts = [
        {"name": name, "transport": {"type": "local"}, "sharedTrust": True, "namespaces": spaces}
        for name, spaces in served.items()
    ]
    return Cluster.model_validate({"name": "alpha", "queue": "workq", "images": images, "accounts": accounts})


class SlowCluster(EmbeddedCluster):
    """A qsub takes `qsub_takes` seconds, eight at a time, as in the helper; notes when it is asked to cancel what."""

    def __init__(self, clock: VirtualClock, accounts: tuple[str, ...]) -> None:
        super().__init__(census, accounts, clock)
        self.clock, self.qsub_takes = clock, 0.0
        self.cancels: list[tuple[float, JobRef, int, bool]] = []
        self.submitted: list[JobRequest] = []
        self.no_room = False
        self._slots = asyncio.Semaphore(8)

    async def submit(self, job: JobRequest) -> str:
        async with self._slots:
            if self.qsub_takes:
                await self.clock.sleep(self.qsub_takes)
            self.submitted.append(job)
            return await super().submit(job)

    async def cancel(self, ref: JobRef, grace: int, *, force: bool = False) -> None:
        if self.no_room and not force:
            raise Retry("no space left on device")
        self.cancels.append((self.clock.monotonic(), ref, grace, force))
        await super().cancel(ref, grace, force=force)


@dataclass
class Events:
    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def event(self, thing: Json, kind: str, reason: str, message: str) -> None:
        self.seen.append((thing["metadata"]["name"], reason, message))

    def reasons(self, name: str) -> list[str]:
        return [reason for who, reason, _ in self.seen if who == name]


@dataclass
class Stage:
    clock: VirtualClock
    kube: PodKube
    pbs: SlowCluster
    events: Events
    address: str = "10.0.0.1"
    loop: PodLoop = field(init=False)
    link: ClusterLink = field(init=False)

    @asynccontextmanager
    async def agent(self, cluster: Cluster) -> AsyncIterator[None]:
        """One process of the agent, from its start to its end."""
        self.link = ClusterLink(cluster, self.pbs, clock=self.clock)
        scene = Scene(
            kube=self.kube, link=self.link, events=self.events, inputs=InputSource(self.kube, self.clock),
            clock=self.clock, cluster=cluster, instance="i", facts=lambda: NodeFacts("pbs-alpha", self.address),
            observe_submit=lambda _seconds: None,
        )  # fmt: skip
        self.loop = PodLoop(scene, self.link, "pbs-alpha", lambda: True)
        self.link.on_change.append(self.loop.wake)
        self.link.on_health.append(self.loop.wake_all)
        tasks = [asyncio.ensure_future(self.link.run()), asyncio.ensure_future(self.loop.run())]
        try:
            yield
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def now(self, name: str, namespace: str = "default") -> Json:
        """The pod as the API server has it."""
        return self.kube.objects[paths.pod(namespace, name)]

    def is_there(self, name: str, namespace: str = "default") -> bool:
        return paths.pod(namespace, name) in self.kube.objects

    def runs(self, thing: Json, account: str = "default", **status: Any) -> None:
        """podrun tells that the pod's container runs."""
        self.pbs.put(account, running(thing["metadata"]["uid"], **status))


def running(uid: str, **status: Any) -> Observation:
    view = PbsView(Seen.PRESENT, 0.0, "R", queue="workq")
    return Observation(uid, job_id="7.alpha", claimed=True, pbs=view, status=podrun(**status))


def made(name: str, namespace: str = "default", **changes: Any) -> Json:
    thing = pod(**changes)
    thing["metadata"] |= {"name": name, "namespace": namespace, "uid": f"uid-of-{name}"}
    thing["spec"]["containers"] = [{"name": "main", "image": "sh", "command": ["true"]}]
    return thing


def stage(*accounts: str) -> Stage:
    clock = VirtualClock()
    return Stage(clock, PodKube(clock), SlowCluster(clock, accounts or ("default",)), Events())


async def started(s: Stage, thing: Json, account: str = "default") -> Json:
    """The pod, submitted and running."""
    stored = await s.kube.add(thing)
    await s.clock.advance(3)
    s.runs(stored, account)
    await s.clock.advance(3)
    assert stored["status"]["phase"] == "Running"
    return stored


async def test_five_hundred_slow_submissions_delay_no_deletion_and_no_status() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        victim = await started(s, made("victim"))
        worker = await started(s, made("worker"))
        s.pbs.qsub_takes = 30.0
        for number in range(500):
            await s.kube.add(made(f"burst-{number}"))
        await s.clock.advance(20)
        asked = s.clock.monotonic()
        s.kube.change(victim, deletionTimestamp=rfc3339(s.clock.time() + 30), deletionGracePeriodSeconds=30)
        s.pbs.put("default", Observation(worker["metadata"]["uid"], job_id="8.alpha", claimed=True, status=ended()))
        await s.clock.advance(2)
        assert [ref.uid for at, ref, _, _ in s.pbs.cancels if at < asked + 1] == ["uid-of-victim"]
        assert s.now("worker")["status"]["phase"] == "Succeeded"
        assert {status["phase"] for _, name, status in s.kube.statuses if name.startswith("burst")} == {"Pending"}
        waiting = s.now("burst-499")
        s.kube.change(waiting, deletionTimestamp=rfc3339(s.clock.time()), deletionGracePeriodSeconds=30)
        await s.clock.advance(15)
        assert not s.is_there("burst-499")  # its turn had not come
        await s.clock.advance(30)
        assert len({job.ref.uid for job in s.pbs.submitted}) == len(s.pbs.submitted)


async def test_an_answer_that_comes_late_does_not_bring_back_an_older_pod() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await s.kube.add(made("deleted-meanwhile"))
        await s.clock.advance(3)
        s.kube.answers_take = 5.0
        s.runs(thing)
        await s.clock.advance(1)
        s.kube.change(thing, deletionTimestamp=rfc3339(s.clock.time() + 30), deletionGracePeriodSeconds=30)
        await s.clock.advance(12)
        assert [ref.uid for _, ref, _, _ in s.pbs.cancels] == ["uid-of-deleted-meanwhile"]


@pytest.mark.parametrize("error", [Invalid(422, "Invalid", "no"), Forbidden(403, "Forbidden", "policy")])
async def test_a_status_that_is_refused_holds_up_nothing(error: Exception) -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, made("refused"))
        s.kube.refuse = lambda verb, path, body: error if path.endswith("/refused/status") else None
        s.pbs.put("default", running("uid-of-refused", host_ip="x", message="changed"))
        s.kube.change(thing, deletionTimestamp=rfc3339(s.clock.time() + 30), deletionGracePeriodSeconds=30)
        await s.clock.advance(1)
        assert [grace for _, _, grace, _ in s.pbs.cancels] == [30]
        s.pbs.put("default", Observation("uid-of-refused", job_id="7.alpha", claimed=True, status=ended()))
        other = await started(s, made("other"))
        await s.clock.advance(60)
        assert not s.is_there("refused")
        assert "StatusRefused" in s.events.reasons("refused")
        assert other["status"]["phase"] == "Running"


async def test_a_refused_status_is_tried_less_and_less_often_and_then_reduced() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        await started(s, made("refused"))
        tries: list[Json] = []

        def refuse(verb: str, path: str, body: Json) -> Exception | None:
            tries.append(body["status"])
            return Invalid(422, "Invalid", "conditions") if "conditions" in body["status"] else None

        s.kube.refuse = refuse
        s.pbs.put("default", Observation("uid-of-refused", job_id="7.alpha", claimed=True, status=ended("Failed")))
        await s.clock.advance(60)
        assert s.now("refused")["status"]["phase"] == "Failed"
        assert s.now("refused")["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert len(tries) == 2


async def test_a_pod_that_makes_the_agent_fail_fails_alone() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        odd = made("odd")
        odd["metadata"]["ownerReferences"] = [7]  # no API server gives this: it stands for what nobody thought of
        await s.kube.add(odd)
        await started(s, made("other"))
        await s.clock.advance(1200)
        assert s.events.reasons("odd")[0] == "AgentError"
        assert len(s.events.reasons("odd")) < 8


async def test_the_api_servers_wish_for_a_pause_is_heeded() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, made("busy"))
        times: list[float] = []

        def refuse(verb: str, path: str, body: Json) -> Exception | None:
            times.append(s.clock.monotonic())
            return Unavailable(429, "TooManyRequests", "later", retry_after=40.0)

        s.kube.refuse = refuse
        s.runs(thing, message="other", phase="Ended", result="Succeeded")
        await s.clock.advance(39)
        assert len(times) == 1


# What was submitted is never judged again


def annotated(thing: Json, account: str = "default", **more: str) -> Json:
    uid = thing["metadata"]["uid"]
    written = {names.SUBMITTED: uid, names.JOB_ID: "7.alpha", names.BOUND_ACCOUNT: account}
    thing["metadata"]["annotations"] |= written | more
    return thing


REFUSED_TODAY: dict[str, tuple[dict[str, Any], Cluster]] = {
    "an annotation": ({names.PREFIX + "note": "hello"}, settings()),
    "its image": ({}, settings(images=[{"image": "other"}])),
    "its namespace": ({}, settings(namespaces={"default": ["elsewhere"]})),
    "its account": ({}, settings(namespaces={"another": ["*"]})),
    "a debug container": ({"debug": "yes"}, settings()),
}


@pytest.mark.parametrize("what", REFUSED_TODAY)
@pytest.mark.parametrize("first", ["report", "pods"])
async def test_a_restart_ends_no_pod_that_would_be_refused_today(what: str, first: str) -> None:
    changes, today = REFUSED_TODAY[what]
    s = stage(*{"default", *(account.name for account in today.accounts)})
    thing = annotated(made("week-long", phase="Running"), **{k: v for k, v in changes.items() if k != "debug"})
    if "debug" in changes:
        thing["spec"]["ephemeralContainers"] = [{"name": "debugger", "image": "busybox"}]
    thing["status"]["containerStatuses"] = [
        {"name": "main", "state": {"running": {"startedAt": rfc3339(1)}}, "restartCount": 0, "lastState": {}}
    ]
    thing = await s.kube.add(thing)
    s.runs(thing)
    if first == "report":
        s.pbs.connect()
    async with s.agent(today):
        await s.clock.advance(5)
        s.pbs.connect()
        await s.clock.advance(400)
        assert s.now("week-long")["status"]["phase"] == "Running"
        assert not s.pbs.cancels
        assert not s.pbs.submitted
        if what == "its account":
            assert "NoClusterAccount" in s.events.reasons("week-long")
        else:
            s.kube.change(thing, deletionTimestamp=rfc3339(s.clock.time() + 30), deletionGracePeriodSeconds=30)
            await s.clock.advance(1)
            assert [ref for _, ref, _, _ in s.pbs.cancels] == [JobRef("default", "uid-of-week-long")]


@pytest.mark.parametrize("annotation", [True, False])
async def test_a_pod_stays_with_the_account_it_was_submitted_under(annotation: bool) -> None:
    """Its namespace is served by another one now; the agent was perhaps killed before it wrote the annotation."""
    s = stage("old", "new")
    thing = made("moved", "team", phase="Running" if annotation else "Pending")
    thing = await s.kube.add(annotated(thing, "old") if annotation else thing)
    s.runs(thing, "old")
    s.pbs.connect()
    async with s.agent(settings(namespaces={"new": ["team"], "old": ["other"]})):
        await s.clock.advance(200)
        assert s.now("moved", "team")["status"]["phase"] == "Running"
        assert not s.pbs.submitted
        assert s.loop.account_of(s.now("moved", "team")) == "old"
        s.kube.change(thing, deletionTimestamp=rfc3339(s.clock.time() + 30), deletionGracePeriodSeconds=30)
        await s.clock.advance(1)
        assert [ref.account for _, ref, _, _ in s.pbs.cancels] == ["old"]


async def test_another_account_has_no_say_in_a_pod() -> None:
    s = stage("liar", "honest")
    s.pbs.connect()
    async with s.agent(settings(namespaces={"liar": ["theirs"], "honest": ["team"]})):
        thing = await s.kube.add(made("mine", "team"))
        await s.clock.advance(3)
        s.runs(thing, "honest")
        await s.clock.advance(3)
        s.pbs.put("liar", Observation("uid-of-mine", job_id="9.alpha", claimed=True, status=ended()))
        await s.clock.advance(60)
        assert s.now("mine", "team")["status"]["phase"] == "Running"


async def test_a_forged_account_submits_nothing_there() -> None:
    s = stage("victim", "own")
    thing = annotated(made("forger", "team"), "victim")
    s.pbs.connect()
    async with s.agent(settings(namespaces={"victim": ["theirs"], "own": ["team"]})):
        await s.kube.add(thing)
        await s.clock.advance(200)
        assert not s.pbs.submitted
        assert s.now("forger", "team")["status"]["reason"] == "PBSJobVanished"


async def test_the_agents_address_may_change() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        await started(s, made("outlives"))
    s.address = "10.0.0.2"
    async with s.agent(settings()):
        await s.clock.advance(5)
        last = s.kube.statuses[-1][2]
        assert (last["hostIP"], last["hostIPs"]) == ("10.0.0.2", [{"$patch": "replace"}, {"ip": "10.0.0.2"}])
        assert "podIP" not in s.now("outlives")["status"]


# Whose object is gone


async def test_a_forced_deletion_leaves_the_pod_its_own_grace() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = made("forced")
        thing["spec"]["terminationGracePeriodSeconds"] = 45
        thing = await started(s, thing)
        s.kube.remove(thing)
        await s.clock.advance(50)
        assert [(grace, force) for _, _, grace, force in s.pbs.cancels] == [(45, False)]


async def test_a_forced_deletion_ends_the_job_although_the_spool_is_full() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, made("forced"))
        s.pbs.no_room = True
        s.kube.remove(thing)
        await s.clock.advance(60)
        assert next(force for _, _, _, force in s.pbs.cancels)
        assert "uid-of-forced" in (s.loop.known_uids() or ())
        await s.clock.advance(900)
        assert "uid-of-forced" not in (s.loop.known_uids() or ())  # the sweep may have it


async def test_comments_of_pbs_make_few_events() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        await s.kube.add(made("waits"))
        for number in range(60):
            await s.clock.advance(10)
            view = PbsView(Seen.PRESENT, 0.0, "Q", comment=f"Not Running: {number} jobs before it", queue="workq")
            s.pbs.put("default", Observation("uid-of-waits", job_id="1.alpha", pbs=view))
        assert s.events.reasons("waits").count("PBSWaiting") <= 3


# Accounts that tell of pods which are not theirs


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("tells", ["runs", "submitting"])
async def test_an_account_gets_nothing_of_a_pod_that_it_only_claims(before: bool, tells: str) -> None:
    """It has read the UID of a pod that waits: neither Secrets nor tokens go there, before and after a restart."""
    s = stage("liar", "honest")
    s.pbs.connect()
    thing = made("mine", "team")
    thing["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "s"}}]
    s.kube.objects[paths.secret("team", "s")] = {"metadata": {"name": "s"}, "data": {}}
    where = settings(namespaces={"liar": ["theirs"], "honest": ["team"]})
    if before:
        await s.kube.add(thing)
    lie = running("uid-of-mine") if tells == "runs" else Observation("uid-of-mine", submitting=True)
    s.pbs.put("liar", lie)
    for _ in range(2):
        async with s.agent(where):
            await s.clock.advance(3)
            if not before and not s.is_there("mine", "team"):
                await s.kube.add(thing)
            await s.clock.advance(200)
    assert all(job.ref.account == "honest" for job in s.pbs.submitted)
    assert bool(s.pbs.submitted) is not before
    assert all(ref.account == "honest" for _, ref, _, _ in s.pbs.written)
    assert s.now("mine", "team")["metadata"]["annotations"].get(names.BOUND_ACCOUNT) != "liar"


async def test_slow_looks_at_what_volumes_are_made_of_delay_no_status() -> None:
    s = stage()
    s.pbs.connect()
    read = s.kube.get

    async def slow(path: str) -> Json:
        await s.clock.sleep(90.0)
        return await read(path)

    for number in range(40):
        thing = annotated(made(f"p{number}"))
        thing["spec"]["volumes"] = [{"name": "v", "configMap": {"name": f"c{number}"}}]
        s.runs(await s.kube.add(thing))
    async with s.agent(settings()):
        s.kube.get = slow  # type: ignore[method-assign]
        await s.clock.advance(35)
        s.runs(made("other"))
        await s.clock.advance(3)
        await s.kube.add(annotated(made("other")))
        await s.clock.advance(2)
        assert s.now("other")["status"]["phase"] == "Running"


async def test_an_account_that_answers_no_cancel_delays_no_other_deletion() -> None:
    """It reports as if all were well, and leaves every change without an answer until the deadline of 300 s."""
    s = stage("liar", "honest")
    s.pbs.connect()
    cancel = s.pbs.cancel

    async def slow(ref: JobRef, grace: int, *, force: bool = False) -> None:
        if ref.account == "liar":
            await s.clock.sleep(300.0)
        await cancel(ref, grace, force=force)

    s.pbs.cancel = slow  # type: ignore[method-assign]
    async with s.agent(settings(namespaces={"liar": ["theirs"], "honest": ["team"]})):
        theirs = [await started(s, made(f"p{number}", "theirs"), "liar") for number in range(30)]
        mine = await started(s, made("mine", "team"), "honest")
        until = rfc3339(s.clock.time() + 30)
        for thing in theirs:
            s.kube.change(thing, deletionTimestamp=until, deletionGracePeriodSeconds=30)
        await s.clock.advance(1)
        s.kube.change(mine, deletionTimestamp=until, deletionGracePeriodSeconds=30)
        await s.clock.advance(1)
        assert [ref.account for _, ref, _, _ in s.pbs.cancels] == ["honest"]


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "gone"), Conflict(409, "Conflict", "another UID")])
async def test_a_pod_that_is_gone_while_the_watch_is_silent_is_asked_for_now_and_then(error: KubeError) -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        gone = await started(s, made("gone"))
        asked: list[float] = []

        def refuse(verb: str, path: str, body: object) -> KubeError | None:
            asked.append(s.clock.monotonic())
            return error if len(asked) < 500 else None  # a loop without a pause would never let the time go on

        s.kube.refuse = refuse
        s.pbs.put("default", Observation(gone["metadata"]["uid"], job_id="8.alpha", claimed=True, status=ended()))
        await s.clock.advance(20)
        assert 2 <= len(asked) <= 11


async def test_a_pod_that_waits_refused_is_judged_anew_when_its_owner_mends_it() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = made("mended")
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
        thing["metadata"] |= {"generation": 1, "ownerReferences": [owner]}
        thing["spec"] |= {"restartPolicy": "Always"}
        thing["spec"]["containers"][0]["image"] = "nowhere/x:1"
        stored = await s.kube.add(thing)
        await s.clock.advance(5)
        assert stored["status"]["phase"] == "Pending"
        assert not s.pbs.submitted
        stored["spec"]["containers"][0]["image"] = "sh"
        s.kube.change(stored, generation=2)
        await s.clock.advance(5)
        assert [job.ref.uid for job in s.pbs.submitted] == ["uid-of-mended"]
