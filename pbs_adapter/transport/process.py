"""Child processes as byte streams: what `command` and `local` share.

Each child has a process group of its own, which is killed at the latest when its stream is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import cast

from pbs_adapter.transport import ByteStream, TransportError
from pbs_adapter.transport.install import install

_TAIL = 4096
_MOST_OUTPUT = 256 * 1024
#: After the end of its input a helper may finish what it is writing, for example the job id after a qsub.
GRACE = 10.0


class _Pipes(asyncio.SubprocessProtocol):
    """The child's pipes. Standard input and output are bounded, of standard error the end is kept."""

    def __init__(self) -> None:
        self.transport: asyncio.SubprocessTransport | None = None
        self.output = bytearray()
        self.errors = b""
        self.ended = False  # no more output will come
        self.problem: Exception | None = None  # why input cannot be written
        self.changed = asyncio.Event()
        self.writable = asyncio.Event()
        self.exited = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self.errors = (self.errors + data)[-_TAIL:]
            return
        self.output += data
        self.changed.set()
        if len(self.output) > _MOST_OUTPUT:
            self._pipe(1).pause_reading()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.problem = exc or BrokenPipeError("the program reads no more")
            self.writable.set()
        elif fd == 1:
            self.ended = True
            self.changed.set()

    def process_exited(self) -> None:
        self.exited.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def take(self, limit: int) -> bytes:
        """Up to `limit` bytes of output."""
        data = bytes(self.output[:limit])
        del self.output[:limit]
        if not self.ended and len(self.output) <= _MOST_OUTPUT:
            self._pipe(1).resume_reading()
        return data

    def _pipe(self, fd: int) -> asyncio.ReadTransport:
        if self.transport is None:
            raise TransportError("the program has not started")
        return cast(asyncio.ReadTransport, self.transport.get_pipe_transport(fd))


class ProcessStream:
    """Standard input and output of a child; the end of its standard error is kept for messages."""

    def __init__(self, transport: asyncio.SubprocessTransport, pipes: _Pipes, grace: float) -> None:
        self._transport, self._pipes, self._grace = transport, pipes, grace
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ProcessStream pid={self._transport.get_pid()} returncode={self._transport.get_returncode()}>"

    @classmethod
    async def start(cls, argv: Sequence[str], grace: float) -> ProcessStream:
        """Start `argv` in a new session. Raises `TransportError` when it cannot be started."""
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(loop.subprocess_exec(_Pipes, *argv, start_new_session=True))
        try:
            return cls(*await asyncio.shield(starting), grace)
        except asyncio.CancelledError:
            # Cancelled while it starts: only its end makes sure that no process is left.
            with contextlib.suppress(OSError, ValueError):
                await cls(*await starting, 0).aclose()
            raise
        except (OSError, ValueError) as error:
            raise TransportError(f"cannot start {argv[0]}: {error}") from error

    @property
    def closed(self) -> bool:
        """Whether `aclose` has done its work."""
        return self._closing is not None and self._closing.done()

    @property
    def diagnostics(self) -> str:
        """The end of standard error."""
        return self._pipes.errors.decode("utf-8", "replace")

    async def read(self, limit: int) -> bytes:
        """See `ByteStream.read`."""
        pipes = self._pipes
        while not pipes.output and not pipes.ended:
            pipes.changed.clear()
            await pipes.changed.wait()
        return pipes.take(limit)

    async def write(self, data: bytes) -> None:
        """See `ByteStream.write`."""
        await self._pipes.writable.wait()
        if self._pipes.problem is not None or self._closing is not None:
            raise TransportError(f"writing failed: {self._pipes.problem or 'closed'}") from self._pipes.problem
        self._stdin.write(data)
        await self._pipes.writable.wait()

    def kill(self) -> None:
        """End the program now, and all that it started in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)

    async def aclose(self) -> None:
        """See `ByteStream.aclose`. Carried through even when the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._end(), name=f"close {self._transport.get_pid()}")
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        self._stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                # A child that still writes would block on a full pipe and never see the end of its input.
                while await self.read(_MOST_OUTPUT):
                    pass
                await self._pipes.exited.wait()
        self.kill()  # also when the leader has ended: what it started must not outlive the channel
        await self._pipes.exited.wait()
        self._transport.close()


class ProcessTransport:
    """A `Transport` whose programs are children of the agent; a closed one has `grace` s to end by itself."""

    def __init__(self, *, grace: float = GRACE) -> None:
        self._grace = grace
        self._streams: list[ProcessStream] = []

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return what is run here so that `argv` runs on the login node."""
        return list(argv)

    async def install(self, name: str, content: bytes, directory: str) -> str:
        """See `Transport.install`."""
        return await install(self.open, name, content, directory)

    async def open(self, argv: Sequence[str]) -> ByteStream:
        """See `Transport.open`."""
        stream = await ProcessStream.start(self.command(argv), self._grace)
        self._streams = [s for s in self._streams if not s.closed] + [stream]
        return stream

    async def aclose(self) -> None:
        """See `Transport.aclose`."""
        for stream in self._streams:
            if not stream.closed:
                stream.kill()
        await asyncio.gather(*(stream.aclose() for stream in self._streams))
