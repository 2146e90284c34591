"""Waiting for what must come to be, and kubectl that does not hold up the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bridge.testbed.control_plane import ControlPlane

PATIENCE = 60.0  # s; far more than anything takes, for machines that are busy


async def until(condition: Callable[[], bool | Awaitable[bool]], patience: float = PATIENCE) -> None:
    """Return when `condition` holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(patience):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run loops beside the test, and end them with it."""
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def kubectl(control_plane: ControlPlane, *args: str, input: str | None = None) -> str:
    """Standard output of kubectl as administrator."""
    done = await asyncio.to_thread(control_plane.kubectl, *args, input=input)
    return done.stdout
