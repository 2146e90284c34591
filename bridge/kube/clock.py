"""Time as loops see it, so that tests can run a day in a millisecond.

Wall time is for what others read (timestamps in objects), monotonic time for decisions about what has run out.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Seconds, always."""

    def time(self) -> float:
        """UTC epoch seconds."""

    def monotonic(self) -> float:
        """Seconds that never jump; meaningful only as differences."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """UTC epoch seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


async def wait(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait for a wake-up or for `seconds`, whichever comes first; clear the event; True when it was the wake-up."""
    if not event.is_set():
        tasks = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    woken = event.is_set()
    event.clear()
    return woken


class BackOff:
    """Pauses that double from `first` to `most` seconds, each with full jitter above half of it."""

    def __init__(self, first: float = 0.5, most: float = 30.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def reset(self) -> None:
        """After a success: start over."""
        self._next = self._first

    def pause(self, at_least: float | None = None) -> float:
        """The next pause in seconds, not below `at_least` (a server's Retry-After)."""
        base, self._next = self._next, min(self._most, self._next * 2)
        return max(base * random.uniform(0.5, 1.0), at_least or 0.0)


def rfc3339(epoch: float) -> str:
    """metav1.Time: whole seconds, UTC.

    >>> rfc3339(1796030799.9)
    '2026-11-30T09:26:39Z'
    """
    return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(epoch: float) -> str:
    """metav1.MicroTime, as Leases have it.

    >>> rfc3339_micro(1796030799.5)
    '2026-11-30T09:26:39.500000Z'
    """
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str | None) -> float | None:
    """Epoch seconds of a Time or MicroTime; None for nothing or nonsense."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
