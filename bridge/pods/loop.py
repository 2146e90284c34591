"""The loop that keeps the pods of one virtual node true: gathers what is known, decides, acts.

Watch events, reports of the cluster and timers only wake a pod; each pod is worked on by one task at a time, and what
goes wrong with one is shown on that pod and tried again after growing pauses. Submissions, which wait for PBS, have
workers of their own: nothing else ever waits for a qsub. Pods whose object is gone while their job may live are ended
here (`orphans`); those that vanished while no agent ran are left to the sweep.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace

import structlog

from bridge.api import reasons
from bridge.kube import paths
from bridge.kube.clock import BackOff, wait
from bridge.kube.compact import compact
from bridge.kube.errors import Conflict, KubeError, NotFound, Unavailable
from bridge.kube.reflector import Reflector
from bridge.plan.endings import kill_delay
from bridge.plan.fit import Fits
from bridge.plan.model import Json, Plan
from bridge.plan.plan import plan as make_plan
from bridge.pods import act as a
from bridge.pods import live
from bridge.pods.admission import admit, requests
from bridge.pods.binding import annotated_account, bound_account, claim_text, told_nothing
from bridge.pods.decide import TERMINAL, Annotate, Cancel, Decision, Refresh, Submit, WriteStatus, decide, is_daemon
from bridge.pods.numa import NumaSpans
from bridge.pods.orphans import Orphans, may_live
from bridge.pods.outcome import Stage, outcome
from bridge.pods.record import Failure, Record, Situation, was_submitted
from bridge.pods.status import waits_unsatisfiable
from pbs_adapter.models import JobRef

log = structlog.get_logger(__name__)

WORKERS = 24
REFRESHES = 8  # pods whose volumes are looked at at the same time, so that workers are left for all else
BURST = 6  # submissions at the same time from which on the rest of the work can wait
SUBMITTERS = 24  # submissions at the same time; the helper runs eight
SHOWN_AFTER = 10.0  # seconds that a pod waits for its turn to be submitted before its status tells of it
ERROR_PAUSE = 2.0
ERROR_PAUSE_MOST = 300.0
SETTLE = 60.0  # seconds after the start in which a pod of before waits until every account has told what it has
SIZE_PATIENCE = 30.0  # seconds after the start in which nothing is submitted before the cluster's size is known
CHANGING = (WriteStatus, Annotate, Submit)  # after these the next decision may be another one at once


def prune(pod: Json) -> Json:
    """What of a pod is kept in memory: all but managedFields and the annotation of kubectl apply, words shared."""
    pod["metadata"].pop("managedFields", None)
    pod["metadata"].get("annotations", {}).pop("kubectl.kubernetes.io/last-applied-configuration", None)
    kept: Json = compact(pod)
    return kept


class PodLoop:
    """Owns the pods of one node. `run` never returns; `wake(uids)` is called when a report changed them."""

    def __init__(self, scene: a.Scene, link: a.ObservedLink, node: str, allowed: Callable[[], bool]) -> None:
        self._scene, self._link, self._allowed = scene, link, allowed
        self._records: dict[str, Record] = {}
        self._plans: dict[str, Plan] = {}
        self._requests: dict[str, dict[str, int]] = {}
        self._fits = Fits(scene.cluster.numa.hosts)
        self._numa = NumaSpans(scene.cluster, scene.observe_numa)
        self._began = scene.clock.time()
        self._planned: dict[str, int] = {}  # the generation that a plan was made of
        self._orphans = Orphans()
        self._older: set[str] = set()  # bound before this process began to look: perhaps submitted by another
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._submissions: asyncio.Queue[str] = asyncio.Queue()
        self._to_submit: dict[str, float] = {}  # since when each waits for its turn
        self._busy: set[str] = set()
        self._pauses: dict[str, BackOff] = {}
        self._paused: dict[str, float] = {}  # until when; a change of the pod ends the pause
        self._submitting = 0
        self._refreshes = asyncio.Semaphore(REFRESHES)
        self._timers: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}  # each pod's earliest timer
        self._timer_wake = asyncio.Event()
        self.pods = Reflector(
            scene.kube, paths.pods(), field_selector=f"spec.nodeName={node}", prune=prune, on_change=self._changed,
            clock=scene.clock,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<PodLoop pods={len(self.pods.items)} queued={len(self._queued)} busy={len(self._busy)}>"

    async def run(self) -> None:
        """Watch and work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pods.run(), name="pods.watch")
            tasks.create_task(self._tick(), name="pods.timers")
            for number in range(WORKERS):
                tasks.create_task(self._work(self._queue, submitting=False), name=f"pods.worker{number}")
            for number in range(SUBMITTERS):
                tasks.create_task(self._work(self._submissions, submitting=True), name=f"pods.submitter{number}")

    def wake(self, uids: Iterable[str]) -> None:
        """Look at these pods soon."""
        for uid in uids:
            if uid not in self._queued and (uid in self.pods.items or uid in self._orphans):
                self._queued.add(uid)
                self._queue.put_nowait(uid)

    def wake_all(self) -> None:
        """Look at every pod: the cluster's reachability changed."""
        self.wake(list(self.pods.items) + self._orphans.uids())

    @property
    def in_burst(self) -> bool:
        """Whether many pods are being submitted."""
        return self._submitting >= BURST

    def known_uids(self) -> set[str] | None:
        """UIDs whose pod exists or is being ended here; None before the first list."""
        now = self._scene.clock.time()
        return set(self.pods.items) | self._orphans.owned(now) if self.pods.synced.is_set() else None

    def owner_of(self, uid: str) -> str | None:
        """The account that the pod's job belongs to; None while nothing binds it to one."""
        record = self._records.get(uid)
        if record is not None and record.account:
            return record.account
        pod = self.pods.items.get(uid)
        return self._orphans.account(uid) if pod is None else annotated_account(pod)

    def account_of(self, pod: Json) -> str | None:
        """The account that has the pod's job, or that serves its namespace where there is none yet."""
        meta = pod["metadata"]
        serving = self._link.account_for(meta["namespace"])
        holders = self._link.holders(meta["uid"]) if meta["uid"] in self._older else ()  # else nobody can have it
        return self.owner_of(meta["uid"]) or bound_account(pod, holders, serving)

    def _changed(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._gone(pod)
        elif kind == "ADDED" and not self.pods.synced.is_set():
            self._older.add(uid)
        self._paused.pop(uid, None)
        self.wake([uid])

    def _gone(self, pod: Json) -> None:
        uid, account = pod["metadata"]["uid"], self.account_of(pod)
        self._to_submit.pop(uid, None)
        for known in (self._records, self._plans, self._planned, self._requests, self._pauses, self._paused):
            known.pop(uid, None)
        self._older.discard(uid)
        self._scene.inputs.forget(uid)
        if account is not None and (uid in self._busy or self._may_live(account, uid)):
            self._orphans.add(JobRef(account, uid), pod, self._scene.clock.time())

    def _may_live(self, account: str, uid: str) -> bool:
        return may_live(self._link.seen(account, uid), sure=self._link.complete(account))

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
            await wait(self._scene.clock, self._timer_wake, pause)

    def _later(self, uid: str, when: float) -> None:
        if self._due.get(uid, when + 1) <= when:
            return
        self._due[uid] = when
        first = not self._timers or when < self._timers[0][0]
        heapq.heappush(self._timers, (when, uid))
        if first:
            self._timer_wake.set()

    async def _work(self, queue: asyncio.Queue[str], *, submitting: bool) -> None:
        while True:
            uid = await queue.get()
            if not submitting:
                self._queued.discard(uid)
            elif self._to_submit.pop(uid, None) is None:
                continue  # deleted before its turn came
            now = self._scene.clock.time()
            if uid in self._busy or now < self._paused.get(uid, 0.0):
                self._later(uid, max(now + 0.05, self._paused.get(uid, 0.0)))
                continue
            self._busy.add(uid)
            try:
                await self._handle(uid, may_submit=submitting)
                self._pauses.pop(uid, None)
                self._paused.pop(uid, None)
            except KubeError as error:
                self._troubled(uid, f"the API server refuses what the agent asks for this pod: {error}", error)
            except Exception as error:
                log.exception("pod.failed_to_handle", pod_uid=uid)
                self._troubled(uid, f"the agent failed on this pod: {type(error).__name__}: {error}", None)
            finally:
                self._busy.discard(uid)

    def _troubled(self, uid: str, text: str, error: KubeError | None) -> None:
        """Try this pod again after a pause that grows, and show why, unless it may pass by itself."""
        pause = self._pauses.setdefault(uid, BackOff(ERROR_PAUSE, ERROR_PAUSE_MOST))
        at = pause.pause(error.retry_after if error is not None else None)
        log.warning("pod.troubled", pod_uid=uid, error=text, pause=round(at, 1))
        pod = self.pods.items.get(uid)
        if pod is not None and not isinstance(error, Unavailable):
            record = self._records.setdefault(uid, Record())
            a.announce(self._scene, pod, record, "Warning", reasons.AGENT_ERROR, text[:1000], "troubled", every=300.0)
        self._paused[uid] = self._scene.clock.time() + at
        self._later(uid, self._paused[uid])

    async def _handle(self, uid: str, *, may_submit: bool) -> None:
        if not self._allowed():
            self._later(uid, self._scene.clock.time() + 1.0)
            return
        pod = self.pods.items.get(uid)
        if pod is None:
            await self._end_orphan(uid)
            return
        record = self._records.setdefault(uid, Record())
        account = self._bind(pod, record)
        plan = self._plan(pod, record)
        if account is not None and all(account != each.name for each in self._scene.cluster.accounts):
            text = f"the pod's job belongs to account {account}, which the settings have no more: it goes on, unseen"
            a.announce(self._scene, pod, record, "Warning", reasons.ACCOUNT_MISSING, text, "account", every=300.0)
        ref = JobRef(account or "", uid)
        self._judge(pod, plan, record, ref)
        decision = decide(self._situation(pod, plan, record, ref))
        if record.claimed:
            a.announce(self._scene, pod, record, "Warning", reasons.ACCOUNT_MISSING, claim_text(account), "claimed")
            decision = told_nothing(decision)
        await self._perform(self._in_turn(uid, decision, may_submit=may_submit), pod, plan, ref, record)

    def _in_turn(self, uid: str, decision: Decision, *, may_submit: bool) -> Decision:
        """The decision without its submission, which waits for its turn; what it would show, once that takes long."""
        submit = next((action for action in decision.actions if isinstance(action, Submit)), None)
        if submit is None:
            self._to_submit.pop(uid, None)
        if submit is None or may_submit:
            return decision
        now = self._scene.clock.time()
        if uid not in self._to_submit:
            self._to_submit[uid] = now
            self._submissions.put_nowait(uid)
        rest = tuple(action for action in decision.actions if action is not submit)
        shown_at = self._to_submit[uid] + SHOWN_AFTER
        if submit.shown is not None and now >= shown_at:
            return Decision((*rest, WriteStatus(submit.shown)), decision.wake_at)
        return Decision(rest, shown_at if submit.shown is not None else decision.wake_at)

    def _bind(self, pod: Json, record: Record) -> str | None:
        """The account of the pod's job, for good once there is one."""
        if record.account:
            return record.account
        uid = pod["metadata"]["uid"]
        account = self.account_of(pod)
        if account is not None and self._link.seen(account, uid) is not None:
            record.account, serving = account, self._link.account_for(pod["metadata"]["namespace"])
            record.claimed = account != serving and annotated_account(pod) is None
            record.annotated |= record.claimed  # what the account says itself is not written down as ours
        return account

    def _plan(self, pod: Json, record: Record) -> Plan:
        """The plan: of the pod as it is until it is submitted, then the one that it was submitted with."""
        uid, generation = pod["metadata"]["uid"], int(pod["metadata"].get("generation") or 0)
        seen = self._link.seen(record.account, uid)
        taken = was_submitted(pod) or outcome(seen).stage not in (Stage.NONE, Stage.SUBMITTING)
        stale = self._planned.get(uid) != generation and not taken
        if uid not in self._plans or stale:
            record.failure = record.failure if record.failure and record.failure.rejected else None  # of the old spec
            self._plans[uid] = make_plan(pod, self._scene.cluster)
            self._planned[uid] = generation
            self._requests.pop(uid, None)
        return self._plans[uid]

    def _judge(self, pod: Json, plan: Plan, record: Record, ref: JobRef) -> None:
        """Refuse what can never run, before anything is submitted; what was submitted is never judged again."""
        uid = plan.uid
        if record.failure is not None or is_daemon(pod) or pod.get("status", {}).get("phase") in TERMINAL:
            return
        if record.account or was_submitted(pod) or not (uid not in self._older or self._sure(ref)):
            return
        if not ref.account:
            text = f"no account of cluster {self._scene.cluster.name} serves namespace {plan.namespace}"
            record.failure = Failure(reasons.ACCOUNT_MISSING, text)
            return
        facts = self._scene.facts()
        others = (p for u, p in self.pods.items.items() if u != plan.uid and p.get("status", {}).get("startTime"))
        rejected = admit(pod, others, facts.allocatable, facts.node, self._counted) if facts.allocatable else None
        if rejected is not None:
            record.failure = rejected
        elif plan.refusals:
            record.failure = Failure(plan.reason, plan.message)

    def _misfit(self, pod: Json, plan: Plan, record: Record) -> str | None:
        """What of the pod no host is large enough for; None: not known yet. Notes in the record since when."""
        census, now = self._link.census, self._scene.clock.time()
        if record.account or pod.get("status", {}).get("phase") in TERMINAL:
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

    def _sure(self, ref: JobRef) -> bool:
        """Whether nothing of the pod is anywhere, when nothing is seen.

        One that was bound before this process began may have been submitted under an account that served its namespace
        then: all accounts are heard first, but one that cannot be reached holds the others' pods up for a minute only.
        """
        if ref.account and not self._link.complete(ref.account):
            return False
        settled = self._scene.clock.time() >= self._began + SETTLE
        return ref.uid not in self._older or settled or self._link.all_complete()

    def _situation(self, pod: Json, plan: Plan, record: Record, ref: JobRef) -> Situation:
        trouble = self._link.trouble(ref.account) if ref.account else ""
        seen = self._link.seen(ref.account, ref.uid)
        stage, now = outcome(seen).stage, self._scene.clock.time()
        record.held_since = (record.held_since or now) if stage is Stage.HELD else 0.0
        if stage not in (Stage.NONE, Stage.SUBMITTING, Stage.ENDED):
            live.note(pod, plan, record, now)
        return Situation(
            pod=pod,
            record=record,
            seen=seen,
            sure=self._sure(ref),
            reachable=bool(ref.account) and not trouble,
            trouble=trouble,
            host_ip=self._scene.facts().host_ip,
            now=now,
            misfit=self._misfit(pod, plan, record),
            patience=self._scene.cluster.unsatisfiable_after,
            held_limit=self._scene.cluster.held_limit,
            pod_networks=self._scene.cluster.pod_networks,
            image_ids=plan.image_ids,
            numa=self._numa.shown(pod, plan, self._link.census, seen, record),
        )

    async def _perform(self, decision: Decision, pod: Json, plan: Plan, ref: JobRef, record: Record) -> None:
        uid = ref.uid
        for action in decision.actions:
            submits, refreshes = isinstance(action, Submit), isinstance(action, Refresh)
            if refreshes and self._refreshes.locked():
                continue  # the decision looks again in a second
            if submits:
                plan = self._numa.submitted(plan, self._link.census, record)
                plan = replace(plan, kill_delay=kill_delay(plan.options.queue, self._link.census))
            self._submitting += submits
            try:
                async with self._refreshes if refreshes else nullcontext():
                    changed = await a.act(self._scene, action, pod, plan, ref, record)
            except (NotFound, Conflict):  # the object is gone or another has its name: the watch will tell, in its time
                self._later(uid, self._scene.clock.time() + ERROR_PAUSE)
                break
            finally:
                self._submitting -= submits
            if submits and self._link.seen(ref.account, uid) is not None:
                record.account = ref.account
            pod = pod if changed is None else self.pods.offer(changed)
            if isinstance(action, Cancel) and record.cancel_grace is None:
                self._later(uid, self._scene.clock.time() + 1.0)  # not asked yet
        else:
            self.wake([uid] if any(isinstance(action, CHANGING) for action in decision.actions) else ())
        if decision.wake_at:
            self._later(uid, decision.wake_at)
        if uid not in self.pods.items and ref.account and self._may_live(ref.account, uid):  # deleted meanwhile
            self._orphans.add(ref, pod, self._scene.clock.time())
            self.wake([uid])

    async def _end_orphan(self, uid: str) -> None:
        account = self._orphans.account(uid)
        if account is None:
            return
        seen, sure = self._link.seen(account, uid), self._link.complete(account)
        if look_at := await self._orphans.end(self._scene, uid, seen, sure=sure):
            self._later(uid, look_at)
