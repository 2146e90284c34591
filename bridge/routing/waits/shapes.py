"""What is asked of the wait model and what it answers: a job's shape, and quantiles of its wait with their grounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A job as far as its wait may depend on it.

    ncpus: all CPUs of the job. mem: bytes, None where unknown. walltime: seconds, None for the queue's default.
    fits_now: whether it fits beside what runs now (`plan.fit.Placement.now`); None where that is unknown.
    """

    ncpus: int
    mem: int | None = None
    walltime: int | None = None
    fits_now: bool | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The estimate. `quantiles`: probability → seconds from submission to start, rising with the probability.

    samples: jobs that count (started, waiting, given up), in `basis` and coarser groups. basis: the finest group of
    jobs with enough starts, e.g. "user+queue+size+fits"; "prior" when nothing has been seen. sure: 0 (prior only) to 1.
    """

    quantiles: Mapping[float, float]
    samples: int
    basis: str
    sure: float
