"""A strictly online replay: at each submission a predictor knows only what could be seen before it.

A start is known only to submissions that are strictly later. Whether a job fitted is worked out from the jobs that ran
then, by hosts where the trace names them, else by the CPUs of all. Losses are the pinball loss, meaned over quantiles.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from tests.bench.baselines import WANTED, Predictor
from tests.bench.swf import TraceJob

CAP = 86400.0  # s: a router does not care beyond
AT_ONCE = 60.0  # s: a wait below it is covered by any prediction
_WARM_UP = 0.15  # share of the time without scores, for the choice of parameters
SPLIT = 0.6  # parameters by the time before, scores by the time after


@dataclass
class Score:
    """Sums over jobs."""

    jobs: int = 0
    cap: float = 0.0
    log: float = 0.0
    covered: list[int] = field(default_factory=lambda: [0] * len(WANTED))

    def add(self, wait: float, said: Sequence[float]) -> None:
        """One prediction and what came true."""
        self.jobs += 1
        self.cap += pinball(min(wait, CAP), [min(s, CAP) for s in said])
        self.log += pinball(math.log1p(wait), [math.log1p(s) for s in said])
        self.covered = [c + (wait <= max(s, AT_ONCE)) for c, s in zip(self.covered, said, strict=True)]

    def means(self) -> tuple[float, float]:
        """Loss of a job: on seconds capped at a day, and on the logarithm."""
        return self.cap / max(1, self.jobs), self.log / max(1, self.jobs)


def pinball(wait: float, said: Sequence[float]) -> float:
    """Mean pinball loss.

    >>> round(pinball(10, (10, 10, 0)), 3)
    3.0
    """
    losses = [max(q * (wait - s), (q - 1) * (wait - s)) for q, s in zip(WANTED, said, strict=True)]
    return sum(losses) / len(losses)


@dataclass
class Part:
    """The part of the trace that is scored: submissions after `after` up to `until`, in seconds."""

    after: float
    until: float


def parts(jobs: Sequence[TraceJob]) -> tuple[Part, Part]:
    """(for the choice of parameters, for scores)."""
    first, last = jobs[0].submitted, jobs[-1].submitted
    cut = first + SPLIT * (last - first)
    return Part(first + _WARM_UP * (last - first), cut), Part(cut, last)


class Machine:
    """CPUs in use. A host has as many as ever ran on it together: a fact that a real census gives."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self.sizes: Counter[str] = Counter()
        self._used: Counter[str] = Counter()
        for _, sign, job in sorted([(j.end, -1, j) for j in jobs] + [(j.start, 1, j) for j in jobs]):
            self.begin(job, sign)
            for host, _ in _places(job):
                self.sizes[host] = max(self.sizes[host], self._used[host])

    def begin(self, job: TraceJob, sign: int = 1) -> None:
        """The job takes its CPUs, or with -1 gives them back."""
        for host, cpus in _places(job):
            self._used[host] += sign * cpus

    def fits(self, job: TraceJob) -> bool:
        """Whether all chunks would find room."""
        each = -(-job.ncpus // job.chunks)
        return sum(max(0, size - self._used[host]) // each for host, size in self.sizes.items()) >= job.chunks


def _places(job: TraceJob) -> Sequence[tuple[str, int]]:
    return job.hosts or (("", job.ncpus),)


def replay(
    jobs: Sequence[TraceJob],
    predictors: Mapping[str, Predictor],
    part: Part,
    machine: Machine,
) -> Iterator[tuple[str, TraceJob, Sequence[float]]]:
    """Every prediction in the part, by predictor."""
    order = count()
    events: list[tuple[float, int, int, TraceJob, bool]] = []  # (time, 0 for an end and 1 for a start, …)
    for job in jobs:
        now = job.submitted
        while events and events[0][0] < now:
            at, is_start, _, other, fitted = heapq.heappop(events)
            machine.begin(other, 1 if is_start else -1)
            if is_start:
                heapq.heappush(events, (other.end, 0, next(order), other, fitted))
                for predictor in predictors.values():
                    predictor.started(other, fitted, at)
        fits = machine.fits(job)
        for name, predictor in predictors.items():
            if part.after < now <= part.until:
                yield name, job, predictor.predict(job, fits, now, WANTED)
            predictor.submitted(job, fits, now)
        heapq.heappush(events, (job.start, 1, next(order), job, fits))


def scores(jobs: Sequence[TraceJob], predictors: Mapping[str, Predictor], part: Part) -> dict[str, Score]:
    """The score of each predictor."""
    found = {name: Score() for name in predictors}
    for name, job, said in replay(jobs, predictors, part, Machine(jobs)):
        found[name].add(job.wait, said)
    return found
