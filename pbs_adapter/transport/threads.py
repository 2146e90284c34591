"""Blocking calls beside the event loop: each in a thread of its own that ends before its caller does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_HEAVY = threading.Lock()


async def in_thread(name: str, work: Callable[[], T], kill: Callable[[], None]) -> T:
    """Run `work` in a thread. When the caller is cancelled, `kill` must make `work` end, and its end is awaited."""
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        kill()
        await asyncio.gather(future, return_exceptions=True)
        raise
    finally:
        executor.shutdown(wait=future.done())  # an idle thread ends at once


async def beside(name: str, work: Callable[[], T]) -> T:
    """Run what takes much memory for a moment: in a thread, and one at a time in this process."""

    def alone() -> T:
        with _HEAVY:
            return work()

    return await in_thread(name, alone, kill=lambda: None)
