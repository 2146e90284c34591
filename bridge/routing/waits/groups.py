"""Groups of like jobs of one cluster: the ended waits of each and the waits that go on, from fine groups to coarse.

What decided the groups was tried on a real trace (docs/explanation/waits.md). The submitter's own backlog in the queue
matters most; a fine group answers as soon as a few of its jobs have started, otherwise the next coarser one does.
Which group answers depends on starts only, never on how many wait: that is why more demand cannot shorten an estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.routing.waits.survival import CENSORED, START, Sample

KEPT = 60  # ended waits that a group remembers
NEEDED = 5  # starts that make a group answer
HALF_LIFE = 3 * 86400.0  # s after which an ended wait counts half
TAIL = 0.5  # weight of the cluster's latest starts beside a group, so that a burst's estimate has an end
BACKLOG_BASE = 8  # own waiting jobs: none, below 8, below 64, …
_GRAIN = 10.0  # s to which ages are rounded down, so that a burst is one sample


class Traits(NamedTuple):
    """What groups are made of: who asks, where, how big, whether it fitted beside the running jobs, own backlog."""

    user: str
    queue: str
    size: int
    fits: bool | None
    backlog: int


class Ended(NamedTuple):
    """A wait that is over at time `at`, by the start of the job or (not `started`) by its withdrawal."""

    at: float
    wait: float
    started: bool
    traits: Traits


#: Finest first; the last holds every job of the cluster.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("user", "queue", "size", "fits", "backlog"),
    ("user", "queue", "fits", "backlog"),
    ("user", "queue", "backlog"),
    ("queue", "size", "fits", "backlog"),
    ("queue", "fits", "backlog"),
    ("queue", "backlog"),
    ("fits", "backlog"),
    ("backlog",),
    (),
)
_INDICES = tuple(tuple(Traits._fields.index(name) for name in level) for level in LEVELS)
Key = tuple[object, ...]


@dataclass(slots=True)
class Group:
    """`ended` oldest first, at most KEPT; `starts` of them are starts. `waiting`: submission time → jobs."""

    ended: list[Ended] = field(default_factory=list)
    starts: int = 0
    waiting: dict[float, int] = field(default_factory=dict)

    def add(self, ended: Ended) -> None:
        """Remember it, and forget the oldest."""
        self.ended.append(ended)
        self.starts += ended.started
        if len(self.ended) > KEPT:
            self.starts -= self.ended.pop(0).started

    def samples(self, now: float) -> Iterator[Sample]:
        """All of the group, older ends with less weight."""
        for at, wait, started, _ in self.ended:
            yield wait, START if started else CENSORED, 0.5 ** (max(0.0, now - at) / HALF_LIFE)
        for submitted, jobs in self.waiting.items():
            yield max(0.0, now - submitted), CENSORED, float(jobs)


class Groups:
    """All groups of one cluster."""

    def __init__(self) -> None:
        self._groups: dict[Key, Group] = {}
        self._backlogs: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._groups)

    def backlog(self, user: str, queue: str) -> int:
        """Class of the number of jobs that the user has waiting in the queue: 0 for none, 1 below BACKLOG_BASE, …"""
        jobs, kind = self._backlogs[user, queue], 0
        while jobs > 0:
            jobs, kind = jobs // BACKLOG_BASE, kind + 1
        return kind

    def queued(self, traits: Traits, submitted: float) -> None:
        """A job begins to wait."""
        self._backlogs[traits.user, traits.queue] += 1
        grain = -(-submitted // _GRAIN) * _GRAIN
        for group in self._of(traits):
            group.waiting[grain] = group.waiting.get(grain, 0) + 1

    def dequeued(self, traits: Traits, submitted: float) -> None:
        """It waits no longer; to be called with what `queued` was called with."""
        who = traits.user, traits.queue
        self._backlogs[who] -= 1
        if self._backlogs[who] <= 0:
            del self._backlogs[who]
        grain = -(-submitted // _GRAIN) * _GRAIN
        for group in self._of(traits):
            left = group.waiting.pop(grain, 0) - 1
            if left > 0:
                group.waiting[grain] = left

    def add(self, ended: Ended) -> None:
        """Remember an ended wait in all of its groups."""
        for group in self._of(ended.traits):
            group.add(ended)

    def latest(self) -> list[Ended]:
        """The cluster's latest ended waits."""
        everything = self._groups.get(_key(len(LEVELS) - 1, Traits("", "", 0, None, 0)))
        return everything.ended if everything else []

    def find(self, traits: Traits) -> tuple[int, Group]:
        """The finest group with NEEDED starts, and its level; else that of all jobs."""
        for level in range(len(LEVELS) - 1):
            group = self._groups.get(_key(level, traits))
            if group is not None and group.starts >= NEEDED:
                return level, group
        last = len(LEVELS) - 1
        return last, self._groups.get(_key(last, traits)) or Group()

    def _of(self, traits: Traits) -> Iterator[Group]:
        for level in range(len(LEVELS)):
            key = _key(level, traits)
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = Group()
            yield group


def _key(level: int, traits: Traits) -> Key:
    return (level, *[traits[index] for index in _INDICES[level]])


def size_class(ncpus: int) -> int:
    """Doublings of the number of CPUs.

    >>> [size_class(n) for n in (1, 2, 3, 4, 64)]
    [1, 2, 2, 3, 7]
    """
    return max(1, ncpus).bit_length()
