"""One job as the MoM has it, and how its processes are reached: by the session, or through its simulator."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

from . import processes
from .processes import Usage
from .simulated import Simulator


class Task:
    """One job's processes: the session `pid`, or none of its own where `simulator` is set."""

    def __init__(self, spec: dict[str, Any], pid: int, now: float, simulator: Simulator | None = None) -> None:
        self.spec = spec
        self.id: str = spec["job"]
        self.pid = pid
        self.simulator = simulator
        self.status: int | None = None
        self.over_walltime = False
        self.kill_at: float | None = None
        self.usage = Usage()
        self.started = now
        self.stopped_at = 0.0
        self.stopped_for = 0.0
        self.delivering = 0
        self.reported_usage = False
        self.confirmed = False

    def send(self, number: int) -> None:
        """A signal to every process; a simulated job knows SIGTERM only."""
        if self.simulator is None:
            processes.signal_sessions({self.pid}, number)
        elif number == signal.SIGTERM:
            self.simulator.order("terminate", self.id)


def kill(tasks: Iterable[Task]) -> None:
    """SIGKILL to every process of these jobs."""
    tasks = list(tasks)
    for task in tasks:
        if task.simulator is not None:
            task.simulator.order("kill", task.id)
    if real := {task.pid for task in tasks if task.simulator is None}:
        processes.kill_sessions(real)
