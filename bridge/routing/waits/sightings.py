"""One cluster's jobs as they are seen: from lists minutes apart, and from the bridge's own pods, to waits.

PBS's cheap table has no times of submission. A job that is new in a list has been submitted since the list before; one
that was queued then and runs now has started in between. Times here run on a clock that never jumps (`Cluster.time`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from bridge.routing.waits.groups import Ended, Groups, Traits, size_class
from bridge.routing.waits.room import Room
from bridge.routing.waits.shapes import Shape
from pbs_adapter.models import CensusJob

GAP = 900.0  # s between two lists; further apart, what is new in the second has an unknown age
_AT_ONCE = 1.0  # s: the wait of a job that was never seen waiting, in a queue where nobody was
_RUNNING = frozenset("RSUE")
_CUT = 14  # letters that PBS shows of a name that is longer than its column
_HORIZON = 60 * 86400.0  # s; estimates of PBS beyond it are absurd (years 13429 have been seen)


@dataclass(slots=True)
class Waiting:
    """A job that waits. `exact`: `submitted` is when it was submitted, not merely when it was first seen."""

    traits: Traits
    submitted: float
    exact: bool
    own: bool = False


@lru_cache(maxsize=4096)
def anonymous(user: str) -> str:
    """A user as the model keeps it: a ConfigMap is no list of the users. A name that PBS cut matches the whole one."""
    known = user[:_CUT] if len(user.rstrip("*")) >= _CUT else user
    return blake2b(known.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


class Sightings:
    """The jobs that wait, and the groups they feed."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.waiting: dict[str, Waiting] = {}
        self.estimates: dict[str, float] = {}  # of own jobs that wait: PBS's own estimate of their start
        self.remembered: dict[str, float] = {}  # submission times of before a restart, until the first list
        self._known: set[str] = set()  # of the last list, what did not wait
        self._started: set[str] = set()  # own jobs that were told to have started
        self._doubts: dict[str, float] = {}  # own jobs that a list showed not to wait: since when
        self._traits: dict[Traits, Traits] = {}
        self._at: float | None = None

    # The bridge's own jobs

    def submitted(self, key: str, queue: str, user: str, shape: Shape, at: float) -> None:
        """An own job waits since `at`. A list may have shown it before: its own word is better."""
        old = self.waiting.get(key)
        if key in self._started or (old is not None and old.own):
            return
        if old is not None:
            self._leave(key)
        self._enter(key, queue, anonymous(user), shape.ncpus, shape.fits_now, at, exact=True, own=True)

    def estimate(self, key: str, start: float | None, now: float) -> None:
        """PBS's own estimate for an own waiting job; absurd ones are none."""
        self.estimates.pop(key, None)
        if key in self.waiting and start is not None and math.isfinite(start) and now <= start <= now + _HORIZON:
            self.estimates[key] = start

    def started(self, key: str, at: float) -> Ended | None:
        """An own job started."""
        if key not in self.waiting:
            return None
        self._started.add(key)
        return self._end(key, at, started=True)

    def withdrawn(self, key: str, at: float) -> Ended | None:
        """A job will not start any more."""
        return self._end(key, at, started=False) if key in self.waiting else None

    # Lists of all visible jobs

    def learn(self, jobs: Iterable[CensusJob], room: Room, at: float) -> list[Ended]:
        """Take in a list made at `at`; returns the waits that have ended since the last one."""
        listed = {job.number: job for job in jobs}
        last, self._at = self._at, at
        since = last if last is not None and 0 <= at - last <= GAP else None
        busy = {job.queue for job in listed.values() if job.state == "Q"}
        busy |= {waiting.traits.queue for waiting in self.waiting.values()}
        ended: list[Ended] = []
        for key, job in listed.items():
            if job.state == "Q":
                self._seen_waiting(key, job, room, since, at)
            elif job.state in _RUNNING:
                ended += self._seen_running(key, job, since, at, busy)
            elif key in self.waiting:  # held, moved, told to wait: not for resources
                ended.append(self._end(key, at, started=False))
        ended += self._vanished(listed, last if last is not None else at, at)
        self._known = {key for key, job in listed.items() if job.state != "Q"}
        self._started = {key for key in self._started if key in listed}
        self.remembered, self._traits = {}, {}
        return ended

    def _is_told(self, key: str, at: float) -> bool:
        """Of its own jobs the bridge itself says when they start; unless it has not for a while."""
        if not self.waiting[key].own:
            return False
        if at - self._doubts.setdefault(key, at) < GAP:
            return True
        self._started.add(key)
        return False

    def _seen_waiting(self, key: str, job: CensusJob, room: Room, since: float | None, at: float) -> None:
        waiting = self.waiting.get(key)
        if key in self._started or (waiting is not None and waiting.traits.queue == job.queue):
            return
        if waiting is not None:  # moved, as a routing queue does
            submitted, exact, own = waiting.submitted, waiting.exact, waiting.own
            self._leave(key)
        else:
            before = self.remembered.get(key)
            exact, own = before is not None or since is not None, False
            submitted = before if before is not None else at if since is None else (since + at) / 2
        fits = room.fits(job.ncpus or 1, job.chunks)
        self._enter(key, job.queue, anonymous(job.owner), job.ncpus or 1, fits, submitted, exact=exact, own=own)

    def _seen_running(
        self, key: str, job: CensusJob, since: float | None, at: float, busy: set[str]
    ) -> Iterable[Ended]:
        waiting = self.waiting.get(key)
        # PBS shows whole minutes, and those of a running job only now and then.
        start = at - (job.elapsed + 30.0 if job.elapsed is not None else 0.0)
        if since is not None:
            start = min(max(start, since), at)
        if waiting is not None:
            return [] if self._is_told(key, at) else [self._end(key, start, started=True)]
        if since is None or key in self._known or key in self._started:
            return []
        wait = (start - since) / 2 if job.queue in busy else _AT_ONCE
        user = anonymous(job.owner)
        traits = Traits(user, job.queue, size_class(job.ncpus or 1), True, self.groups.backlog(user, job.queue))
        ended = Ended(start, max(0.0, wait), True, traits)
        self.groups.add(ended)
        return [ended]

    def _vanished(self, listed: Mapping[str, CensusJob], last: float, at: float) -> list[Ended]:
        """Started and ended between two lists, or deleted, which is rarer: it waited until the last list at least."""
        gone = [key for key in self.waiting if key not in listed]
        return [
            self._end(key, max(last, self.waiting[key].submitted), started=True)
            for key in gone
            if not self._is_told(key, at)
        ]

    def _enter(
        self, key: str, queue: str, user: str, ncpus: int, fits: bool | None, at: float, *, exact: bool, own: bool
    ) -> None:
        traits = Traits(user, queue, size_class(ncpus), fits, self.groups.backlog(user, queue))
        traits = self._traits.setdefault(traits, traits)  # of twenty thousand jobs few differ
        self.waiting[key] = Waiting(traits, at, exact, own)
        self.groups.queued(traits, at)

    def _leave(self, key: str) -> Waiting:
        waiting = self.waiting.pop(key)
        self.estimates.pop(key, None)
        self._doubts.pop(key, None)
        self.groups.dequeued(waiting.traits, waiting.submitted)
        return waiting

    def _end(self, key: str, at: float, *, started: bool) -> Ended:
        waiting = self._leave(key)
        ended = Ended(at, max(0.0, at - waiting.submitted), started and waiting.exact, waiting.traits)
        self.groups.add(ended)
        return ended
