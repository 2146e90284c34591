"""One live byte stream to a helper: many requests and streams in flight, liveness by ping.

Three tasks: reader, writer, ping. Whichever fails first ends the connection for everyone: what had left has an unknown
outcome, what had not may be tried again. Nothing is sent before the helper's magic line, since until then a login
script may be reading.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from pbs_adapter.channel.calls import Call, Reply, StreamCall
from pbs_adapter.channel.outbox import Outbox
from pbs_adapter.errors import AdapterError, Permanent, Unreachable
from pbs_adapter.models import Json
from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Assembler, Decoder, Frame, WireError
from pbs_adapter.transport import ByteStream

_READ = 256 * 1024


class Connection:
    """See the module. `close` is awaited after the stream is closed (it closes the transport). Times in seconds."""

    def __init__(
        self,
        stream: ByteStream,
        close: Callable[[], Awaitable[None]],
        *,
        ping_every: float = 5,
        ping_deadline: float = 15,
    ) -> None:
        self._stream, self._close = stream, close
        self._ping_every, self._ping_deadline = ping_every, ping_deadline
        self._ids = itertools.count(1)
        self._last_id = 0
        self._calls: dict[int, Call | StreamCall] = {}
        self._outbox = Outbox()
        self._decoder = Decoder(magic=True)
        self._heard = b""  # the last of what came before the magic line
        self._assembler = Assembler()
        self._started = asyncio.Event()  # the magic line has come
        self._pong = asyncio.Event()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why it was lost
        self.rtt: float | None = None
        self.hello: Json = {}
        self._tasks = [
            asyncio.create_task(self._guard(work), name=f"channel {name}")
            for name, work in (("reader", self._read()), ("writer", self._write()), ("ping", self._ping()))
        ]

    def __repr__(self) -> str:
        state = f"lost: {self._over.result()}" if self._over.done() else "up" if self.hello else "starting"
        return f"<Connection {state} pending={len(self._calls)}>"

    @classmethod
    async def open(
        cls,
        stream: ByteStream,
        close: Callable[[], Awaitable[None]],
        hello: Json,
        *,
        deadline: float = 60,
        ping_every: float = 5,
        ping_deadline: float = 15,
    ) -> Connection:
        """Wait for the helper and greet it. Raises `AdapterError`; then stream and transport are closed."""
        connection = cls(stream, close, ping_every=ping_every, ping_deadline=ping_deadline)
        try:
            async with asyncio.timeout(deadline):
                connection.hello = (await connection.request({**hello, "op": "hello"}, idempotent=True)).head
        except TimeoutError as error:
            await connection.aclose()
            raise Unreachable(f"the helper did not answer within {deadline:g} s{connection._said()}") from error
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def request(self, head: Json, body: bytes = b"", *, idempotent: bool = False) -> Reply:
        """Ask, and wait for the answer. `idempotent`: harmless to repeat, so its loss is never an unknown outcome."""
        call = Call(idempotent)
        ident = self._send(head, body, call)
        try:
            return await call.reply
        finally:
            self._forget(ident)

    async def stream(self, head: Json) -> AsyncGenerator[bytes, None]:
        """Ask for a stream and yield its chunks. Leaving the iteration early stops the helper too."""
        call = StreamCall()
        ident = self._send(head, b"", call)
        try:
            while (chunk := await call.next()) is not None:
                yield chunk
                if credit := call.credit(len(chunk)):
                    self._outbox.control(Frame(ident, wire.CREDIT, {"bytes": credit}))
        finally:
            self._forget(ident)

    async def lost(self) -> str:
        """Wait until the connection is lost; return why."""
        return await asyncio.shield(self._over)

    async def aclose(self) -> None:
        """End it; what still waits gets its error."""
        healthy = not self._over.done()
        self._lose("closed by this side")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if healthy:  # the helper may finish what it is writing; else there is nobody to wait for
            await self._stream.aclose()
        await self._close()

    def _send(self, head: Json, body: bytes, call: Call | StreamCall) -> int:
        if self._over.done():
            raise Unreachable(f"the connection was lost: {self._over.result()}")
        ident = next(self._ids)
        try:
            frames = wire.split(Frame(ident, wire.REQUEST, head, body))
        except WireError as error:
            raise Permanent(f"the request cannot be sent: {error}") from error
        self._last_id = ident
        self._calls[ident] = call
        self._outbox.add(frames, call.leaves)
        return ident

    def _forget(self, ident: int) -> None:
        """The caller waits no longer; when that is news to the helper, tell it."""
        if self._calls.pop(ident, None) is not None and self._outbox.drop(ident):
            self._outbox.control(Frame(ident, wire.CANCEL))

    def _lose(self, reason: str) -> None:
        if self._over.done():
            return
        self._over.set_result(reason)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lose(reason)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - however one of the three ends, the connection is over
            expected = isinstance(error, AdapterError | WireError)
            self._lose(str(error) if expected else f"{type(error).__name__}: {error}")

    async def _read(self) -> None:
        while data := await self._stream.read(_READ):
            if not self._decoder.started:
                self._heard = (self._heard + data)[-4096:]
            for frame in self._decoder.feed(data):
                self._receive(frame)
            if self._decoder.started:
                self._started.set()
        if not self._decoder.started:
            raise Unreachable(f"the helper did not start{self._said()}")
        raise Unreachable(f"the helper has ended{self._said()}")

    def _receive(self, frame: Frame) -> None:
        if frame.kind == wire.PONG:
            self._pong.set()
            return
        message = self._assembler.add(frame)
        if message is None:
            return
        call = self._calls.get(message.id)
        if call is not None:
            if call.receive(message):
                del self._calls[message.id]
        elif not 0 < message.id <= self._last_id:
            raise WireError(f"an answer to a request that was never made: {message.id}")

    async def _write(self) -> None:
        await self._started.wait()
        while True:
            await self._stream.write(wire.encode(await self._outbox.take()))

    async def _ping(self) -> None:
        await self._started.wait()
        while True:
            self._pong.clear()
            sent = time.monotonic()
            self._outbox.control(Frame(0, wire.PING))
            try:
                async with asyncio.timeout(self._ping_deadline):
                    await self._pong.wait()
            except TimeoutError as error:
                raise Unreachable(f"no answer to a ping within {self._ping_deadline:g} s") from error
            self.rtt = time.monotonic() - sent
            await asyncio.sleep(self._ping_every)

    def _said(self) -> str:
        """What came instead of a helper, for messages."""
        said = "" if self._decoder.started else self._heard.decode("utf-8", "replace")
        said += self._stream.diagnostics
        words = " ".join("".join(c if c.isprintable() else " " for c in said).split())
        return f": {words[-400:]}" if words else ""
