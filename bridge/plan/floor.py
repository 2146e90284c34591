"""Hosts that the settings promise: they are not there yet, and appear when jobs wait for them (cloud, power saving).

A census that PBS shows empty would make the node offer nothing and every job impossible, so nothing would ever be
queued and no host ever made. What is missing of the promised hosts is added to the census as vnodes that work and have
no room now: capacity counts them, a job that fits on one may run one day, and none starts there at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bridge.api.settings import HostShape
from pbs_adapter.models import Census
from pbs_adapter.remote.parse import Vnode, group_by_host, parse_resource

_FLOOR = frozenset({"promised-by-the-settings"})


def with_floor(census: Census, shapes: Sequence[HostShape]) -> Census:
    """The census with the hosts that are missing of each shape."""
    if not shapes:
        return census
    partitions = {queue.name: queue.partition or "" for queue in census.queues}
    hosts = [tuple(vnodes) for vnodes in group_by_host(v for v in census.vnodes if v.up).values()]
    added = [
        vnode
        for number, shape in enumerate(shapes)
        for vnode in _missing(shape, number, hosts, partitions.get(shape.queue or "", ""))
    ]
    return replace(census, vnodes=(*census.vnodes, *added))


def _missing(shape: HostShape, number: int, hosts: Iterable[Sequence[Vnode]], partition: str) -> Iterator[Vnode]:
    there = sum(
        sum(v.ncpus for v in vnodes) >= shape.cpu and all((v.queue or "") in ("", shape.queue or "") for v in vnodes)
        for vnodes in hosts
    )
    given = {n: parse_resource(n, v) if isinstance(v, str) else v for n, v in shape.resources.items()}
    for index in range(there, shape.count):
        name = f"promised-{number}-{index}"
        yield Vnode(
            name=name,
            host=name,
            states=_FLOOR,
            usable=False,
            up=True,
            ncpus=shape.cpu,
            ncpus_assigned=0,
            mem=shape.memory,
            mem_assigned=0,
            available={"ncpus": shape.cpu, "mem": shape.memory, **given},
            assigned={},
            jobs=(),
            sharing="default_shared",
            queue=shape.queue or "",
            partition=partition,
            pcpus=None,
            comment="not there yet: hostShapes of the settings",
        )


def promised(vnode: Vnode) -> bool:
    """Whether it is one that the settings promise."""
    return vnode.states == _FLOOR


def own_queues(vnodes: Iterable[Vnode]) -> frozenset[str]:
    """Queues that have vnodes of their own; a promise does not take the others' away."""
    return frozenset(vnode.queue for vnode in vnodes if vnode.queue and not promised(vnode))


def takes(vnode: Vnode, queue: str, own: frozenset[str]) -> bool:
    """Whether jobs of the queue may come to the vnode; partitions apart."""
    if promised(vnode):
        return vnode.queue in ("", queue)
    return (vnode.queue or "") == (queue if queue in own else "")
