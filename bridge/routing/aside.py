"""Gated pods with which something went wrong: each waits by itself, longer every time, and says why.

The pods of a rule wait for each other, so one pod that always fails would hold up all others; and whatever is odd about
one pod must not end the process, which serves every cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from bridge.api import reasons
from bridge.kube.clock import BackOff, Clock
from bridge.kube.errors import KubeError, Unavailable
from bridge.kube.events import EventSink

log = structlog.get_logger(__name__)

Json = dict[str, Any]
FIRST, MOST = 30.0, 600.0  # s between two tries; the first is shorter by up to a half, so that not all come together
PATIENCE = 3  # answers 429 or 5xx in a row to one pod's patch that may still be the API server's trouble with everybody


class Aside:
    """`waits(uid)`: whether the pod is not to be looked at yet."""

    def __init__(self, clock: Clock, events: EventSink) -> None:
        self._clock, self._events = clock, events
        self._until: dict[str, float] = {}  # UID → monotonic
        self._pauses: dict[str, BackOff] = {}
        self._unanswered: dict[str, int] = {}

    def waits(self, uid: str) -> bool:
        """Whether its pause is not over."""
        return self._until.get(uid, 0.0) > self._clock.monotonic()

    def general(self, uid: str, error: BaseException) -> bool:
        """Whether the error is the API server's, not the pod's: then the whole rule waits and keeps its order."""
        if not isinstance(error, Unavailable):
            return False
        if error.status == 0:  # no connection, or no right to write now
            return True
        self._unanswered[uid] = self._unanswered.get(uid, 0) + 1
        return self._unanswered[uid] < PATIENCE

    def put(self, pod: Json, what: str, error: Exception) -> None:
        """Leave the pod alone for a while."""
        uid = pod["metadata"]["uid"]
        asked, text = (error.retry_after, str(error)) if isinstance(error, KubeError) else (None, repr(error))
        first = uid not in self._pauses
        pause = self._pauses.setdefault(uid, BackOff(FIRST, MOST)).pause(asked)
        self._until[uid] = self._clock.monotonic() + pause
        unexpected = error if first and not isinstance(error, KubeError) else None  # a traceback once
        log.warning("routing.set_aside", pod_uid=uid, error=text, pause=round(pause), exc_info=unexpected)
        self._events.event(pod, "Warning", reasons.ROUTE_FAILED, f"{what}: {text[:500]}")

    @contextmanager
    def guard(self, pod: Json | None, what: str) -> Iterator[None]:
        """Errors of the block put the pod aside and pass no further. `pod`: None where there is none any more."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever is odd about one pod, the others go on
            if pod is not None:
                self.put(pod, what, error)

    def changed(self, uid: str) -> None:
        """The pod is another now: it may be tried at once. Should it fail again, its pause goes on growing."""
        self._until.pop(uid, None)

    def forget(self, uid: str) -> None:
        """All is well with it, or it is gone."""
        for known in (self._until, self._pauses, self._unanswered):
            known.pop(uid, None)
