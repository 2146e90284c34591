"""Events about routed pods, told when there is time: opening the next gate comes first.

An Event costs the API server as much as opening a gate does. In a burst they come when the burst is over, or a little
late; the pod's annotation says the same at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from bridge.kube.clock import Clock

Json = dict[str, Any]
LATE = 10.0  # s after which an Event is told although gates are still being opened
EVERY, MOST = 0.1, 30  # s between two looks, and Events told at each: the recorder keeps up with these


class EventSink(Protocol):
    """Takes Events, never blocks."""

    def event(self, thing: Json, kind: str, reason: str, message: str) -> None: ...


class Announcer:
    """Hands Events to `sink`, in order. `busy`: whether gates are being opened."""

    def __init__(self, sink: EventSink, clock: Clock, busy: Callable[[], bool]) -> None:
        self._sink, self._clock, self._busy = sink, clock, busy
        self._waiting: deque[tuple[float, Json, str, str, str]] = deque()

    def event(self, thing: Json, kind: str, reason: str, message: str) -> None:
        """To be told. Of the object only what names it is kept."""
        metadata = {key: thing["metadata"].get(key) for key in ("name", "namespace", "uid")}
        about = {"kind": thing.get("kind") or "Pod", "metadata": metadata}
        self._waiting.append((self._clock.monotonic(), about, kind, reason, message))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.tell()
            await self._clock.sleep(EVERY)

    def tell(self) -> None:
        """Tell some of those whose time has come."""
        busy, late = self._busy(), self._clock.monotonic() - LATE
        for _ in range(min(MOST, len(self._waiting))):
            if busy and self._waiting[0][0] > late:
                break
            _, about, kind, reason, message = self._waiting.popleft()
            self._sink.event(about, kind, reason, message)
