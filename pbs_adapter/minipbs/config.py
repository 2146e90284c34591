"""What one embedded PBS is made of: hosts, queues, limits; frozen, and the same as JSON in PREFIX/etc/config.json.

Sizes are bytes, times are seconds. Resource values of queues are written as an administrator writes them: "01:00:00",
"4gb".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

GIB = 1 << 30
DIALECTS = ("release", "main")


@dataclass(frozen=True)
class Host:
    """An execution host; with `numa` of two or more it has vnodes `name[0]`…, and a natural vnode of size zero.

    `resources` are totals of the host (such as ngpus), shared out evenly over the NUMA domains.
    """

    name: str
    ncpus: int
    mem: int = 16 * GIB
    numa: int = 1
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue:
    """A queue. Limits are in PBS's own notation: "[u:PBS_GENERIC=2],[o:PBS_ALL=10],[u:alice=3]"; "" means no limit."""

    name: str
    type: str = "Execution"
    enabled: bool = True
    started: bool = True
    priority: int = 0
    resources_max: Mapping[str, str] = field(default_factory=dict)
    resources_min: Mapping[str, str] = field(default_factory=dict)
    resources_default: Mapping[str, str] = field(default_factory=dict)
    max_run: str = ""
    max_queued: str = ""
    route_destinations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    """One PBS complex.

    `users` are accounts that exist in PBS only: the user who owns the server may act as one of them by the environment
    variable MINIPBS_USER (their jobs then run as that owner), so that other people's jobs can be had without root.
    `start_delay` keeps a job in substate 41 ("sent for execution") that long before its MoM confirms the start,
    `end_delay` in state E before it is finished.
    `projects`, where there are any, are those that jobs may name with -P: a site's hook refuses others.
    `root_jobs` lets root submit jobs (acl_roots); otherwise that is "Bad UID for job execution".
    `simulate` runs jobs whose command is `PYTHON PODRUN.pyz DIR` without a process each, see simulated.py.
    `strict_ordering` reserves room for the first job that cannot run, and backfills only what does not delay it.
    """

    hosts: tuple[Host, ...]
    server: str = "pbs"
    dialect: str = "release"
    queues: tuple[Queue, ...] = (Queue("workq"),)
    default_queue: str = "workq"
    resources_default: Mapping[str, str] = field(default_factory=dict)
    max_run: str = ""
    max_queued: str = ""
    max_array_size: int = 10000
    job_history: bool = True
    kill_delay: float = 10.0
    scheduler_iteration: float = 10.0
    strict_ordering: bool = False
    start_delay: float = 0.0
    end_delay: float = 0.0
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    root_jobs: bool = False
    simulate: bool = False
    python: str = "/usr/bin/python3"

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise ValueError(f"dialect must be one of {DIALECTS}, not {self.dialect!r}")
        if self.default_queue not in {queue.name for queue in self.queues}:
            raise ValueError(f"default_queue {self.default_queue!r} is not among the queues")

    def dumps(self) -> str:
        """JSON that `loads` reads back."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def loads(cls, text: str) -> Config:
        """The configuration that `dumps` wrote. Raises ValueError or TypeError for anything else."""
        data: dict[str, Any] = json.loads(text)
        data["hosts"] = tuple(Host(**host) for host in data["hosts"])
        data["queues"] = tuple(
            Queue(**{**queue, "route_destinations": tuple(queue.get("route_destinations", ()))})
            for queue in data.get("queues", [{"name": "workq"}])
        )
        for name in ("users", "projects"):
            data[name] = tuple(data.get(name, ()))
        return cls(**data)
