"""One SSH session as a byte stream: a reader and a writer thread between paramiko's blocking calls and the event loop.

`recv` and `send` may block on a rekey or on the socket whatever select says, so neither runs on the event loop. Both
directions are bounded: the reader by slots, the writer by bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import paramiko

from pbs_adapter.transport import TransportError

_CHUNK = 64 * 1024
_SLOTS = 16  # chunks read but not yet taken
_BUDGET = 128 * 1024  # bytes taken but not yet handed to the connection
_GRACE = 10.0  # s; after the end of its input the helper may finish what it is writing
_ERRORS = (OSError, EOFError, paramiko.SSHException)


class SshStream:
    """See `ByteStream`. `kill` ends the whole connection at once."""

    diagnostics = ""  # standard error is part of the output

    def __init__(self, channel: paramiko.Channel, kill: Callable[[], None]) -> None:
        self._channel, self._kill = channel, kill
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[bytes] = deque()
        self._slots = threading.Semaphore(_SLOTS)
        self._changed = asyncio.Event()  # something arrived, or the end
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued = 0
        self._room = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._problem = ""
        self._read_done = threading.Event()
        self._ended = asyncio.Event()  # the reader has ended: there is no more input
        self._written = asyncio.Event()  # the writer has ended
        self._threads = [
            threading.Thread(target=self._reader, name="ssh-reader", daemon=True),
            threading.Thread(target=self._writer, name="ssh-writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._ended.is_set() else "open"
        return f"<SshStream {state} queued={self._queued}>"

    @property
    def closed(self) -> bool:
        """Whether `aclose` has done its work."""
        return self._closing is not None and self._closing.done()

    async def read(self, limit: int) -> bytes:
        """See `ByteStream.read`."""
        while not self._chunks:
            if self._ended.is_set():
                if self._problem:
                    raise TransportError(f"the SSH connection broke: {self._problem}")
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = self._chunks.popleft()
        if len(data) > limit:
            self._chunks.appendleft(data[limit:])
            return data[:limit]
        self._slots.release()
        return data

    async def write(self, data: bytes) -> None:
        """See `ByteStream.write`."""
        for at in range(0, len(data), _CHUNK):
            part = data[at : at + _CHUNK]
            while self._queued and self._queued + len(part) > _BUDGET and not self._over:
                self._room.clear()
                await self._room.wait()
            if self._over:
                raise TransportError("the SSH session has ended")
            self._queued += len(part)
            self._outgoing.put(part)

    async def aclose(self) -> None:
        """See `ByteStream.aclose`. Carried through even when the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._end(), name="close ssh stream")
        await asyncio.shield(self._closing)

    @property
    def _over(self) -> bool:
        return self._ended.is_set() or self._written.is_set() or self._closing is not None

    async def _end(self) -> None:
        self._room.set()
        while self._chunks:
            self._discard(self._chunks.popleft())
        self._outgoing.put(None)
        try:
            async with asyncio.timeout(_GRACE + 1):
                await self._written.wait()
                await self._ended.wait()
        except TimeoutError:  # blocked on a peer that does not read
            self._kill()
        await self._written.wait()
        await self._ended.wait()
        for thread in self._threads:
            thread.join()

    def _discard(self, data: bytes) -> None:
        self._slots.release()

    # What follows runs in the threads, but for the callbacks, which `_post` brings to the event loop.

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _reader(self) -> None:
        problem = ""
        try:
            while data := self._channel.recv(_CHUNK):
                self._slots.acquire()
                self._post(self._on_data, data)
        except _ERRORS as error:
            problem = str(error) or type(error).__name__
        ssh = self._channel.get_transport()
        broken = None if ssh is None else ssh.get_exception()
        if broken is not None:
            problem = str(broken) or type(broken).__name__
        self._read_done.set()
        self._post(self._on_end, problem)

    def _writer(self) -> None:
        with contextlib.suppress(*_ERRORS):
            while (data := self._outgoing.get()) is not None:
                self._channel.sendall(data)
                self._post(self._on_sent, len(data))
            self._channel.shutdown_write()
            if not self._read_done.wait(_GRACE):
                self._kill()
            self._channel.close()
        self._post(self._on_written)

    def _on_data(self, data: bytes) -> None:
        if self._closing is not None:
            self._discard(data)
            return
        self._chunks.append(data)
        self._changed.set()

    def _on_sent(self, size: int) -> None:
        self._queued -= size
        self._room.set()

    def _on_end(self, problem: str) -> None:
        self._problem = problem
        self._ended.set()
        self._changed.set()
        self._room.set()

    def _on_written(self) -> None:
        self._written.set()
        self._room.set()
