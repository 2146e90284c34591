"""One connection to a helper: many calls at once, streams with credit, and what every kind of loss means to callers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bridge.testbed.sshd import Sshd
from pbs_adapter import errors
from pbs_adapter.channel import Connection, Pauses, Supervisor
from pbs_adapter.remote import wire
from pbs_adapter.transport import AuthenticationRefused, Transport
from pbs_adapter.transport.local import LocalTransport

from .conftest import eventually, ssh_to

NEVER = 2 * wire.CREDIT_WINDOW  # a chunk that waits for credit for ever

pytestmark = pytest.mark.usefixtures("nothing_left")
Connect = Callable[..., Any]


@pytest.fixture(params=["local", "ssh"])
def connect(request: pytest.FixtureRequest, helper_program: bytes) -> Connect:
    """Start the small helper and greet it."""
    make: Callable[[], Transport] = LocalTransport
    folder = request.getfixturevalue("tmp_path")
    if request.param == "ssh":
        server: Sshd = request.getfixturevalue("sshd")
        make, folder = lambda: ssh_to(server), "~/helper"

    async def start(**options: float) -> Connection:
        transport = make()
        try:
            path = await transport.install("peer.pyz", helper_program, str(folder))
            stream = await transport.open(["python3", path])
            return await Connection.open(stream, transport.aclose, {"instance": "x"}, **options)
        except BaseException:
            await transport.aclose()
            raise

    return start


@pytest.fixture
async def connection(connect: Connect) -> AsyncIterator[Connection]:
    made = await connect()
    yield made
    await made.aclose()


async def pid_of(connection: Connection) -> int:
    return int((await connection.request({"op": "echo"})).head["pid"])


async def outcome(task: asyncio.Task[Any]) -> object:
    return (await asyncio.gather(task, return_exceptions=True))[0]


async def test_many_calls_are_in_flight_and_large_bodies_arrive(connection: Connection) -> None:
    assert connection.hello["head"]["instance"] == "x"
    slow = [asyncio.create_task(connection.request({"op": "sleep", "seconds": 0.3, "n": n})) for n in range(10)]
    bodies = [os.urandom(size) for size in (0, 1, 65536, 65537, 1_300_000)]
    replies = await asyncio.gather(*(connection.request({"op": "echo", "pad": "x" * 100_000}, b) for b in bodies))
    assert [reply.whole().body for reply in replies] == bodies
    assert [reply.head["head"]["n"] for reply in await asyncio.gather(*slow)] == list(range(10))
    await eventually(lambda: connection.rtt is not None, "a ping")
    assert "up" in repr(connection)


@pytest.mark.parametrize("kind", [*wire.ERROR_KINDS, "new kind", None])
async def test_the_helpers_errors_have_their_classes(connection: Connection, kind: str | None) -> None:
    expected = {
        "retry": errors.Retry,
        "unreachable": errors.Unreachable,
        "pbs": errors.PbsUnavailable,
        "backlog": errors.Backlog,
        "permanent": errors.Permanent,
        "rejected": errors.Rejected,
        "fenced": errors.Fenced,
        "site": errors.SiteFault,
        "outcome": errors.OutcomeUnknown,
    }
    with pytest.raises(errors.AdapterError, match=r"^because$") as caught:
        await connection.request({"op": "fail", "error": {"kind": kind, "message": "because"}})
    assert type(caught.value) is expected.get(str(kind), errors.Retry)


async def test_a_stream_is_whole_and_its_error_comes_last(connection: Connection) -> None:
    head = {"op": "stream", "count": 40, "size": 50_000}
    chunks = [chunk async for chunk in connection.stream(head)]
    assert b"".join(chunks) == b"".join(bytes([n]) * 50_000 for n in range(40))
    failing = connection.stream({**head, "error": {"kind": "permanent", "message": "no such run"}})
    came: list[int] = []

    async def read() -> None:
        async for chunk in failing:
            came.append(len(chunk))

    with pytest.raises(errors.Permanent, match="no such run"):
        await read()
    assert sum(came) == 40 * 50_000


async def test_a_stalled_stream_holds_its_credit_and_blocks_nothing(connection: Connection) -> None:
    stalled = connection.stream({"op": "stream", "count": 1000, "size": 32 * 1024})
    came = len(await anext(stalled))
    replies = await asyncio.gather(*(connection.request({"op": "echo", "n": n}) for n in range(200)))
    assert [reply.head["head"]["n"] for reply in replies] == list(range(200))
    other = [chunk async for chunk in connection.stream({"op": "stream", "count": 100, "size": 32 * 1024})]
    assert sum(map(len, other)) == 100 * 32 * 1024
    async for chunk in stalled:
        came += len(chunk)
    assert came == 1000 * 32 * 1024


async def test_leaving_a_stream_stops_the_helper(connection: Connection) -> None:
    stream = connection.stream({"op": "stream", "count": 10**9, "size": 1024})
    await anext(stream)
    await stream.aclose()
    reading = asyncio.create_task(anext(connection.stream({"op": "stream", "count": 1, "size": NEVER})))
    await asyncio.sleep(0)
    reading.cancel()
    await outcome(reading)
    while len((await connection.request({"op": "echo"})).head["cancelled"]) < 2:
        await asyncio.sleep(0.005)


async def test_a_cancelled_call_is_cancelled_there_too(connection: Connection) -> None:
    call = asyncio.create_task(connection.request({"op": "sleep", "seconds": 0.2}))
    await connection.request({"op": "echo"})
    call.cancel()
    assert isinstance(await outcome(call), asyncio.CancelledError)
    while not (await connection.request({"op": "echo"})).head["cancelled"]:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.25)  # its answer comes all the same, and disturbs nobody
    await connection.request({"op": "echo"})


@pytest.mark.parametrize("how", ["garbage", "exit"])
async def test_a_loss_leaves_unknown_what_was_asked(connection: Connection, how: str) -> None:
    change = asyncio.create_task(connection.request({"op": "sleep", "seconds": 60}))
    look = asyncio.create_task(connection.request({"op": "sleep", "seconds": 60}, idempotent=True))
    follow = asyncio.create_task(anext(connection.stream({"op": "stream", "count": 1, "size": NEVER})))
    await connection.request({"op": "echo"})
    with pytest.raises(errors.Unreachable):
        await connection.request({"op": how}, idempotent=True)
    assert isinstance(await outcome(change), errors.OutcomeUnknown)
    assert isinstance(await outcome(look), errors.Unreachable)
    assert isinstance(await outcome(follow), errors.Unreachable)
    assert ("not a frame" if how == "garbage" else "has ended") in await connection.lost()
    with pytest.raises(errors.Unreachable):
        await connection.request({"op": "echo"})


async def test_a_helper_that_hangs_is_found_by_ping(connect: Connect) -> None:
    connection = await connect(ping_every=0.05, ping_deadline=1.5)
    os.kill(await pid_of(connection), signal.SIGSTOP)
    left = asyncio.create_task(connection.request({"op": "echo"}))
    # More than all buffers on the way can take: some of these have not left.
    queued = [asyncio.create_task(connection.request({"op": "echo"}, bytes(8_000_000))) for _ in range(5)]
    assert isinstance(await outcome(left), errors.OutcomeUnknown)
    for task in queued:
        assert type(await outcome(task)) is errors.Unreachable
    assert "no answer to a ping" in await connection.lost()
    await connection.aclose()


async def test_what_is_no_helper_is_quoted() -> None:
    for script, said in (
        ("echo quota exceeded; echo disk full >&2", "disk full"),
        ("exec no-such-python", "not found"),
    ):
        transport = LocalTransport()
        stream = await transport.open(["/bin/sh", "-c", script])
        with pytest.raises(errors.Unreachable, match=rf"did not start: .*{said}$"):
            await Connection.open(stream, transport.aclose, {})


async def test_a_program_that_never_says_the_magic_line_is_given_up() -> None:
    transport = LocalTransport()
    stream = await transport.open(["/bin/sh", "-c", "echo Password:; cat"])
    with pytest.raises(errors.Unreachable, match=r"did not answer within 0.2 s: Password:"):
        await Connection.open(stream, transport.aclose, {}, deadline=0.2)


async def test_greeting_can_be_cancelled() -> None:
    transport = LocalTransport()
    stream = await transport.open(["cat"])
    opening = asyncio.create_task(Connection.open(stream, transport.aclose, {}))
    await asyncio.sleep(0.02)
    opening.cancel()
    assert isinstance(await outcome(opening), asyncio.CancelledError)


async def test_the_supervisor_reconnects(connect: Connect) -> None:
    supervisor = Supervisor("work", connect, Pauses(first=0.01, longest=0.05))
    supervisor.start()
    assert not supervisor.health.connected
    first = await supervisor.connection(wait=30)
    assert supervisor.health.connected
    await eventually(lambda: supervisor.health.rtt_ms is not None, "a ping")
    pid = await pid_of(first)
    with pytest.raises(errors.Unreachable):
        await first.request({"op": "exit"}, idempotent=True)
    await eventually(lambda: not supervisor.health.connected, "a change of health")
    assert await pid_of(await supervisor.connection(wait=30)) != pid
    await supervisor.aclose()
    assert not supervisor.health.connected
    with pytest.raises(errors.Unreachable):
        await supervisor.connection()


async def test_what_a_person_must_mend_is_not_hammered_but_can_be_tried_at_once() -> None:
    attempts = 0

    async def fail() -> Connection:
        nonlocal attempts
        attempts += 1
        raise AuthenticationRefused("the key is not accepted")

    supervisor = Supervisor("work", fail, Pauses(first=0.001, longest=3600))
    supervisor.start()
    await eventually(lambda: "not accepted" in supervisor.health.message, "the reason")
    with pytest.raises(errors.Unreachable, match="not accepted"):
        await supervisor.connection(wait=0.05)
    assert attempts == 1
    supervisor.wake()
    await eventually(lambda: attempts == 2, "another attempt")
    assert "not accepted" in repr(supervisor)
    await supervisor.aclose()


async def test_a_newer_leader_is_told_as_such() -> None:
    async def fail() -> Connection:
        raise errors.Fenced("epoch 4 is older than 5")

    supervisor = Supervisor("work", fail)
    supervisor.start()
    with pytest.raises(errors.Fenced, match="older"):
        await supervisor.connection(wait=1000)  # at once: a former leader must stop
    await supervisor.aclose()


async def test_an_unexpected_exception_does_not_end_the_supervisor() -> None:
    attempts = 0

    async def fail() -> Connection:
        nonlocal attempts
        attempts += 1
        raise ZeroDivisionError("a bug")

    supervisor = Supervisor("work", fail, Pauses(first=0.001, longest=0.002))
    supervisor.start()
    await eventually(lambda: attempts > 2, "more attempts")
    assert "ZeroDivisionError: a bug" in supervisor.health.message
    await supervisor.aclose()


async def test_connecting_ends_with_the_supervisor(connect: Connect) -> None:
    for delay in (0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2):
        supervisor = Supervisor("work", connect)
        supervisor.start()
        await asyncio.sleep(delay)
        await supervisor.aclose()
