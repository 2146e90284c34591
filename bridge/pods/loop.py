"""The loop that keeps the pods of one virtual node true: gathers what is known, decides, acts.

Watch events, reports of the cluster and timers only wake a pod; each pod is worked on by one task at a time. Pods
whose object is gone while their job may live are stopped here at once; those that vanished while no agent ran are left
to the sweep.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from bridge.api import reasons
from bridge.kube import paths
from bridge.kube.compact import compact
from bridge.kube.errors import Conflict, KubeError, NotFound
from bridge.kube.reflector import Reflector
from bridge.plan.fit import Fits
from bridge.plan.model import Json, Plan
from bridge.plan.plan import plan as make_plan
from bridge.pods import act as a
from bridge.pods.admission import admit, requests
from bridge.pods.decide import TERMINAL, Annotate, Decision, Submit, WriteStatus, decide, is_daemon
from bridge.pods.numa import NumaSpans
from bridge.pods.outcome import Stage, outcome
from bridge.pods.record import Failure, Record, Situation
from bridge.pods.status import waits_unsatisfiable
from pbs_adapter.models import Census, JobRef, Observation

log = structlog.get_logger(__name__)

WORKERS = 24
BURST = 6  # submissions at the same time from which on the rest of the work can wait
ERROR_PAUSE = 2.0
SIZE_PATIENCE = 30.0  # seconds after the start in which nothing is submitted before the cluster's size is known
CHANGING = (WriteStatus, Annotate, Submit)  # after these the next decision may be another one at once


class ObservedLink(a.Link, Protocol):
    """The link as the loop reads it."""

    @property
    def census(self) -> Census | None: ...
    def seen(self, uid: str) -> Observation | None: ...
    def complete(self, account: str) -> bool: ...
    def trouble(self, account: str) -> str: ...
    def account_for(self, namespace: str) -> str | None: ...


def prune(pod: Json) -> Json:
    """What of a pod is kept in memory: all but managedFields and the annotation of kubectl apply, words shared."""
    pod["metadata"].pop("managedFields", None)
    pod["metadata"].get("annotations", {}).pop("kubectl.kubernetes.io/last-applied-configuration", None)
    kept: Json = compact(pod)
    return kept


class PodLoop:
    """Owns the pods of one node. `run` never returns; `wake(uids)` is called when a report changed them."""

    def __init__(self, scene: a.Scene, link: ObservedLink, node: str, allowed: Callable[[], bool]) -> None:
        self._scene = scene
        self._link = link
        self._allowed = allowed
        self._records: dict[str, Record] = {}
        self._plans: dict[str, Plan] = {}
        self._requests: dict[str, dict[str, int]] = {}
        self._fits = Fits(scene.cluster.numa.hosts)
        self._numa = NumaSpans(scene.cluster, scene.observe_numa)
        self._began = scene.clock.time()
        self._dying: dict[str, JobRef] = {}  # object gone, job perhaps not
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._busy: set[str] = set()
        self._submitting = 0
        self._timers: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}  # each pod's earliest timer
        self._timer_wake = asyncio.Event()
        self.pods = Reflector(
            scene.kube, paths.pods(), field_selector=f"spec.nodeName={node}", prune=prune, on_change=self._changed
        )

    def __repr__(self) -> str:
        return f"<PodLoop pods={len(self.pods.items)} queued={len(self._queued)} busy={len(self._busy)}>"

    async def run(self) -> None:
        """Watch and work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pods.run(), name="pods.watch")
            tasks.create_task(self._tick(), name="pods.timers")
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"pods.worker{number}")

    def wake(self, uids: Iterable[str]) -> None:
        """Look at these pods soon."""
        for uid in uids:
            if uid not in self._queued and (uid in self.pods.items or uid in self._dying):
                self._queued.add(uid)
                self._queue.put_nowait(uid)

    def wake_all(self) -> None:
        """Look at every pod: the cluster's reachability changed."""
        self.wake(list(self.pods.items) + list(self._dying))

    @property
    def in_burst(self) -> bool:
        """Whether many pods are being submitted."""
        return self._submitting >= BURST

    def known_uids(self) -> set[str] | None:
        """UIDs whose pod exists; None before the first list."""
        return set(self.pods.items) | set(self._dying) if self.pods.synced.is_set() else None

    def _changed(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._gone(pod)
        self.wake([uid])

    def _gone(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self._records.pop(uid, None)
        self._plans.pop(uid, None)
        self._requests.pop(uid, None)
        self._scene.inputs.forget(uid)
        account = self._link.account_for(pod["metadata"]["namespace"])
        if account is not None and (uid in self._busy or outcome(self._link.seen(uid)).stage not in _DONE):
            self._dying[uid] = JobRef(account, uid)

    async def _tick(self) -> None:
        """Move due timers to the queue."""
        while True:
            now = self._scene.clock.time()
            while self._timers and self._timers[0][0] <= now:
                when, uid = heapq.heappop(self._timers)
                if self._due.get(uid) == when:
                    del self._due[uid]
                    self.wake([uid])
            pause = min(max(self._timers[0][0] - now, 0.01), 30.0) if self._timers else 30.0
            self._timer_wake.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._timer_wake.wait()
            except TimeoutError:
                pass

    def _later(self, uid: str, when: float) -> None:
        if self._due.get(uid, when + 1) <= when:
            return
        self._due[uid] = when
        first = not self._timers or when < self._timers[0][0]
        heapq.heappush(self._timers, (when, uid))
        if first:
            self._timer_wake.set()

    async def _work(self) -> None:
        while True:
            uid = await self._queue.get()
            self._queued.discard(uid)
            if uid in self._busy:
                self._later(uid, self._scene.clock.time() + 0.05)
                continue
            self._busy.add(uid)
            try:
                await self._handle(uid)
            except KubeError as error:
                log.warning("pod.api_error", pod_uid=uid, error=str(error))
                self._later(uid, self._scene.clock.time() + ERROR_PAUSE)
            finally:
                self._busy.discard(uid)

    async def _handle(self, uid: str) -> None:
        if not self._allowed():
            self._later(uid, self._scene.clock.time() + 1.0)
            return
        pod = self.pods.items.get(uid)
        if pod is None:
            await self._finish_dying(uid)
            return
        record = self._records.setdefault(uid, Record())
        plan = self._plan(pod)
        account = self._link.account_for(plan.namespace)
        if account is None and record.failure is None:
            text = f"no account of cluster {self._scene.cluster.name} serves namespace {plan.namespace}"
            record.failure = Failure(reasons.ACCOUNT_MISSING, text)
        ref = JobRef(account or "", uid)
        self._judge(pod, plan, record)
        decision = decide(self._situation(pod, plan, record, ref))
        await self._perform(decision, pod, plan, ref, record)

    def _plan(self, pod: Json) -> Plan:
        uid = pod["metadata"]["uid"]
        if uid not in self._plans:
            self._plans[uid] = make_plan(pod, self._scene.cluster)
        return self._plans[uid]

    def _judge(self, pod: Json, plan: Plan, record: Record) -> None:
        """Refuse what can never run, before anything is submitted."""
        if record.failure is not None or is_daemon(pod) or pod.get("status", {}).get("phase") in TERMINAL:
            return
        if self._link.seen(plan.uid) is not None:
            return
        allocatable = self._scene.facts().allocatable
        others = (p for u, p in self.pods.items.items() if u != plan.uid and p.get("status", {}).get("startTime"))
        rejected = admit(pod, others, allocatable, self._counted) if allocatable else None
        if rejected is not None:
            record.failure = rejected
        elif plan.refusals:
            record.failure = Failure(plan.reason, plan.message)

    def _misfit(self, pod: Json, plan: Plan, record: Record) -> str | None:
        """What of the pod no host is large enough for; None: not known yet. Notes in the record since when."""
        census, now = self._link.census, self._scene.clock.time()
        if self._link.seen(plan.uid) is not None or pod.get("status", {}).get("phase") in TERMINAL:
            return ""  # PBS has the job: it waits there
        if census is None:
            self._later(plan.uid, max(self._began + SIZE_PATIENCE, now + ERROR_PAUSE))
            needed = now < self._began + SIZE_PATIENCE or plan.numa == "require"  # vnodes decide how that is submitted
            return None if needed else ""
        fit = self._fits.of(plan.options, census, plan.numa)
        record.over, misfit = "; ".join(fit.over), "" if fit.over else "; ".join(fit.too_big)
        if not misfit:
            record.misfit_since = 0.0
        elif not record.misfit_since:
            record.misfit_since = waits_unsatisfiable(pod) or now
        return misfit

    def _counted(self, pod: Json) -> dict[str, int]:
        uid = pod["metadata"]["uid"]
        if uid not in self._requests:
            self._requests[uid] = requests(pod)
        return self._requests[uid]

    def _situation(self, pod: Json, plan: Plan, record: Record, ref: JobRef) -> Situation:
        trouble = self._link.trouble(ref.account) if ref.account else ""
        held = outcome(self._link.seen(ref.uid)).stage is Stage.HELD
        record.held_since = (record.held_since or self._scene.clock.time()) if held else 0.0
        return Situation(
            pod=pod,
            record=record,
            seen=self._link.seen(ref.uid),
            sure=not ref.account or self._link.complete(ref.account),
            reachable=bool(ref.account) and not trouble,
            trouble=trouble,
            host_ip=self._scene.facts().host_ip,
            now=self._scene.clock.time(),
            misfit=self._misfit(pod, plan, record),
            patience=self._scene.cluster.unsatisfiable_after,
            held_limit=self._scene.cluster.held_limit,
            numa=self._numa.shown(pod, plan, self._link.census, self._link.seen(ref.uid), record),
        )

    async def _perform(self, decision: Decision, pod: Json, plan: Plan, ref: JobRef, record: Record) -> None:
        uid = ref.uid
        for action in decision.actions:
            submits = isinstance(action, Submit)
            if submits:
                plan = self._numa.submitted(plan, self._link.census, record)
            self._submitting += submits
            try:
                changed = await a.act(self._scene, action, pod, plan, ref, record)
            except (NotFound, Conflict):
                return  # the object is gone or another has its name: the watch will tell
            finally:
                self._submitting -= submits
            if changed is not None and uid in self.pods.items:
                pod = self.pods.items[uid] = prune(changed)
        if decision.wake_at:
            self._later(uid, decision.wake_at)
        if any(isinstance(action, CHANGING) for action in decision.actions):
            self.wake([uid])
        if uid not in self.pods.items:  # deleted meanwhile
            self._gone_while_busy(ref)

    def _gone_while_busy(self, ref: JobRef) -> None:
        if ref.account and outcome(self._link.seen(ref.uid)).stage not in _DONE:
            self._dying[ref.uid] = ref
            self.wake([ref.uid])

    async def _finish_dying(self, uid: str) -> None:
        """The object is gone (force delete): end the job without grace."""
        ref = self._dying.get(uid)
        if ref is None:
            return
        if outcome(self._link.seen(uid)).stage in _DONE and self._link.complete(ref.account):
            self._dying.pop(uid, None)
            self._records.pop(uid, None)
            return
        record = self._records.setdefault(uid, Record())
        now = self._scene.clock.time()
        if record.cancel_grace is None:
            await a.cancel(self._scene, ref, record, grace=0, force=False)
        elif now - record.forced_at >= ERROR_PAUSE * 5:
            await a.cancel(self._scene, ref, record, grace=0, force=True)
        self._later(uid, now + ERROR_PAUSE)


_DONE = (Stage.NONE, Stage.ENDED)
