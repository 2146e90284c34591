"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class VirtualClock:
    """Implements `bridge.kube.clock.Clock`. Sleepers wake in the order of their time, however far it advances."""

    def __init__(self, epoch: float = 1_796_030_800.0) -> None:
        self._epoch = epoch
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        """UTC epoch seconds."""
        return self._epoch + self._now

    def monotonic(self) -> float:
        """Seconds since the test began."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Until `advance` has passed the time."""
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(seconds, 0.0), next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, giving every task that wakes its turn."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
                await settle()
        self._now = end


async def settle() -> None:
    """Let all tasks run until they wait for something."""
    for _ in range(30):
        await asyncio.sleep(0)
