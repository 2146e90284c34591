"""What a virtual node offers: what the account can really use; to pods, times the cluster's overcommit. Pure.

Usable are the vnodes that are up and open to the queues that pods may name, bounded by PBS's own limits for a user.
Quantities are written as the API server would write them back, so that a status can be compared as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.api.settings import Cluster
from bridge.plan.limits import destinations
from pbs_adapter.models import Census
from pbs_adapter.remote.parse import Limits, Queue, Vnode, group_by_host, limit_for_user


@dataclass(frozen=True, slots=True)
class Capacity:
    """`capacity` and `allocatable` as in a Node's status. The rest is for messages: what one job can have at most.

    host_ncpus and host_mem (bytes) are of the largest usable host; domain_* of the largest vnode (NUMA domain).
    """

    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    host_ncpus: int = 0
    host_mem: int = 0
    domain_ncpus: int = 0
    domain_mem: int = 0


def capacity(census: Census, cluster: Cluster, user: str = "") -> Capacity:
    """What the node offers. `user`: whose limits hold; without a name the generic ones."""
    queues = usable_queues(census, cluster)
    vnodes = usable_vnodes(census, queues)
    limits = [census.server.limits, *(queue.limits for queue in queues[:1])]

    def usable(resource: str) -> int:
        total = sum(_number(vnode, resource) for vnode in vnodes)
        bounds = [limit_for_user(each.max_run_res.get(resource, ()), user) for each in limits]
        return min([total, *(bound for bound in bounds if bound is not None)])

    def amounts(times: float) -> dict[str, str]:
        found = {
            "cpu": decimal(int(usable("ncpus") * times)),
            "memory": binary(int(usable("mem") * times) // 1024 * 1024),
            "pods": decimal(min([cluster.pods, *_queued(limits, user)])),
            "ephemeral-storage": "0",  # pods may ask for it only where the settings map it to a resource of PBS
        }
        for name, resource in cluster.resources.items():
            amount = int(usable(resource) * times)
            found[name] = binary(amount // 1024 * 1024) if name == "ephemeral-storage" else decimal(amount)
        return found

    hosts = [group for group in group_by_host(vnodes).values() if group]
    return Capacity(
        capacity=amounts(1),
        allocatable=amounts(cluster.overcommit),
        host_ncpus=max((sum(v.ncpus for v in group) for group in hosts), default=0),
        host_mem=max((sum(v.mem for v in group) for group in hosts), default=0),
        domain_ncpus=max((v.ncpus for v in vnodes), default=0),
        domain_mem=max((v.mem for v in vnodes), default=0),
    )


def usable_queues(census: Census, cluster: Cluster) -> list[Queue]:
    """The queues pods may name, the one for pods that name none first; routing queues with where they lead."""
    by_name: dict[str, Queue] = {queue.name: queue for queue in census.queues}
    names = [cluster.queue or census.server.default_queue, *cluster.queues]
    for name in names:  # grows while it is walked: destinations of destinations
        found = by_name.get(name)
        if found is not None:
            here, _ = destinations(found, census.server.name or "")
            names += [each for each in here if each not in names]
    return [by_name[name] for name in dict.fromkeys(names) if name in by_name]


def usable_vnodes(census: Census, queues: Iterable[Queue]) -> list[Vnode]:
    """Vnodes that work, though perhaps full, and that take jobs of these queues."""
    names = {queue.name for queue in queues}
    return [vnode for vnode in census.vnodes if vnode.up and (not vnode.queue or vnode.queue in names)]


def _number(vnode: Vnode, resource: str) -> int:
    value = {"ncpus": vnode.ncpus, "mem": vnode.mem}.get(resource, vnode.available.get(resource, 0))
    return int(value) if isinstance(value, (int, float)) else 0


def _queued(limits: Iterable[Limits], user: str) -> list[int]:
    """Most jobs a user may have in PBS at once."""
    bounds = [limit_for_user(each.max_queued, user) for each in limits]
    return [bound for bound in bounds if bound is not None]


def decimal(number: int) -> str:
    """A count in the API's canonical form.

    >>> decimal(64), decimal(2000), decimal(0)
    ('64', '2k', '0')
    """
    return _canonical(number, 1000, ("", "k", "M", "G", "T", "P", "E"))


def binary(number: int) -> str:
    """Bytes in the API's canonical form.

    >>> binary(64 << 30), binary(3 << 10), binary(5)
    ('64Gi', '3Ki', '5')
    """
    return _canonical(number, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))


def _canonical(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while number and number % base == 0 and power < len(suffixes) - 1:
        number //= base
        power += 1
    return f"{number}{suffixes[power]}"
