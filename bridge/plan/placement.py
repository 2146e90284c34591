"""What asking "does this job fit there?" answers: `place` in `bridge.plan.fit` returns a Placement.

Frozen data for the router, the node and people; texts carry their numbers, so that nobody has to look them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NumaWish = Literal["ignore", "prefer", "require"]


@dataclass(frozen=True, slots=True)
class Headroom:
    """What is left to the account, after what it has in PBS, of the limits of queue and server; None: no limit.

    jobs: more that PBS would take. running: more that may run at once. ncpus: more cores that may run at once.
    """

    jobs: int | None = None
    running: int | None = None
    ncpus: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Whether one job could run in one queue: ever, and now on an idle queue.

    now: True means that it starts at once if no other job waits; None that the cluster does not show enough to tell,
    and `doubts` says what. It is never True when `ever` is False.
    refused: why it can never run. waits: why it does not start now though it could one day.
    domains_now: the fewest and the most NUMA domains that the chunk would be spread over; None where it does not fit
    now or where nobody knows the hosts' domains. domains_best: the fewest on an empty cluster, and domains_most the
    most on any placement; 0 where that is not known or the job fits nowhere.
    largest_now: the most `ncpus` that a chunk otherwise like this one could get at once.
    queues: the execution queues that would take it; the first is where a routing queue sends it.
    """

    ever: bool
    now: bool | None
    refused: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    domains_now: tuple[int, int] | None = None
    domains_best: int = 0
    domains_most: int = 0
    largest_now: int = 0
    queues: tuple[str, ...] = ()
    limits_left: Headroom = Headroom()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large one chunk may be, in cores: `now`, `ever`, and within one NUMA domain; `free` are all free cores.

    The figures of domains are 0 where nobody knows the hosts' domains.
    """

    free: int
    now: int
    ever: int
    domain_now: int
    domain_ever: int
