"""One scheduling cycle over the queued jobs: FIFO within priority, limits, placement, backfill. Pure but for the books.

Jobs that are alike (same queue, owner, chunks, placement, walltime) form a class; the first refusal of a class in a
cycle speaks for all of it, so a cycle costs what the number of classes and starts costs, not the number of jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .jobs import Job
from .placement import Cluster, Piece, Refusal, Vnode

FOREVER = 5 * 365 * 86400.0


@dataclass(slots=True)
class JobClass:
    """Jobs that are alike, by rank; `refusal` is what the last cycle said of them."""

    jobs: dict[int, Job] = field(default_factory=dict)
    sorted: bool = True
    refusal: Refusal | None = None

    def first(self) -> int:
        """The lowest rank."""
        if not self.sorted:
            self.jobs = dict(sorted(self.jobs.items()))
            self.sorted = True
        return next(iter(self.jobs))


class Backlog:
    """All jobs that could start (state Q), by class."""

    def __init__(self) -> None:
        self.classes: dict[tuple[Any, ...], JobClass] = {}

    def add(self, job: Job) -> None:
        """Put a job in; its rank decides its place."""
        members = self.classes.setdefault(job.signature(), JobClass())
        if members.jobs and job.rank < next(reversed(members.jobs)):
            members.sorted = False
        members.jobs[job.rank] = job

    def remove(self, job: Job) -> None:
        """Take a job out, if it is in."""
        signature = job.signature()
        members = self.classes.get(signature)
        if members is not None and members.jobs.get(job.rank) is job:  # a subjob has its array's rank
            del members.jobs[job.rank]
            if not members.jobs:
                del self.classes[signature]

    def comment(self, job: Job) -> str | None:
        """What the scheduler last said about a job, None before its first cycle."""
        members = self.classes.get(job.signature())
        refusal = members.refusal if members is not None and job.rank in members.jobs else None
        return refusal.comment() if refusal is not None else None


@dataclass(slots=True)
class Start:
    """Run this job (for an array: its next subjob) there."""

    job: Job
    pieces: list[list[Piece]]


def cycle(
    backlog: Backlog,
    cluster: Cluster,
    priority: Callable[[str], int],
    refuse: Callable[[Job], str | None],
    running: Callable[[], list[Job]],
    now: float,
    strict: bool,
) -> Iterator[Start]:
    """Starts, one after another; the caller writes each into the books before asking for the next.

    `refuse` names a limit that keeps a job from running, without the prefix. With `strict` the first job that finds no
    room gets a reservation, and later jobs start only if they do not delay it.
    """
    heap: list[tuple[int, int, tuple[Any, ...]]] = []
    for signature, members in backlog.classes.items():
        heap.append((-priority(signature[0]), members.first(), signature))
    heapq.heapify(heap)
    top: Reservation | None = None
    while heap:
        rank_of_queue, _, signature = heapq.heappop(heap)
        members = backlog.classes[signature]
        job = members.jobs[members.first()]
        limit = refuse(job)
        if limit:
            members.refusal = Refusal(False, limit)
            continue
        found = cluster.find(job.chunks, job.place)
        if isinstance(found, Refusal):
            members.refusal = found
            if strict and top is None and not found.never:
                top = reserve(job, cluster, running(), now)
            continue
        if top is not None and top.delayed_by(job, found, cluster, now):
            members.refusal = Refusal(False, "Job would conflict with reservation or top job")
            continue
        yield Start(job, found)
        if signature in backlog.classes:
            heapq.heappush(heap, (rank_of_queue, backlog.classes[signature].first(), signature))


@dataclass(slots=True)
class Reservation:
    """The first job that has to wait, when it can start at the latest, and the jobs that will have ended by then."""

    job: Job
    start: float
    ending: list[Job]

    def delayed_by(self, other: Job, pieces: list[list[Piece]], cluster: Cluster, now: float) -> bool:
        """Whether starting `other` there now would keep the reserved job from starting on time."""
        if now + (other.walltime or FOREVER) <= self.start:
            return False
        trial = copy_of(cluster)
        for job in self.ending:
            trial.release(job.id, job.pieces, now)
        trial.take(other.id, pieces, other.place, now)
        return isinstance(trial.find(self.job.chunks, self.job.place), Refusal)


def reserve(job: Job, cluster: Cluster, running: list[Job], now: float) -> Reservation | None:
    """When `job` can start if every running job lasts as long as its walltime."""
    trial = copy_of(cluster)
    ending: list[Job] = []
    for other in sorted(running, key=lambda one: one.started_at + (one.walltime or FOREVER)):
        trial.release(other.id, other.pieces, now)
        ending.append(other)
        if not isinstance(trial.find(job.chunks, job.place), Refusal):
            return Reservation(job, max(now, other.started_at + (other.walltime or FOREVER)), ending)
    return None


def copy_of(cluster: Cluster) -> Cluster:
    """The same books, to try things in."""
    return Cluster(
        [Vnode(v.name, v.host, v.available, dict(v.assigned), dict(v.jobs)) for v in cluster.vnodes.values()]
    )
