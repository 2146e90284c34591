"""Events for users (`kubectl describe`), written beside the work and never in its way.

An Event costs the API server as much as what it tells of. In a burst they come afterwards, or a little late.

The same thing said again raises the count of one Event instead of making another, also after a restart of the agent:
the Event's name follows from what it says.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from bridge.kube import Json, Kubernetes, paths
from bridge.kube.clock import BackOff, Clock, SystemClock, rfc3339
from bridge.kube.errors import Conflict, KubeError, NotFound, Unavailable
from bridge.telemetry import Metrics

QUEUE = 5000  # events waiting to be written; the oldest goes first
LATE, LOOK = 10.0, 0.1  # s after which an Event is written in a burst too, and between two looks whether it is over
REMEMBERED = 4000  # events whose count is known, so that a repeat is one PATCH
ATTEMPTS = 5
MAX_MESSAGE = 1024  # the API's limit

log = structlog.get_logger(__name__)


class EventSink(Protocol):
    """Takes Events, never blocks."""

    def event(self, thing: Json, kind: str, reason: str, message: str) -> None: ...


@dataclass(slots=True)
class _Pending:
    """An event to be written: `count` times since the last write."""

    about: Json  # involvedObject
    type: str
    reason: str
    message: str
    host: str
    first: float
    last: float
    count: int = 1

    @property
    def name(self) -> str:
        """Deterministic, so that a restarted agent finds the Event again."""
        text = "\0".join([str(self.about.get("uid")), self.type, self.reason, self.message])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.about['name'][:200].rstrip('-.')}.{digest}"


class Recorder:
    """Collects events from anywhere on the loop; `run` writes them.

    `component` and `host` are the Event's source; of a node, and of a pod that is bound, the host is the node, as with
    a kubelet's.

    `busy`: whether there is more urgent work for the API server now.
    """

    def __init__(
        self,
        kube: Kubernetes,
        component: str,
        host: str,
        *,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._kube = kube
        self._busy = busy
        self._component, self._host = component, host
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Recorder pending={len(self._pending)} remembered={len(self._counts)}>"

    def event(self, thing: Json, kind: str, reason: str, message: str) -> None:
        """Record that `reason` happened to `thing`; `kind` is Normal or Warning.

        `thing` is any object with metadata; items of lists have no kind of their own, and are then taken for Pods.
        """
        metadata = thing["metadata"]
        about = {
            "apiVersion": thing.get("apiVersion", "v1"),
            "kind": thing.get("kind", "Pod"),
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        }
        if namespace := metadata.get("namespace"):
            about["namespace"] = namespace
        now = self._clock.time()
        bound = thing.get("spec", {}).get("nodeName") if about["kind"] == "Pod" else None
        host = str(bound or (about["name"] if about["kind"] == "Node" else self._host))
        new = _Pending(about, kind, reason, message[:MAX_MESSAGE], host, now, now)
        if known := self._pending.get(new.name):
            known.count += 1
            known.last = now
            return
        self._pending[new.name] = new
        if len(self._pending) > QUEUE:
            self._pending.popitem(last=False)
            self._dropped("queue full")
        self._wake.set()

    async def run(self) -> None:
        """Write events, oldest first, until cancelled."""
        while True:
            await self._wake.wait()
            while self._pending:
                oldest = next(iter(self._pending.values())).first
                if self._busy() and self._clock.time() - oldest < LATE:
                    await self._clock.sleep(LOOK)
                    continue
                _, pending = self._pending.popitem(last=False)
                await self._write_with_retries(pending)
            self._wake.clear()

    async def _write_with_retries(self, pending: _Pending) -> None:
        back_off = BackOff(0.5, 10)
        for _ in range(ATTEMPTS):
            try:
                return await self._write(pending)
            except Unavailable as error:
                await self._clock.sleep(back_off.pause(error.retry_after))
            except KubeError as error:  # the namespace is gone or going, or RBAC forbids it
                log.info("event.refused", event_reason=pending.reason, about=pending.about["name"], error=str(error))
                return self._dropped("refused")
        return self._dropped("no answer")

    async def _write(self, pending: _Pending) -> None:
        namespace = pending.about.get("namespace", "default")
        name = pending.name
        if name in self._counts:
            try:
                return await self._raise(namespace, pending, self._counts[name])
            except NotFound:  # Events live for an hour
                del self._counts[name]
        try:
            await self._kube.create(paths.events(namespace), self._body(namespace, pending))
            self._remember(name, pending.count)
        except Conflict:  # made before our time; a kubelet may patch Events, not read them: the answer tells the count
            change = {"lastTimestamp": rfc3339(pending.last)}
            stored = await self._kube.patch(paths.event(namespace, name), change, kind="merge")
            await self._raise(namespace, pending, int(stored.get("count") or 1))

    async def _raise(self, namespace: str, pending: _Pending, count: int) -> None:
        total = count + pending.count
        change = {"count": total, "lastTimestamp": rfc3339(pending.last)}
        await self._kube.patch(paths.event(namespace, pending.name), change, kind="merge")
        self._remember(pending.name, total)

    def _body(self, namespace: str, pending: _Pending) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": pending.name, "namespace": namespace},
            "involvedObject": pending.about,
            "type": pending.type,
            "reason": pending.reason,
            "message": pending.message,
            "source": {"component": self._component, "host": pending.host},
            "reportingComponent": self._component,
            "reportingInstance": pending.host,
            "firstTimestamp": rfc3339(pending.first),
            "lastTimestamp": rfc3339(pending.last),
            "count": pending.count,
        }

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)

    def _dropped(self, why: str) -> None:
        if self._metrics is not None:
            self._metrics.events_dropped.labels(why).inc()
