"""Faults on demand, and the count of connections: what a login host's reserved ports and a bad day do to a client."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

WINDOW = 60.0
PORTS_TEXT = "pbs_iff: cannot connect to host\npbs_iff: all reserved ports in use\n"
SWITCHES = ("refuse", "garbage", "down")


@dataclass(slots=True)
class Faults:
    """Which faults are on. Times are seconds of a monotonic clock.

    `budget` is how many connections the login host has a minute, for all its users; None for no limit. `lose_replies`
    counts the qsubs whose reply is still to be lost, -1 for all.
    """

    budget: int | None = None
    slow: float = 0.0
    refuse: bool = False
    garbage: bool = False
    down: bool = False
    lose_replies: int = 0
    total: int = 0
    recent: deque[float] = field(default_factory=deque)
    refused: int = 0

    def set(self, name: str, value: str) -> None:
        """Turn a fault on or off by the words of minipbs-fault. Raises ValueError."""
        off = value == "off"
        if name == "connection-budget":
            self.budget = None if off else int(value)
        elif name == "slow":
            self.slow = 0.0 if off else float(value)
        elif name == "lose-reply":
            self.lose_replies = 0 if off else -1 if value == "on" else int(value)
        elif name in SWITCHES and value in ("on", "off"):
            setattr(self, name, not off)
        else:
            raise ValueError(f"no such fault: {name} {value}")

    def admit(self, now: float) -> bool:
        """Whether a new connection finds a free port now; counts it if so."""
        while self.recent and self.recent[0] <= now - WINDOW:
            self.recent.popleft()
        if self.budget is not None and len(self.recent) >= self.budget:
            return False
        self.recent.append(now)
        self.total += 1
        return True

    def loses_reply(self) -> bool:
        """Whether this qsub's reply is lost."""
        if self.lose_replies > 0:
            self.lose_replies -= 1
            return True
        return self.lose_replies < 0

    def stats(self, now: float, wall: float) -> dict[str, Any]:
        """Connections so far, the times (epoch) of those of the last minute, and how many found no port."""
        times = [round(wall - (now - at), 3) for at in self.recent if at > now - WINDOW]
        return {"connections": self.total, "last_minute": times, "refused": self.refused}


def garble(text: str) -> str:
    """JSON as a broken server writes it: a stray line, and cut in the middle."""
    return "pbs_statjob: protocol error\n" + text[: len(text) // 2] + '\\q"'
