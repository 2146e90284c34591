"""Room for more jobs, and what has been sent there since PBS was last asked. Pure.

Without this, a thousand pods that are gated in one second would all go to the cluster that was best a moment before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bridge.plan.floor import own_queues, promised, takes
from bridge.plan.placement import Placement
from pbs_adapter.models import Census, JobOptions


@dataclass(frozen=True, slots=True)
class Load:
    """Pods routed to a cluster whose jobs its census does not show yet: how many, and what they ask together."""

    pods: int = 0
    ncpus: int = 0
    mem: int = 0
    core_seconds: float = 0.0

    def plus(self, options: JobOptions) -> Load:
        """With one more."""
        cores = options.ncpus
        return Load(
            self.pods + 1,
            self.ncpus + cores,
            self.mem + options.mem_bytes,
            self.core_seconds + cores * options.walltime,
        )


NOTHING = Load()


def total(jobs: Iterable[JobOptions]) -> Load:
    """All of them together."""
    found = NOTHING
    for options in jobs:
        found = found.plus(options)
    return found


@dataclass(frozen=True, slots=True)
class Room:
    """slots: how many jobs of one shape could start now. cores: of all vnodes that work and the queue may use.

    mem: free bytes.
    """

    slots: int
    cores: int
    mem: int = 0

    def taken(self, load: Load, options: JobOptions) -> int:
        """How many of the slots the load takes: exact for jobs of the same shape, on the safe side for most others."""
        by_memory = -(-load.mem * self.slots // self.mem) if self.mem else 0
        return max(-(-load.ncpus // max(1, options.ncpus)), by_memory)


class Rooms:
    """Free and all cores of one cluster's queues, read once a census."""

    def __init__(self) -> None:
        self._census: Census | None = None
        self._own: frozenset[str] = frozenset()  # queues that have vnodes of their own
        self._promises = False
        self._free: dict[tuple[str, str, bool], tuple[Counter[tuple[int, int]], int]] = {}

    def of(self, options: JobOptions, place: Placement, census: Census, *, broken: bool = True) -> Room:
        """Room for jobs that are placed like this. broken: a chunk may lie on several vnodes of a host.

        `place` has looked closer at one job than is done here for many: where it fits there is room for one.
        """
        if census is not self._census:
            self._census, self._free = census, {}
            self._own = own_queues(census.vnodes)
            self._promises = any(map(promised, census.vnodes))
        free, cores = self._queue(place.queues[0] if place.queues else "", census, broken)
        asked = max(1, options.ncpus), max(1, options.mem_bytes)
        slots = sum(many * min(cpus // asked[0], mem // asked[1]) for (cpus, mem), many in free.items())
        left = place.limits_left
        limits = (left.jobs, left.running, None if left.ncpus is None else left.ncpus // asked[0])
        slots = min([max(slots, 1), *(limit for limit in limits if limit is not None)])
        free_mem = sum(many * mem for (_, mem), many in free.items())
        return Room(0 if place.now is False else slots, cores, free_mem)

    def _queue(self, name: str, census: Census, broken: bool) -> tuple[Counter[tuple[int, int]], int]:
        partition = next((queue.partition for queue in census.queues if queue.name == name), "")
        key = (name if name in self._own or self._promises else "", partition or "", broken)
        if key not in self._free:
            self._free[key] = _free(census, *key, self._own)
        return self._free[key]


def _free(
    census: Census, queue: str, partition: str, broken: bool, own: frozenset[str]
) -> tuple[Counter[tuple[int, int]], int]:
    """How often each size of free room (cores, bytes) is there, and all cores that work."""
    hosts: dict[str, tuple[int, int]] = {}
    cores = 0
    for vnode in census.vnodes:
        if not vnode.up or (vnode.partition or "") != partition or not takes(vnode, queue, own):
            continue
        cores += vnode.ncpus
        if vnode.usable:
            where = vnode.host if broken else vnode.name
            cpus, mem = hosts.get(where, (0, 0))
            free = max(0, vnode.ncpus - vnode.ncpus_assigned), max(0, vnode.mem - vnode.mem_assigned)
            hosts[where] = cpus + free[0], mem + free[1]
    return Counter(hosts.values()), cores
