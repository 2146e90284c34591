"""What leaves first, what has left, and the doctests of the channel."""

from __future__ import annotations

import asyncio
import doctest

import pytest

from pbs_adapter.channel import failures, supervisor
from pbs_adapter.channel.calls import Call, StreamCall
from pbs_adapter.channel.outbox import Outbox
from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Frame, WireError


@pytest.mark.parametrize("module", [failures, supervisor])
def test_doctests(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def message(ident: int, parts: int) -> list[Frame]:
    return wire.split(Frame(ident, wire.REQUEST, {}, bytes(parts * wire.CHUNK)))


async def test_messages_take_turns_and_control_goes_first() -> None:
    outbox, left = Outbox(), list[int]()
    for ident, parts in ((1, 3), (2, 1), (3, 2)):
        outbox.add(message(ident, parts), lambda ident=ident: left.append(ident))
    assert [(await outbox.take()).id for _ in range(2)] == [1, 2]
    outbox.control(Frame(0, wire.PING))
    assert [(await outbox.take()).id for _ in range(5)] == [0, 3, 1, 3, 1]
    assert left == [2, 3, 1]


async def test_what_is_taken_back_does_not_leave() -> None:
    outbox = Outbox()
    for ident in (1, 2, 3):
        outbox.add(message(ident, 2), lambda: None)
    assert (await outbox.take()).id == 1
    assert not outbox.drop(2)  # nothing of it has left: there is nothing to cancel
    assert outbox.drop(1)
    assert [(await outbox.take()).kind for _ in range(2)] == [wire.MORE, wire.REQUEST]
    assert outbox.drop(3)
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.control(Frame(0, wire.PING))
    assert (await waiting).kind == wire.PING


async def test_credit_is_given_back_in_quarters() -> None:
    call = StreamCall()
    quarter = wire.CREDIT_WINDOW // 4
    assert not call.receive(Frame(1, wire.DATA, {}, bytes(quarter)))
    assert await call.next() == bytes(quarter)
    assert call.credit(quarter - 1) == 0
    assert call.credit(1) == quarter


async def test_more_than_the_credit_is_an_error() -> None:
    call = StreamCall()
    for _ in range(4):
        call.receive(Frame(1, wire.DATA, {}, bytes(wire.CREDIT_WINDOW // 4)))
    with pytest.raises(WireError, match="credit"):
        call.receive(Frame(1, wire.DATA, {}, b"x"))


@pytest.mark.parametrize("kind", [wire.DATA, wire.END, wire.CREDIT, wire.REQUEST])
async def test_a_request_is_answered_by_nothing_else(kind: int) -> None:
    with pytest.raises(WireError, match="in answer to a request"):
        Call(idempotent=True).receive(Frame(1, kind))


@pytest.mark.parametrize("kind", [wire.CREDIT, wire.REQUEST, wire.CANCEL])
async def test_a_stream_carries_nothing_else(kind: int) -> None:
    with pytest.raises(WireError, match="in a stream"):
        StreamCall().receive(Frame(1, kind))
