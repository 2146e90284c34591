"""When ConfigMaps are read again, and tokens are asked for anew: at 80 % of their life, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from podcases import UID, pod
from virtualtime import VirtualClock

from bridge.kube import paths
from bridge.kube.clock import rfc3339
from bridge.kube.errors import Forbidden, NotFound
from bridge.plan.model import InputRef, TooLarge
from bridge.pods.inputs import HEAVY, LIGHT, MOST_REFERENCES, InputSource

CONFIG = InputRef("ConfigMap", "c")
TOKEN = InputRef("Token", "default", audience="vault", expiration=3600)


class Server:
    """Serves one ConfigMap and tokens of an hour, and counts what it was asked."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.config: dict[str, Any] | None = {"data": {"k": "1"}}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.forbidden = False

    async def get(self, path: str) -> dict[str, Any]:
        self.asked.append((path, {}))
        if self.forbidden:
            raise Forbidden(403, "Forbidden", path)
        if self.config is None:
            raise NotFound(404, "NotFound", path)
        return self.config

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body))
        expires = rfc3339(self.clock.time() + body["spec"]["expirationSeconds"])
        return {"status": {"token": f"t{len(self.asked)}", "expirationTimestamp": expires}}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def server(clock: VirtualClock) -> Server:
    return Server(clock)


@pytest.fixture
def source(server: Server, clock: VirtualClock) -> InputSource:
    return InputSource(server, clock)  # type: ignore[arg-type]  # only get and create are used


async def test_many_pods_read_a_config_map_once(source: InputSource, server: Server, clock: VirtualClock) -> None:
    for _ in range(500):
        assert await source.gather(pod(), [CONFIG]) == {CONFIG: server.config}
    assert server.asked == [(paths.config_map("default", "c"), {})]
    await clock.advance(5.0)
    await source.gather(pod(), [CONFIG])
    assert len(server.asked) == 2


async def test_no_token_gets_older_than_a_day(source: InputSource, server: Server, clock: VirtualClock) -> None:
    week = InputRef("Token", "default", audience="vault", expiration=7 * 86400)
    await source.gather(pod(), [week])
    await clock.advance(86390)
    await source.gather(pod(), [week])
    assert len(server.asked) == 1
    await clock.advance(20)
    await source.gather(pod(), [week])
    assert len(server.asked) == 2


async def test_what_is_missing_is_none_and_soon_looked_for_again(
    source: InputSource, server: Server, clock: VirtualClock
) -> None:
    server.config, existing = None, server.config
    assert await source.gather(pod(), [CONFIG]) == {CONFIG: None}
    server.config = existing
    await clock.advance(5.0)
    assert await source.gather(pod(), [CONFIG]) == {CONFIG: existing}


async def test_other_errors_are_not_absence(source: InputSource, server: Server) -> None:
    server.forbidden = True
    with pytest.raises(Forbidden):
        await source.gather(pod(), [CONFIG])


async def test_a_token_is_bound_to_its_pod_and_refreshed_at_80_percent(
    source: InputSource, server: Server, clock: VirtualClock
) -> None:
    first = await source.gather(pod(), [TOKEN])
    path, body = server.asked[0]
    assert path == paths.service_account_token("default", "default")
    assert body["spec"]["boundObjectRef"] == {"apiVersion": "v1", "kind": "Pod", "name": "hello", "uid": UID}
    assert (body["spec"]["audiences"], body["spec"]["expirationSeconds"]) == (["vault"], 3600)
    await clock.advance(2879)
    assert await source.gather(pod(), [TOKEN]) == first
    assert source.refresh_at(pod(), [TOKEN]) == pytest.approx(clock.time() + 1)
    await clock.advance(1)
    assert await source.gather(pod(), [TOKEN]) != first
    assert len(server.asked) == 2


async def test_config_maps_are_looked_at_every_minute(source: InputSource, clock: VirtualClock) -> None:
    await source.gather(pod(), [CONFIG, TOKEN])
    assert source.refresh_at(pod(), [CONFIG, TOKEN]) == clock.time() + 60


async def test_a_pod_that_is_gone_leaves_no_token(source: InputSource, server: Server) -> None:
    await source.gather(pod(), [TOKEN])
    source.forget(UID)
    await source.gather(pod(), [TOKEN])
    assert len(server.asked) == 2


class Large(Server):
    """Every ConfigMap is a megabyte."""

    async def get(self, path: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"data": {"k": "x" * (1 << 20)}}


async def test_few_pods_hold_much_at_once(clock: VirtualClock) -> None:
    """However many workers there are, and whoever asks: the others wait with little in their hands."""
    source = InputSource(Large(clock), clock)  # type: ignore[arg-type]
    holding, most, done = 0, 0, 0

    async def one(number: int) -> None:
        nonlocal holding, most, done
        refs = [InputRef("ConfigMap", f"c{number}-{n}") for n in range(3)]
        async with source.slot() as slot:
            await source.gather(pod(), refs, slot)
            made = await slot.within(lambda: bytes(1 << 20), len)
            assert len(made) == 1 << 20
            holding += 1
            most = max(most, holding)
            await asyncio.sleep(0)
            holding -= 1
        done += 1

    await asyncio.gather(*(one(number) for number in range(30)))
    assert (done, most) == (30, HEAVY)


async def test_small_pods_wait_for_nobody(source: InputSource) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(HEAVY):  # as many large ones as there may be
            slot = await stack.enter_async_context(source.slot())
            await slot.take(LIGHT + 1)
        async with source.slot() as slot:
            await source.gather(pod(), [CONFIG], slot)
            assert await slot.within(lambda: b"small", len) == b"small"


async def test_what_has_to_wait_is_thrown_away_meanwhile(source: InputSource) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return bytes(LIGHT + 1)

    async with AsyncExitStack() as stack:
        slots = [await stack.enter_async_context(source.slot()) for _ in range(HEAVY)]
        for slot in slots:
            await slot.take(LIGHT + 1)
        async with source.slot() as last:
            waiting = asyncio.ensure_future(last.within(make, len))
            await asyncio.sleep(0)
            assert (len(made), waiting.done()) == (1, False)
            slots[0].give_back()
            assert len(await waiting) == LIGHT + 1
            assert len(made) == 2


async def test_a_pod_with_thousands_of_references_asks_the_api_server_nothing(
    source: InputSource, server: Server
) -> None:
    many = [InputRef("ConfigMap", f"c{n}", optional=True) for n in range(MOST_REFERENCES + 1)]
    tokens = [InputRef("Token", "default", audience=f"a{n}") for n in range(MOST_REFERENCES + 1)]
    for refs in (many, tokens):
        with pytest.raises(TooLarge, match="at most 200"):
            await source.gather(pod(), refs)
    assert not server.asked
