"""Keeps one account's connection up: connects, waits until it is lost, pauses, connects again.

Pauses grow to five minutes with jitter; what a person has to mend first (host key, authentication, a newer leader) goes
straight to the longest one. Nothing else reconnects, so an account is never hammered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pbs_adapter.channel.connection import Connection
from pbs_adapter.errors import AdapterError, Fenced, Unreachable
from pbs_adapter.models import LinkHealth
from pbs_adapter.transport import Refused


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds between attempts. A connection that lived for `steady` makes the next pause the first one again."""

    first: float = 1
    longest: float = 300
    steady: float = 60

    def after(self, failures: int, error: AdapterError, chance: float) -> float:
        """Return the pause after so many failures in a row (from 1 on); `chance` is from 0 to 1.

        >>> [Pauses().after(failures, Unreachable(), 1) for failures in (1, 2, 5, 99)]
        [1.0, 2.0, 16.0, 300.0]
        >>> Pauses().after(5, Unreachable(), 0), Pauses().after(1, Fenced(), 1)
        (8.0, 300.0)
        """
        lasting = isinstance(error, Refused | Fenced)
        pause = self.longest if lasting else min(self.longest, self.first * 2 ** min(failures - 1, 30))
        return pause * (0.5 + chance / 2)


class Supervisor:
    """Owns the connection of one account. `connect` makes a greeted connection or raises `AdapterError`."""

    def __init__(self, name: str, connect: Callable[[], Awaitable[Connection]], pauses: Pauses | None = None) -> None:
        self._name, self._connect, self._pauses = name, connect, pauses or Pauses()
        self._connection: Connection | None = None
        self._error: AdapterError = Unreachable("connecting")
        self._since = time.time()
        self._settled = asyncio.Event()  # connected or fenced: there is nothing to wait for
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Supervisor {self._name} {self._connection or self._error}>"

    def start(self) -> None:
        """Begin to connect in the background."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"supervisor {self._name}")

    def wake(self) -> None:
        """Try again now rather than after the pause."""
        self._wake.set()

    async def connection(self, wait: float = 0) -> Connection:
        """Return the live connection, for which it waits up to `wait` s. Raises `Unreachable` or `Fenced`."""
        if self._connection is None and wait > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._settled.wait()
        if self._connection is None:
            kind = Fenced if isinstance(self._error, Fenced) else Unreachable
            raise kind(str(self._error)) from self._error
        return self._connection

    @property
    def health(self) -> LinkHealth:
        """The state of the channel now."""
        connection = self._connection
        if connection is None:
            return LinkHealth(False, self._since, str(self._error))
        return LinkHealth(True, self._since, rtt_ms=None if connection.rtt is None else connection.rtt * 1000)

    async def aclose(self) -> None:
        """Close the connection, or stop connecting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is None:
            self._error = Unreachable("closed")

    async def _run(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            self._error = await self._attempt()
            if isinstance(self._error, Fenced):
                self._settled.set()
            failures = 1 if time.monotonic() - began > self._pauses.steady else failures + 1
            pause = self._pauses.after(failures, self._error, random.random())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    async def _attempt(self) -> AdapterError:
        """Connect, and stay until the connection is lost; return why it is not up."""
        try:
            connection = await self._connect()
        except AdapterError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever one attempt raises, the next one must still be made
            return Unreachable(f"connecting failed: {type(error).__name__}: {error}")
        try:
            self._flip(connection)
            return Unreachable(await connection.lost())
        finally:
            self._flip(None)
            await connection.aclose()

    def _flip(self, connection: Connection | None) -> None:
        self._connection = connection
        self._since = time.time()
        self._wake.clear()
        if connection is None:
            self._settled.clear()
        else:
            self._settled.set()
