"""The leader's Lease in virtual time: one at a time, the epoch rises, a lost Lease ends the lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from memorykube import MemoryKube
from virtualtime import VirtualClock, settle

from bridge.kube import paths
from bridge.kube.leader import Leader

LEASE = paths.lease("agents", "bridge")


class Process:
    """One agent process that wants to lead."""

    def __init__(self, kube: MemoryKube, clock: VirtualClock, identity: str) -> None:
        self.leader = Leader(kube, "agents", "bridge", identity, 15, clock)
        self.epochs: list[int] = []
        self.leading = False
        self.task = asyncio.ensure_future(self.leader.run(self.lead))

    async def lead(self, epoch: int) -> None:
        """Lead until cancelled."""
        self.epochs.append(epoch)
        self.leading = True
        try:
            await asyncio.Event().wait()
        finally:
            self.leading = False

    async def stop(self) -> None:
        """As on SIGTERM."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


Start = Callable[[str], Awaitable[Process]]


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[MemoryKube, VirtualClock, Start]]:
    """A cluster, a clock, and a way to start processes, which are all stopped at the end."""
    kube, clock, started = MemoryKube(), VirtualClock(), list[Process]()

    async def start(identity: str) -> Process:
        process = Process(kube, clock, identity)
        started.append(process)
        await settle()
        return process

    yield kube, clock, start
    for process in started:
        await process.stop()


async def test_the_first_process_leads_at_once_and_renews() -> None:
    async with scene() as (kube, clock, start):
        one = await start("one")
        assert one.leading
        assert one.leader.valid()
        renewed = kube.objects[LEASE]["spec"]["renewTime"]
        await clock.advance(120)
        assert one.leading
        assert one.leader.valid()
        assert kube.objects[LEASE]["spec"]["renewTime"] > renewed


async def test_the_epoch_is_transitions_plus_one_and_rises_for_each_process() -> None:
    async with scene() as (kube, _, start):
        one = await start("one")
        assert one.epochs == [kube.objects[LEASE]["spec"]["leaseTransitions"] + 1]
        await one.stop()
        two = await start("two")
        assert two.epochs == [one.epochs[0] + 1]


async def test_the_epoch_rises_although_the_lease_was_deleted() -> None:
    async with scene() as (kube, clock, start):
        one = await start("one")
        await one.stop()
        two = await start("two")
        await clock.advance(10)
        del kube.objects[LEASE]
        await clock.advance(4)
        assert len(two.epochs) == 2
        assert two.epochs[1] > two.epochs[0] > one.epochs[0]


async def test_a_clean_stop_gives_the_lease_back() -> None:
    async with scene() as (kube, _, start):
        one = await start("one")
        await one.stop()
        assert kube.objects[LEASE]["spec"]["holderIdentity"] == ""
        assert not one.leader.valid()
        assert (await start("two")).leading


async def test_a_second_process_waits_while_the_first_renews() -> None:
    async with scene() as (_, clock, start):
        one, two = await start("one"), await start("two")
        await clock.advance(300)
        assert one.leading
        assert not two.leading


async def test_after_a_crash_the_next_waits_at_most_the_duration() -> None:
    async with scene() as (kube, clock, start):
        one = await start("one")
        spec = dict(kube.objects[LEASE]["spec"])
        await one.stop()
        kube.touch(LEASE, **spec)  # as if it had not been given back
        two = await start("two")
        await clock.advance(14)
        assert not two.leading
        await clock.advance(2)
        assert two.leading
        assert two.epochs == [one.epochs[0] + 1]


async def test_without_an_api_server_the_leader_stops_before_another_may_start() -> None:
    async with scene() as (kube, clock, start):
        one, two = await start("one"), await start("two")
        kube.down = True
        await clock.advance(6.9)
        assert one.leader.valid()
        await clock.advance(4)
        assert not one.leader.valid()
        assert not one.leading
        assert not two.leading
        kube.down = False
        await clock.advance(30)
        assert [one.leading, two.leading].count(True) == 1
        assert max(one.epochs + two.epochs) == one.epochs[0] + 1


async def test_a_lease_taken_by_another_ends_the_lead() -> None:
    async with scene() as (kube, clock, start):
        one = await start("one")
        kube.touch(LEASE, holderIdentity="other")
        await clock.advance(4)
        assert not one.leading
        assert not one.leader.valid()


async def test_a_label_on_the_lease_does_not_end_the_lead() -> None:
    async with scene() as (kube, clock, start):
        one = await start("one")
        for _ in range(10):
            kube.touch(LEASE)
            await clock.advance(7)
        assert one.leading
        assert len(one.epochs) == 1


async def test_what_the_lead_raises_is_raised_and_the_lease_given_back() -> None:
    kube, clock = MemoryKube(), VirtualClock()
    leader = Leader(kube, "agents", "bridge", "one", 15, clock)

    async def fail(_: int) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await leader.run(fail)
    assert kube.objects[LEASE]["spec"]["holderIdentity"] == ""
