"""The simple predictors that the wait estimate is measured against; the list of the study that the issue names.

Zero; the last start in the queue; quantiles of the last 59 starts; Kaplan-Meier of those and of all that wait; and an
upper bound from the binomial distribution over a history that is cut when it fails (after QBETS, Nurmi et al. 2007).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Protocol

from bridge.routing.waits.survival import CENSORED, START, quantiles
from tests.bench.swf import TraceJob

WANTED = (0.5, 0.8, 0.9)
WINDOW = 59  # the fewest samples whose greatest is a 95 % bound of the 95 % quantile


class Predictor(Protocol):
    """What a replay calls, in order of time: predict and submitted at a submission, started at a start."""

    def predict(self, job: TraceJob, fits: bool, now: float, wanted: Sequence[float]) -> Sequence[float]: ...

    def submitted(self, job: TraceJob, fits: bool, now: float) -> None: ...

    def started(self, job: TraceJob, fits: bool, now: float) -> None: ...


class Last:
    """Quantiles of the last `window` starts in the queue; of none: zero."""

    def __init__(self, window: int = WINDOW) -> None:
        self.ended: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=window))

    def submitted(self, job: TraceJob, fits: bool, now: float) -> None:
        """A start alone teaches it."""

    def started(self, job: TraceJob, fits: bool, now: float) -> None:
        self.ended[job.queue].append(job.wait)

    def predict(self, job: TraceJob, fits: bool, now: float, wanted: Sequence[float]) -> Sequence[float]:
        waits = sorted(self.ended[job.queue])
        return [waits[min(len(waits) - 1, int(q * len(waits)))] if waits else 0.0 for q in wanted]


class WithWaiting(Last):
    """Kaplan-Meier over the last starts and everything that waits in the queue."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def submitted(self, job: TraceJob, fits: bool, now: float) -> None:
        self._waiting[job.queue][job.number] = now

    def started(self, job: TraceJob, fits: bool, now: float) -> None:
        super().started(job, fits, now)
        del self._waiting[job.queue][job.number]

    def predict(self, job: TraceJob, fits: bool, now: float, wanted: Sequence[float]) -> Sequence[float]:
        samples = [(wait, START, 1.0) for wait in self.ended[job.queue]]
        samples += [(now - since, CENSORED, 1.0) for since in self._waiting[job.queue].values()]
        return quantiles(samples, wanted)


class Bound:
    """Upper confidence bounds of the queue's quantiles; some misses in a row cut the history to its latest `keep`."""

    def __init__(self, z: float, misses: int, keep: int) -> None:
        self._z, self._misses, self._keep = z, misses, keep
        self._history: defaultdict[tuple[str, float], list[float]] = defaultdict(list)
        self._said: dict[int, dict[float, float]] = {}
        self._row: defaultdict[tuple[str, float], int] = defaultdict(int)

    def submitted(self, job: TraceJob, fits: bool, now: float) -> None:
        self._said[job.number] = {q: self._bound(job.queue, q) for q in WANTED}

    def started(self, job: TraceJob, fits: bool, now: float) -> None:
        for q, said in self._said.pop(job.number).items():
            key = job.queue, q
            history = self._history[key]
            history.append(job.wait)
            self._row[key] = self._row[key] + 1 if job.wait > said else 0
            rare = math.ceil(math.log(0.05) / math.log(1 - q)) + self._misses - 1  # a row that chance seldom makes
            if self._row[key] >= rare:
                del history[: -self._keep]
                self._row[key] = 0
            del history[:-1000]

    def predict(self, job: TraceJob, fits: bool, now: float, wanted: Sequence[float]) -> Sequence[float]:
        return [self._bound(job.queue, q) for q in wanted]

    def _bound(self, queue: str, q: float) -> float:
        waits = sorted(self._history[queue, q])
        index = math.ceil(len(waits) * q + self._z * math.sqrt(len(waits) * q * (1 - q)) + 0.5) - 1
        return waits[min(len(waits) - 1, index)] if waits else 0.0
