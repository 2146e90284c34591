"""Keeps one task of one cluster running: what it raises is that cluster's trouble, told and tried again.

Without it the first exception anywhere would end the process, for all clusters, and again after each restart. What must
end an agent (the Lease is lost, it was told to stop) comes as a cancellation, which passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from traceback import format_exception

import structlog

from bridge.kube.clock import BackOff, Clock

STEADY = 300.0  # s after which a task that runs counts as mended

log = structlog.get_logger(__name__)


async def keep_running(
    name: str, run: Callable[[], Awaitable[None]], clock: Clock, failed: Callable[[str, str], None]
) -> None:
    """Await `run()` again and again, with growing pauses; `failed(name, why)` is called each time that it ends."""
    back_off = BackOff(1.0, 60.0)
    while True:
        began = clock.monotonic()
        try:
            await run()
            why = "it ended by itself"
        except Exception as error:  # noqa: BLE001 - a bug in one task must not be the end of the others
            why = in_words(error)
            log.error("task.failed", task=name, error=why, trace="".join(format_exception(error))[-8000:])  # no values
        if clock.monotonic() - began > STEADY:
            back_off.reset()
        failed(name, why)
        await clock.sleep(back_off.pause())


def in_words(error: BaseException) -> str:
    """The first cause of what a task group raises.

    >>> in_words(ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("x", [KeyError("uid")])]))
    "KeyError: 'uid'"
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:500]
