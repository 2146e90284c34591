"""The sweep: what it does to jobs without a pod, and when it does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from censuses import census, cluster
from embedded import EmbeddedCluster
from virtualtime import VirtualClock

from bridge.clusters.link import ClusterLink
from bridge.clusters.sweep import Cancel, Orphan, Remove, Sweeper, ended, sweep
from bridge.telemetry import Metrics
from pbs_adapter.models import Observation, PbsView, Seen

LIVE = PbsView(Seen.PRESENT, 1.0, "R")
GONE = PbsView(Seen.ABSENT, 1.0)
OVER = {"version": 1, "phase": "Ended"}


def job(uid: str, view: PbsView = LIVE, **fields: object) -> Observation:
    return Observation(uid, job_id=f"1{uid}.a", pbs=view, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (job("a"), False),
        (job("a", PbsView()), False),
        (job("a", GONE), True),
        (job("a", PbsView(Seen.PRESENT, 1.0, "F", exit_status=0)), True),
        (job("a", LIVE, status=OVER), False),  # podrun is done, the job is still in PBS
        (job("a", PbsView(), status=OVER), True),
        (Observation("a", submitting=True), False),
    ],
)
def test_ended(seen: Observation, expected: bool) -> None:
    assert ended(seen) is expected


@pytest.mark.parametrize(
    ("seen", "known", "was", "now", "expected"),
    [
        (job("a"), {"a"}, None, 500, ()),
        (job("a"), (), None, 500, ()),
        (job("a"), (), Orphan(381), 500, ()),
        (job("a"), (), Orphan(380), 500, (Cancel("a", False),)),
        (job("a"), (), Orphan(100, cancelled=480), 500, ()),
        (job("a"), (), Orphan(100, cancelled=470), 500, (Cancel("a", True),)),
        (job("a"), {"a"}, Orphan(100), 500, ()),
        (job("a", GONE), (), Orphan(100, 200), 500, ()),
        (job("a", GONE), (), Orphan(100, 200, ended=300), 899, ()),
        (job("a", GONE), (), Orphan(100, 200, ended=300), 900, (Remove("a"),)),
        (job("a", GONE), {"a"}, Orphan(100, 200, ended=300), 5000, ()),
    ],
)
def test_one_look(
    seen: Observation, known: Collection[str], was: Orphan | None, now: float, expected: tuple[object, ...]
) -> None:
    previous = {"a": was} if was else {}
    verdict = sweep({"a": seen}, known, previous, now, apart=120, keep=600)
    assert verdict.actions == expected
    assert not verdict.stopped
    assert ("a" in verdict.orphans) is ("a" not in known)


@pytest.mark.parametrize(
    ("orphans", "jobs", "stopped"),
    [(20, 20, False), (21, 21, True), (21, 105, False), (21, 104, True), (300, 1500, False)],
)
def test_too_many_orphans_stop_the_sweep(orphans: int, jobs: int, stopped: bool) -> None:
    observed = {str(n): job(str(n)) for n in range(jobs)}
    known = {str(n) for n in range(orphans, jobs)}
    previous = {str(n): Orphan(0) for n in range(orphans)}
    verdict = sweep(observed, known, previous, 500, apart=120, keep=600)
    assert verdict.stopped is stopped
    assert len(verdict.actions) == (0 if stopped else orphans)
    assert set(verdict.orphans) == set(previous)


class Scene:
    """A sweep of a running link; `known` are the pods."""

    def __init__(self) -> None:
        self.clock, self.metrics = VirtualClock(), Metrics()
        self.pbs = EmbeddedCluster(census, clock=self.clock)
        self.pbs.connect()
        self.link = ClusterLink(cluster(keepDirectories=600), self.pbs, clock=self.clock)
        self.known: set[str] | None = set()
        self.allowed = True
        self.sweeper = Sweeper(
            self.link, lambda: self.known, 120, allowed=lambda: self.allowed, metrics=self.metrics, clock=self.clock
        )

    async def __aenter__(self) -> Scene:
        self._tasks = [asyncio.ensure_future(self.link.run()), asyncio.ensure_future(self.sweeper.run())]
        await self.clock.advance(0.1)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_an_orphan_is_cancelled_at_the_second_look_then_forced_then_cleared_away() -> None:
    async with Scene() as s:
        s.pbs.put("default", job("a"), job("b"))
        s.known = {"b"}
        await s.clock.advance(130)
        assert s.pbs.calls == []
        await s.clock.advance(120)
        assert s.pbs.calls == [("cancel", "a", False)]
        await s.clock.advance(120)
        assert s.pbs.calls[1:] == [("cancel", "a", True)]
        s.pbs.put("default", job("a", GONE))
        await s.clock.advance(600)
        assert len(s.pbs.calls) == 2
        await s.clock.advance(240)
        assert s.pbs.calls[2:] == [("remove", "a")]
        assert set(s.link.observations) == {"b"}
        assert b"swept_jobs_total" in s.metrics.text()


async def test_a_pod_that_turns_up_between_the_looks_is_safe() -> None:
    async with Scene() as s:
        s.pbs.put("default", job("a"))
        await s.clock.advance(130)
        s.known = {"a"}
        await s.clock.advance(120)
        s.known = set()
        await s.clock.advance(120)
        assert s.pbs.calls == []


@pytest.mark.parametrize("why", ["pods unknown", "incomplete", "unreachable", "not leading"])
async def test_nothing_happens_unless_both_sides_are_known(why: str) -> None:
    async with Scene() as s:
        s.pbs.put("default", job("a"))
        await s.clock.advance(1)
        if why == "pods unknown":
            s.known = None
        elif why == "incomplete":
            s.pbs.complete = False
            s.pbs.put("default", job("b"))
        elif why == "unreachable":
            s.pbs.disconnect()
        else:
            s.allowed = False
        await s.clock.advance(1000)
        assert s.pbs.calls == []


async def test_a_stopped_sweep_shows_in_the_metrics() -> None:
    async with Scene() as s:
        s.pbs.put("default", *(job(str(n)) for n in range(30)))
        await s.clock.advance(500)
        assert s.pbs.calls == []
        assert b'hpc_bridge_sweep_stopped{cluster="alpha"} 1.0' in s.metrics.text()
        s.known = {str(n) for n in range(30)}
        await s.clock.advance(120)
        assert b'hpc_bridge_sweep_stopped{cluster="alpha"} 0.0' in s.metrics.text()
