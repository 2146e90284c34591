"""Can this job ever run on this cluster? Asked of the cluster's size and its queues' limits, not of what is free now.

PBS accepts many a job that no host could hold and then lets it wait for ever; the bridge says so instead, with numbers.
Hosts that are down count: they may come back. A job over a limit of its queue PBS refuses itself, with its own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pbs_adapter.models import Census, JobOptions
from pbs_adapter.remote.parse import Queue, Vnode, group_by_host


@dataclass(frozen=True, slots=True)
class Fit:
    """Why the job may never run, each with what it asks and what there is at most; nothing: it may run one day.

    over: limits of queue and server; PBS refuses such a job. too_big: no host holds it; PBS takes it all the same.
    """

    over: tuple[str, ...] = ()
    too_big: tuple[str, ...] = ()

    @property
    def ever(self) -> bool:
        """Whether the job may run one day."""
        return not (self.over or self.too_big)

    @property
    def message(self) -> str:
        """All of it in one line; empty when the job may run."""
        return "; ".join((*self.over, *self.too_big))


def fit(options: JobOptions, census: Census) -> Fit:
    """Compare the job's one chunk with hosts, and its totals with the queue's and the server's `resources_max`."""
    queues = _queues(options.queue or census.server.default_queue, census)
    over_server = list(_over(_asked(options), census.server.resources_max, "the server allows"))
    over_queues = [list(_over(_asked(options), q.resources_max, f"queue {q.name} allows")) for q in queues]
    over = over_server + (min(over_queues, key=len) if over_queues and all(over_queues) else [])
    names = {queue.name for queue in queues}
    vnodes = [v for v in census.vnodes if not v.queue or not names or v.queue in names]
    too_big = _too_big(_asked(options), group_by_host(vnodes)) if vnodes else []
    return Fit(tuple(over), tuple(too_big))


class Fits:
    """`fit` against the newest census, worked out once for all pods that ask the same."""

    def __init__(self) -> None:
        self._census: Census | None = None
        self._known: dict[str, Fit] = {}

    def of(self, options: JobOptions, census: Census) -> Fit:
        """See `fit`."""
        if census is not self._census:
            self._census, self._known = census, {}
        key = repr(options)
        if key not in self._known:
            self._known[key] = fit(options, census)
        return self._known[key]


def _asked(options: JobOptions) -> dict[str, int]:
    counted = {name: value for name, value in options.resources.items() if isinstance(value, int)}
    return {"ncpus": options.ncpus, "mem": options.mem_bytes, **counted, "walltime": options.walltime}


def _queues(name: str, census: Census) -> list[Queue]:
    """The execution queues that the job may come to: the one named, or where that routes to."""
    by_name: dict[str, Queue] = {queue.name: queue for queue in census.queues}
    names = [name]
    for each in names:  # grows while it is walked
        queue = by_name.get(each)
        destinations = queue.route_destinations if queue is not None else ()
        names += [d.split("@")[0] for d in destinations if d.split("@")[0] not in names]
    return [by_name[n] for n in names if n in by_name and not by_name[n].route_destinations]


def _over(asked: Mapping[str, int], most: Mapping[str, object], who: str) -> Iterator[str]:
    for name, value in asked.items():
        limit = most.get(name)
        if isinstance(limit, (int, float)) and value > limit:
            yield f"asks {name} {_shown(name, value)}, {who} at most {_shown(name, limit)}"


def _too_big(asked: Mapping[str, int], hosts: Mapping[str, tuple[Vnode, ...]]) -> list[str]:
    """Why the chunk fits on no host; empty when it fits on one. Resources that no host reports are left to PBS."""
    reported = {"ncpus", "mem", *(name for vnodes in hosts.values() for v in vnodes for name in v.available)}
    wanted = {name: value for name, value in asked.items() if name in reported and name != "walltime"}
    sizes = [{name: _size(vnodes, name) for name in wanted} for vnodes in hosts.values()]
    if any(all(wanted[name] <= have for name, have in size.items()) for size in sizes):
        return []
    most = {name: max(size[name] for size in sizes) for name in wanted}
    over = [name for name in wanted if wanted[name] > most[name]]
    if over:
        return [f"asks {n} {_shown(n, wanted[n])}, the largest host has {_shown(n, most[n])}" for n in over]
    together = ", ".join(f"{name} {_shown(name, value)}" for name, value in wanted.items())
    return [f"asks {together} on one host, and no host has all of it"]


def _size(vnodes: Iterable[Vnode], name: str) -> int:
    total = 0
    for vnode in vnodes:
        value = {"ncpus": vnode.ncpus, "mem": vnode.mem}.get(name, vnode.available.get(name, 0))
        total += int(value) if isinstance(value, (int, float)) else 0
    return total


def _shown(name: str, value: float) -> str:
    if name == "mem":
        return f"{value / (1 << 30):.4g}Gi"
    return f"{value:.0f}s" if name == "walltime" else f"{value:.0f}"
