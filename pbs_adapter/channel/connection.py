"""One live byte stream to a helper: many requests and streams in flight, liveness by ping.

Three tasks: reader, writer, ping. Whichever fails first ends the connection for everyone: what had left has an unknown
outcome, what had not may be tried again. Nothing is sent before the helper's magic line, since until then a login
script may be reading.

The helper may be anybody's: what it sends that nobody waits for is counted, and beyond `_USELESS` bytes ends the
connection; what is cut into very small frames gets half of the event loop's time at most.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from pbs_adapter.channel.calls import Call, Reply, StreamCall
from pbs_adapter.channel.outbox import Outbox
from pbs_adapter.errors import AdapterError, OutcomeUnknown, Permanent, Unreachable
from pbs_adapter.models import Json
from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Assembler, Decoder, Frame, WireError
from pbs_adapter.transport import ByteStream

_READ = 256 * 1024
_DEADLINE = 300.0  # s for a request whose caller says nothing
_USELESS = 256 * 1024  # bytes for nobody, beside those that were on their way when their caller left
_LEAVING = 1000  # callers who have left that are remembered
_FRAME = 100  # bytes that a frame counts for, beside its body
_MANY = 500  # frames in one piece of input: as many are no log, but work for its own sake


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
        self._assembler = Assembler(wire.MAX_REPLY + wire.CHUNK, lazy=True)
        self._useless = _USELESS
        self._leaving: dict[int, int] = {}  # by id: bytes that may still come for a caller who has left
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

    async def request(
        self, head: Json, body: bytes = b"", *, idempotent: bool = False, deadline: float = _DEADLINE
    ) -> Reply:
        """Ask, and wait for the answer. `idempotent`: harmless to repeat, so its loss is never an unknown outcome.

        deadline: seconds after which nobody waits any more: `OutcomeUnknown` if it has left, else `Unreachable`.
        """
        call = Call(idempotent)
        ident = self._send(head, body, call)
        try:
            async with asyncio.timeout(deadline):
                return await call.reply
        except TimeoutError as error:
            text = f"the helper has not answered within {deadline:g} s: {head.get('op')}"
            raise (OutcomeUnknown if call.left and not idempotent else Unreachable)(text) from error
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

    def spoilt(self, reason: str) -> None:
        """What the helper has answered is no answer: the connection is over."""
        self._lose(reason)

    def _forget(self, ident: int) -> None:
        """The caller waits no longer; when that is news to the helper, tell it. What is on its way may still come."""
        call = self._calls.pop(ident, None)
        if call is None:
            return
        self._assembler.forget(ident)
        if self._outbox.drop(ident):
            self._outbox.control(Frame(ident, wire.CANCEL))
            self._leaving[ident] = 3 * call.still + _FRAME  # its frames may be small
            if len(self._leaving) > _LEAVING:
                del self._leaving[next(iter(self._leaving))]

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
            began = time.monotonic()
            frames = self._decoder.feed(data)
            for frame in frames:
                self._receive(frame)
            if self._decoder.started:
                self._started.set()
            if len(frames) > _MANY:
                await asyncio.sleep(time.monotonic() - began)
        if not self._decoder.started:
            raise Unreachable(f"the helper did not start{self._said()}")
        raise Unreachable(f"the helper has ended{self._said()}")

    def _receive(self, frame: Frame) -> None:
        if frame.kind == wire.PONG and not self._pong.is_set():
            self._pong.set()
            return
        call = self._calls.get(frame.id)
        if call is None:
            self._waste(frame)
            return
        message = self._assembler.add(frame)
        if message is not None and call.receive(message):
            del self._calls[message.id]

    def _waste(self, frame: Frame) -> None:
        """Count a frame that nobody waits for."""
        if frame.kind != wire.PONG and not 0 < frame.id <= self._last_id:
            raise WireError(f"an answer to a request that was never made: {frame.id}")
        cost = _FRAME + len(frame.body) + len(frame.head) * wire.SMALL_HEAD
        allowed = self._leaving.get(frame.id, 0)
        if allowed >= cost and frame.kind in (wire.DATA, wire.MORE):
            self._leaving[frame.id] = allowed - cost
        elif self._leaving.pop(frame.id, None) is None:  # else: its last
            self._useless -= cost
        if self._useless < 0:
            raise WireError("the helper sends what nobody has asked for")

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
