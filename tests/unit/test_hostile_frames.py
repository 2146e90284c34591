"""A helper that floods the channel: what nobody waits for, what credit does not count, and what is cut into crumbs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from pbs_adapter.channel import Connection
from pbs_adapter.errors import OutcomeUnknown, Unreachable
from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Frame

Answer = Callable[[Frame], Iterator[Frame]]


class Hostile:
    """A byte stream whose other end answers requests with whatever `answer` makes of them."""

    diagnostics = ""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[Frame] = []
        self.sent = 0
        self._answer = answer
        self._decoder, self._assembler = wire.Decoder(), wire.Assembler()
        self._input: asyncio.Queue[Iterator[bytes]] = asyncio.Queue()
        self._now: Iterator[bytes] = iter([wire.MAGIC])

    async def read(self, limit: int) -> bytes:
        """The next bytes of the answers."""
        data = bytearray()
        while not data:
            for part in self._now:
                data += part
                if len(data) >= limit:
                    break
            if not data:
                self._now = await self._input.get()
        self.sent += len(data)
        await asyncio.sleep(0)
        return bytes(data)

    async def write(self, data: bytes) -> None:
        """Requests."""
        for part in self._decoder.feed(data):
            frame = self._assembler.add(part)
            if frame is None:
                continue
            self.requests.append(frame)
            if frame.kind == wire.PING:
                self._input.put_nowait(iter([wire.encode(Frame(0, wire.PONG))]))
            elif frame.kind == wire.REQUEST and frame.head["op"] == "hello":
                self._input.put_nowait(iter([wire.encode(Frame(frame.id, wire.RESPONSE, {"protocol": 1}))]))
            else:
                self._input.put_nowait(map(wire.encode, self._answer(frame)))

    async def aclose(self) -> None:
        """Nothing."""


@asynccontextmanager
async def connected(answer: Answer) -> AsyncIterator[tuple[Connection, Hostile]]:
    async def close() -> None:
        pass

    stream = Hostile(answer)
    connection = await Connection.open(stream, close, {})
    yield connection, stream
    await connection.aclose()


def endless(*frames: Frame) -> Answer:
    """Answers with its id and then the same for ever."""
    return lambda asked: (each._replace(id=each.id or asked.id) for each in itertools.cycle(frames))


@pytest.mark.parametrize(
    "answer",
    [
        endless(Frame(0, wire.RESPONSE, {"a": 1})),  # one answer is wanted, and then it goes on
        endless(Frame(0, wire.ERROR, {"kind": "retry"})),
        endless(Frame(1, wire.DATA, {}, b"x" * 1000)),  # of hello, which is over
        endless(Frame(1, wire.MORE, {}, b"x" * 1000)),
        endless(Frame(1, wire.END)),
        endless(Frame(1, wire.CREDIT, {"bytes": 1})),
        endless(Frame(1, wire.PONG)),
        endless(Frame(1 << 63, wire.RESPONSE)),
        endless(Frame(0, wire.MORE, {}, b"x")),  # a message of a million frames
        endless(Frame(0, wire.MORE, {"a": 1}, b"x" * 1000)),
        endless(Frame(0, wire.MORE, {}, b"x" * 1000)),  # a message without an end
        endless(Frame(0, wire.DATA, {}, b"x")),  # a stream where none was asked for
        lambda asked: iter([*wire.split(Frame(asked.id, wire.RESPONSE, {"a": "x" * (wire.MAX_REPLY_HEAD + 1)}))]),
        lambda asked: iter([*wire.split(Frame(asked.id, wire.ERROR, {"message": "x" * (1 << 20)}))]),
    ],
)
async def test_a_flood_ends_the_connection_soon(answer: Answer) -> None:
    async with connected(answer) as (connection, stream):
        first = asyncio.ensure_future(connection.request({"op": "jobs"}, idempotent=True))
        reason = await asyncio.wait_for(connection.lost(), 20)
        assert reason
        assert stream.sent < 4 << 20
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize(
    "answer",
    [
        endless(Frame(0, wire.DATA, {}, b"x" * 64)),
        endless(Frame(0, wire.DATA, {}, b"")),
        endless(Frame(0, wire.DATA, {"pad": "x" * 60_000}, b"x")),
        endless(Frame(0, wire.PING)),
        endless(Frame(0, wire.MORE, {}, b"x" * 64)),
    ],
)
async def test_a_stream_beyond_its_credit_ends_the_connection(answer: Answer) -> None:
    async with connected(answer) as (connection, stream):
        chunks = connection.stream({"op": "logs"})
        reading = asyncio.ensure_future(anext(chunks))  # one piece at most, and then nothing more
        assert await asyncio.wait_for(connection.lost(), 20)
        assert stream.sent < 8 << 20
        await asyncio.gather(reading, return_exceptions=True)
        await chunks.aclose()


async def test_what_was_on_its_way_when_its_reader_left_is_no_flood() -> None:
    window = [Frame(0, wire.DATA, {}, b"x" * 100)] * (wire.CREDIT_WINDOW // 100 - 10)

    def answer(asked: Frame) -> Iterator[Frame]:
        if asked.kind == wire.REQUEST and asked.head["op"] == "logs":
            return (each._replace(id=asked.id) for each in window)
        return iter([Frame(asked.id, wire.END)] if asked.kind == wire.CANCEL else [Frame(asked.id, wire.RESPONSE)])

    async with connected(answer) as (connection, _):
        for _ in range(6):
            chunks = connection.stream({"op": "logs"})
            await anext(chunks)
            await chunks.aclose()
        await connection.request({"op": "jobs"})
        assert "up" in repr(connection)


async def test_an_answer_that_never_comes_has_a_deadline() -> None:
    async with connected(lambda asked: iter(())) as (connection, stream):
        with pytest.raises(Unreachable, match=r"not answered within 0.05 s: jobs"):
            await connection.request({"op": "jobs"}, idempotent=True, deadline=0.05)
        with pytest.raises(OutcomeUnknown, match=r"submit"):
            await connection.request({"op": "submit"}, deadline=0.05)
        assert "up" in repr(connection)
        await asyncio.sleep(0.01)
        assert [frame.kind for frame in stream.requests].count(wire.CANCEL) == 2


async def test_large_requests_take_turns_so_that_the_helper_holds_few() -> None:
    """Twenty-four submissions at once made the helper hold more than it may, which ended the connection for all."""
    most = 0
    async with connected(lambda asked: iter([Frame(asked.id, wire.RESPONSE)])) as (connection, stream):
        body = bytes(3 << 20)
        asking = [asyncio.ensure_future(connection.request({"op": "submit"}, body)) for _ in range(16)]
        while not all(task.done() for task in asking):
            await asyncio.sleep(0)
            most = max(most, stream._assembler._held)
        await asyncio.gather(*asking)
        assert most <= wire.MAX_REQUESTS * len(body)
