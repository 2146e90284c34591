"""The router: for each gated pod finds the rule, chooses, opens the gate, and says why.

Pods of one rule are decided about one after the other, and their gates are opened in the order in which they came; see
`at_once` for large bursts. Rules do not wait for each other. Everything is decided anew each time from what Kubernetes
and the clusters show, so the agent may be killed anywhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from bridge.api import reasons
from bridge.api.routing import Rule
from bridge.kube import Kubernetes
from bridge.kube.clock import BackOff, Clock, wait
from bridge.kube.errors import Unavailable
from bridge.kube.events import EventSink
from bridge.routing import survey
from bridge.routing.aside import Aside
from bridge.routing.decide import gates
from bridge.routing.evaluate import Evaluator, Link
from bridge.routing.explain import Outcome
from bridge.routing.gate import tolerated
from bridge.routing.local import Locals, asks
from bridge.routing.memory import Memory
from bridge.routing.onway import OnTheWay
from bridge.routing.opening import as_gated, at_once, carry_out, recorded, released
from bridge.routing.renew import renewed
from bridge.routing.rules import Match
from bridge.routing.status import RuleBooks
from bridge.routing.waits import Shape, WaitModel
from bridge.routing.watched import Watched
from bridge.telemetry import Metrics
from pbs_adapter.models import JobOptions

log = structlog.get_logger(__name__)

Json = dict[str, Any]
POLL = 5.0  # s between two looks when nothing is heard
QUIET, BUSY = 0.02, 0.25  # s in which further changes are waited for, and while pods are being worked on
SETTLE = 30.0  # s after the start in which a cluster not heard of yet is still being connected to
ROOM_HOLDS = 1.0  # s for which the free room on local nodes is not counted anew
UNBOUND = 10.0  # s after which a pod that is neither unbound nor bound is taken to be gone: two watches tell of it


class Router:
    """`links` by cluster; `placed`: the pods on each cluster's virtual node, by UID, kept true by others.

    `allowed`: whether this process may write. `namespace`: the agent's own, never routed.
    """

    def __init__(
        self,
        kube: Kubernetes,
        links: Mapping[str, Link],
        placed: Mapping[str, Mapping[str, Json]],
        events: EventSink,
        clock: Clock,
        *,
        namespace: str,
        allowed: Callable[[], bool] = lambda: True,
        metrics: Metrics | None = None,
    ) -> None:
        self._kube, self._links, self._placed, self._clock = kube, links, placed, clock
        self._allowed, self._metrics = allowed, metrics
        system = ("kube-system", namespace)
        self.memory = Memory(kube, namespace, links, WaitModel(), clock)
        self._wake = asyncio.Event()
        virtual = [link.settings.node_name for link in links.values()]
        self.watched = Watched(kube, clock, virtual, self._pod_changed, self._wake.set, self._room_changed)
        self._way = OnTheWay(self._has_job)
        self.evaluator = Evaluator(
            links, self.memory.model, clock, load=self._way.of, arrived=self._way.arrived, system=system
        )
        self._books = RuleBooks(kube, clock, system)
        self._arrival: dict[str, tuple[str, int]] = {}
        self._done: dict[str, str | None] = {}  # UID → cluster, None: local; until the watch shows it
        self._told: dict[str, tuple[str, str | None]] = {}
        self._said: dict[str, tuple[str, str]] = {}
        self._aside = Aside(clock, events)
        self._pauses: dict[str, BackOff] = {}  # of rules whose patches the API server does not answer
        self._left: dict[str, float] = {}  # UID → monotonic: when it was no longer unbound
        self._matches: dict[str, tuple[Json, object, Json, Match]] = {}
        self._working: set[str] = set()
        self._events = events
        self._missed: set[str] = set()  # groups that had pods to look at while they were being worked on
        self._room: tuple[float, Locals] | None = None
        self._room_dirty = True
        self._next: float | None = None
        self._started = clock.monotonic()

    def __repr__(self) -> str:
        return f"<Router gated={sum(gates(p)[0] for p in self.watched.pending.items.values())} on_way={self._way}>"

    async def run(self) -> None:
        """Until cancelled."""
        self._started = self._clock.monotonic()
        await self.memory.load()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.watched.run(), name="routing.watched")
                tasks.create_task(self._route(tasks), name="routing.route")
                keeping = self._books.keep(self.watched, self.evaluator.known, self._allowed)
                tasks.create_task(keeping, name="routing.status")
                tasks.create_task(self.memory.run(), name="routing.memory")
        finally:
            if self._allowed():
                await self.memory.save_quickly()

    @property
    def in_burst(self) -> bool:
        """Whether gates are being opened."""
        return bool(self._working)

    def wake(self, *_: object) -> None:
        """A cluster's health, census or jobs changed."""
        self.memory.learn()
        self._wake.set()

    def _room_changed(self) -> None:
        self._room_dirty = True

    def _pod_changed(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            for known in (self._arrival, self._told, self._said, self._done, self._matches):
                known.pop(uid, None)
            self._aside.forget(uid)
            self._left[uid] = self._clock.monotonic()
            return
        if uid not in self._arrival and gates(pod)[0]:
            version = str(pod["metadata"].get("resourceVersion", ""))
            stamp = str(pod["metadata"].get("creationTimestamp", ""))
            self._arrival[uid] = stamp, int(version) if version.isdigit() else 0
        done = self._done.get(uid, "")
        if done != "" and not gates(pod)[0] and (done is None or done in tolerated(pod)):
            del self._done[uid]
        self._aside.changed(uid)
        if uid not in self._done and (gates(pod)[0] or released(pod)):
            self._wake.set()

    # The loop

    async def _route(self, tasks: asyncio.TaskGroup) -> None:
        await self.watched.synced()
        while True:
            if self._next is not None and self._next <= self._clock.monotonic():
                self._next = None
            try:
                self._tidy()
                for name, uids in self._groups().items():
                    self._working.add(name)
                    tasks.create_task(self._work(name, uids), name=f"routing.rule.{name or 'none'}")
            except Exception:  # pods that run need this process; the next pass may see something else
                log.exception("routing.pass_failed")
            until = POLL if self._next is None else min(POLL, max(0.1, self._next - self._clock.monotonic()))
            await wait(self._clock, self._wake, until)
            await self._clock.sleep(BUSY if self._working else QUIET)

    def _tidy(self) -> None:
        now = self._clock.monotonic()
        pending, bound = self.watched.pending.items, self.watched.bound.items
        for name, link in self._links.items():
            if link.census is not None:
                self._way.arrived(name, link.census, now - (link.census_age() or 0.0))

        def gone(uid: str, cluster: str) -> bool:
            if uid in self._placed[cluster]:
                return False
            return uid in bound or (uid not in pending and now - self._left.get(uid, now) > UNBOUND)

        self._way.settle(gone, now)
        self._left = {uid: at for uid, at in self._left.items() if now - at <= 6 * UNBOUND}
        self.memory.follow(lambda uid, cluster: uid in pending or uid in self._placed[cluster])
        self._recall()

    def _recall(self) -> None:
        """Pods that were sent before this process started and are not bound yet."""
        for uid, pod in self.watched.pending.items.items():
            if uid in self._way or uid in self._done or gates(pod)[0]:
                continue
            for cluster in tolerated(pod) & self._links.keys():
                self._way.add(uid, cluster, self._options(pod, cluster))

    def _options(self, pod: Json, cluster: str) -> JobOptions:
        return self.evaluator.ask(pod, cluster).options

    def _groups(self) -> dict[str, list[str]]:
        """Pods to be looked at, by rule, in the order in which they came; rules that are being worked on left out."""
        rules = self.watched.rules()
        found: dict[str, list[str]] = {}
        for uid, pod in self.watched.pending.items.items():
            if self._aside.waits(uid) or not self._concerns(uid, pod):
                continue
            namespace = self.watched.namespace(pod["metadata"]["namespace"])
            if namespace is None:  # its watch comes a moment later
                self._look_again(0.2)
                continue
            with self._aside.guard(pod, "no rule can be found for it"):
                name = _group(self._match(uid, pod, namespace, rules))
                if name in self._working:
                    self._missed.add(name)
                else:
                    found.setdefault(name, []).append(uid)
        for uids in found.values():
            uids.sort(key=lambda uid: self._arrival.get(uid, ("", 0)))
        return found

    def _match(self, uid: str, pod: Json, namespace: Json, rules: list[Rule]) -> Match:
        """The rule for the pod, looked for once as long as pod, namespace and rules stay as they are."""
        known = self._matches.get(uid)
        if known is None or known[0] is not pod or known[1] is not rules or known[2] is not namespace:
            known = pod, rules, namespace, self.evaluator.match(pod, namespace, rules)
            self._matches[uid] = known
        return known[3]

    def _concerns(self, uid: str, pod: Json) -> bool:
        if uid in self._done or pod["metadata"].get("deletionTimestamp") or pod["spec"].get("nodeName"):
            return False
        return gates(pod)[0] or released(pod)

    async def _work(self, name: str, uids: list[str]) -> None:
        """Decide about one pod after the other, and open gates in that order."""
        opening: deque[asyncio.Task[None]] = deque()
        last, fresh = "", False
        try:
            for uid in uids:
                await asyncio.sleep(0)  # what is being opened counts as load before the next one is decided about
                step = None
                with self._aside.guard(self.watched.pending.items.get(uid), "nothing can be decided about it"):
                    fresh = fresh or await self._renewed(uid)
                    step = self._decided(uid, name)
                if step is None:
                    continue
                second, _ = self._arrival.get(uid, ("", 0))
                while len(opening) >= at_once(second, last, len(uids)):
                    await opening.popleft()
                last = second
                opening.append(asyncio.ensure_future(self._act(*step)))
            while opening:
                await opening.popleft()
            self._pauses.pop(name, None)
        except Unavailable as error:
            await asyncio.gather(*opening, return_exceptions=True)  # the others have been sent, too
            pause = self._pauses.setdefault(name, BackOff()).pause(error.retry_after)
            log.warning("routing.api_server", rule=name, error=str(error), pause=round(pause, 1))
            await self._clock.sleep(pause)
            self._wake.set()
        finally:
            for each in opening:
                each.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            self._working.discard(name)
            if name in self._missed:
                self._missed.discard(name)
                self._wake.set()

    async def _renewed(self, uid: str) -> bool:
        """Ask anew what the pod is about to be sent by, where that is not fresh."""
        pod, known = self.watched.pending.items.get(uid), self._matches.get(uid)
        if pod is None or known is None or not self._concerns(uid, pod):
            return False
        outcome = partial(self.outcome, pod, known[3], previous=self._told.get(uid))
        asked = await renewed(self._links, self.evaluator, known[3], lambda: outcome().verdict.to is not None)
        if asked:
            self._tidy()
        return asked

    def _decided(self, uid: str, name: str) -> tuple[Json, Outcome] | None:
        """What is to be carried out for the pod as it is now; None if nothing is, or another rule has it by now."""
        pod = self.watched.pending.items.get(uid)
        namespace = self.watched.namespace(pod["metadata"]["namespace"]) if pod is not None else None
        if pod is None or namespace is None or not self._concerns(uid, pod):
            return None
        match = self._match(uid, pod, namespace, self.watched.rules())
        if _group(match) != name:
            self._wake.set()
            return None
        outcome = self.outcome(pod, match, previous=self._told.get(uid))
        for loser, why in match.losers:
            self._books.lost(loser, outcome.pod, why)
        if outcome.choice is not None and outcome.choice.chosen is not None:
            self._told[uid] = outcome.choice.chosen.cluster, outcome.choice.chosen.queue
        if outcome.verdict.step == "hold":
            self._hold(pod, uid, outcome)
            return None
        return (pod, outcome) if self._allowed() else None

    def _hold(self, pod: Json, uid: str, outcome: Outcome) -> None:
        verdict = outcome.verdict
        if verdict.wait is not None:
            self._look_again(verdict.wait)
        if not gates(pod)[0] or self._settling():
            return
        chosen = outcome.choice.chosen if outcome.choice is not None else None
        said = (verdict.why.split(":")[0], chosen.name if chosen is not None else "")
        if self._said.get(uid) != said:
            self._said[uid] = said
            kind = "Warning" if verdict.warn else "Normal"
            self._events.event(pod, kind, reasons.ROUTE_WAITING, outcome.sentence())

    async def _act(self, pod: Json, outcome: Outcome) -> None:
        uid, verdict = pod["metadata"]["uid"], outcome.verdict
        to = verdict.to.cluster if verdict.to is not None else None
        try:
            self._done[uid] = to
            options = self._options(pod, to) if to is not None else None
            if to is not None and options is not None:
                self._way.add(uid, to, options)
            elif outcome.local.now:
                self._locals().take(outcome.local.now, asks(pod))
            changed = await carry_out(self._kube, pod, outcome)
        except BaseException as error:  # also when cancelled: it is looked at again, whatever came of the patch
            self._done.pop(uid, None)
            self._way.drop(uid)
            if not isinstance(error, Exception) or self._aside.general(uid, error):
                raise
            self._aside.put(pod, "cannot be released", error)
            return
        self._aside.forget(uid)
        if changed is not None:
            self._routed(changed, outcome, options)

    def _routed(self, pod: Json, outcome: Outcome, options: JobOptions | None) -> None:
        verdict, rule = outcome.verdict, outcome.match.rule
        uid = pod["metadata"]["uid"]
        log.info("routing.routed", pod=outcome.pod, pod_uid=uid, to=verdict.to.name if verdict.to else "local")
        if self._metrics is not None:
            self._metrics.routed.labels(rule.name if rule else "", verdict.to.cluster if verdict.to else "local").inc()
        self._events.event(pod, "Warning" if verdict.warn else "Normal", reasons.ROUTED, outcome.sentence())
        if verdict.to is not None and rule is not None and options is not None:
            self._books.routed(rule.name)
            shape = Shape(options.ncpus, options.mem_bytes, options.walltime, verdict.to.fits_now)
            self.memory.sent(uid, verdict.to.cluster, shape)

    def outcome(self, pod: Json, match: Match, *, previous: tuple[str, str | None] | None = None) -> Outcome:
        """What would be done with the pod now."""
        nodes = self.watched.nodes_by_name()
        return self.evaluator.outcome(pod, match, self._locals(), nodes, previous=previous, settling=self._settling())

    def explain(self, pod: Json) -> Json:
        """The structure for any pod; for one that is bound, or of a file, as if it were gated now.

        `recorded` is what was decided about it, None for nothing.

        Raises ValueError for what is no pod, LookupError while nothing has been listed or its namespace is not there.
        """
        metadata = pod.get("metadata") or {}
        namespace = self.watched.known_namespace(str(metadata.get("namespace") or "default"))
        match = self.evaluator.match(pod, namespace, self.watched.rules())
        told = self._told.get(str(metadata.get("uid") or ""))
        waits = released(pod) and not pod["spec"].get("nodeName")
        outcome = self.outcome(pod if waits else as_gated(pod), match, previous=told)
        return outcome.to_json() | {"recorded": recorded(pod), "node": (pod.get("spec") or {}).get("nodeName")}

    def clusters(self) -> Json:
        """What `hpc-bridge clusters` shows."""
        loads = {name: self._way.of(name) for name in self._links}
        return survey.clusters(self._links, self.evaluator.views(), loads, self.memory.model, self._clock.time())

    def _settling(self) -> bool:
        unheard = any(link.census is None for link in self._links.values())
        return unheard and self._clock.monotonic() - self._started < SETTLE

    def _has_job(self, cluster: str, uid: str) -> bool:
        seen = self._links[cluster].found(uid)
        return seen is not None and seen.job_id is not None

    def _locals(self) -> Locals:
        """Free room on local nodes, with what has been released and is not bound yet set aside."""
        now = self._clock.monotonic()
        if self._room is None or (self._room_dirty and now - self._room[0] >= ROOM_HOLDS):
            room = self.watched.locals()
            for uid, pod in self.watched.pending.items.items():
                local = self._done.get(uid, "") is None or (uid not in self._done and released(pod))
                if local and (node := room.fit(pod).now):
                    room.take(node, asks(pod))
            self._room, self._room_dirty = (now, room), False
        return self._room[1]

    def _look_again(self, seconds: float) -> None:
        """See to it that there is a pass in `seconds`."""
        at = self._clock.monotonic() + seconds
        if self._next is None or at < self._next - 0.05:
            self._next = at
            self._wake.set()


def _group(match: Match) -> str:
    """What pods wait for each other by: the rule."""
    return match.rule.name if match.rule is not None else ""
