"""Small PBS complexes as a census shows them, made by hand: hosts of vnodes, queues with limits, jobs."""

from __future__ import annotations

from typing import Any

from pbs_adapter.models import Census, CensusJob
from pbs_adapter.remote.parse import Limit, Limits, Queue, Server, Vnode

Gi = 1 << 30
NONE = Limits((), (), {}, {}, ())


def limits(
    *,
    run: tuple[Limit, ...] = (),
    queued: tuple[Limit, ...] = (),
    run_res: dict[str, tuple[Limit, ...]] | None = None,
    queued_res: dict[str, tuple[Limit, ...]] | None = None,
    waiting: tuple[Limit, ...] = (),
) -> Limits:
    return Limits(run, queued, run_res or {}, queued_res or {}, waiting)


def each(value: int) -> tuple[Limit, ...]:
    """A limit for any user."""
    return (Limit("u", "PBS_GENERIC", value),)


def all_together(value: int) -> tuple[Limit, ...]:
    return (Limit("o", "PBS_ALL", value),)


def server(**fields: Any) -> Server:
    empty: dict[str, Any] = {name: {} for name in Server._fields if name.startswith("resources_")}
    base: dict[str, Any] = dict.fromkeys(Server._fields) | empty | {"default_chunk": {}, "state_count": {}}
    own = {"name": "pbs", "default_queue": "workq", "scheduling": True, "limits": NONE, "total_jobs": 0}
    return Server(**base | own | fields)


def queue(name: str = "workq", *destinations: str, **fields: Any) -> Queue:
    empty: dict[str, Any] = {field: {} for field in Queue._fields if field.startswith("resources_")}
    base: dict[str, Any] = dict.fromkeys(Queue._fields) | empty | {"default_chunk": {}, "state_count": {}}
    kind = "Route" if destinations else "Execution"
    own = {"name": name, "type": kind, "enabled": True, "started": True, "total_jobs": 0, "from_route_only": False}
    own |= {"limits": NONE, "route_destinations": destinations, "partition": ""}
    return Queue(**base | own | fields)


def vnode(
    name: str,
    ncpus: int = 8,
    mem: int = 16 * Gi,
    *,
    used: int = 0,
    used_mem: int = 0,
    state: str = "free",
    queue: str = "",
    sharing: str = "default_shared",
    reservations: tuple[str, ...] = (),
    **available: Any,
) -> Vnode:
    """`n1[0]` is a vnode of host n1. `used` of its cores are assigned to a job."""
    states = frozenset(state.split(","))
    taken = {"ncpus": used, "mem": used_mem}
    return Vnode(
        name=name,
        host=name.split("[")[0],
        states=states,
        usable=states == {"free"},
        up=not states & {"down", "offline"},
        ncpus=ncpus,
        ncpus_assigned=used,
        mem=mem,
        mem_assigned=used_mem,
        available={"ncpus": ncpus, "mem": mem} | available,
        assigned={key: value for key, value in taken.items() if value},
        jobs=("7.pbs",) if used or used_mem else (),
        sharing=sharing,
        queue=queue,
        partition="",
        pcpus=None,
        comment="",
        reservations=reservations,
    )


def job(owner: str = "alice", queue: str = "workq", ncpus: int = 1, state: str = "R") -> CensusJob:
    return CensusJob("7", owner, queue, ncpus, 3600, state, 60 if state == "R" else None)


def census(
    *vnodes: Vnode, queues: tuple[Queue, ...] = (queue(),), jobs: tuple[CensusJob, ...] = (), **server_fields: Any
) -> Census:
    """Alice's look at a complex."""
    return Census(1.0, server(**server_fields), queues, vnodes, {}, (), jobs, 1.0, "alice")
