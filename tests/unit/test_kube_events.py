"""The recorder: one Event for one thing said, counted; never in anybody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memorykube import MemoryKube
from virtualtime import VirtualClock, settle

from bridge.kube.errors import Forbidden
from bridge.kube.events import ATTEMPTS, LATE, QUEUE, Recorder
from bridge.telemetry import Metrics

POD = {"metadata": {"name": "hello-0", "namespace": "default", "uid": "u1"}}


def stored(kube: MemoryKube) -> list[tuple[Any, ...]]:
    return [(e["reason"], e["message"], e["count"]) for e in kube.objects.values()]


async def run(recorder: Recorder, clock: VirtualClock, seconds: float = 0) -> None:
    """Let the recorder work for a while."""
    task = asyncio.ensure_future(recorder.run())
    await settle()
    await clock.advance(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("thing", "host"),
    [
        ({"kind": "Node", "metadata": {"name": "pbs-alpha", "uid": "u"}}, "pbs-alpha"),
        ({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"nodeName": "pbs-beta"}}, "pbs-beta"),
        ({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {}}, "agent-pod"),
    ],
)
async def test_who_tells_of_a_node_and_its_pods_is_the_node(thing: dict[str, Any], host: str) -> None:
    clock, kube = VirtualClock(), MemoryKube()
    recorder = Recorder(kube, "hpc-bridge", "agent-pod", clock=clock)
    recorder.event(thing, "Normal", "X", "y")
    await run(recorder, clock)
    (event,) = kube.objects.values()
    assert event["source"] == {"component": "hpc-bridge", "host": host}
    assert event["reportingInstance"] == host


async def test_the_same_thing_said_again_raises_the_count() -> None:
    kube, clock = MemoryKube(), VirtualClock()
    recorder = Recorder(kube, "hpc-bridge", "host", clock=clock)
    recorder.event(POD, "Normal", "PBSSubmitted", "job 1")
    recorder.event(POD, "Normal", "PBSSubmitted", "job 1")
    await run(recorder, clock)
    recorder.event(POD, "Normal", "PBSSubmitted", "job 1")
    recorder.event(POD, "Warning", "PBSSubmitFailed", "no")
    await run(recorder, clock)
    assert stored(kube) == [("PBSSubmitted", "job 1", 3), ("PBSSubmitFailed", "no", 1)]
    assert [verb for verb, _ in kube.writes] == ["create", "patch", "create"]


@pytest.mark.parametrize(("busy", "after", "told"), [(False, 0.0, 1), (True, LATE - 1, 0), (True, LATE + 1, 1)])
async def test_in_a_burst_events_come_late(busy: bool, after: float, told: int) -> None:
    kube, clock = MemoryKube(), VirtualClock()
    recorder = Recorder(kube, "hpc-bridge", "host", clock=clock, busy=lambda: busy)
    recorder.event(POD, "Normal", "PBSSubmitted", "job 1")
    await run(recorder, clock, after)
    assert len(kube.writes) == told


async def test_after_a_restart_the_old_event_is_counted_on() -> None:
    kube, clock = MemoryKube(), VirtualClock()
    for _ in range(2):
        recorder = Recorder(kube, "hpc-bridge", "host", clock=clock)
        recorder.event(POD, "Normal", "PBSSubmitted", "job 1")
        await run(recorder, clock)
    assert stored(kube) == [("PBSSubmitted", "job 1", 2)]


async def test_an_event_that_has_expired_is_written_anew() -> None:
    kube, clock = MemoryKube(), VirtualClock()
    recorder = Recorder(kube, "hpc-bridge", "host", clock=clock)
    recorder.event(POD, "Normal", "PBSWaiting", "no cpus")
    await run(recorder, clock)
    kube.objects.clear()
    recorder.event(POD, "Normal", "PBSWaiting", "no cpus")
    await run(recorder, clock)
    assert stored(kube) == [("PBSWaiting", "no cpus", 1)]


async def test_a_full_queue_drops_the_oldest_and_counts_it() -> None:
    kube, clock, metrics = MemoryKube(), VirtualClock(), Metrics()
    recorder = Recorder(kube, "hpc-bridge", "host", metrics=metrics, clock=clock)
    for number in range(QUEUE + 3):
        recorder.event(POD, "Normal", "X", str(number))
    await run(recorder, clock)
    while len(kube.objects) < QUEUE:
        await run(recorder, clock)
    assert ("X", "2", 1) not in stored(kube)
    assert ("X", "3", 1) in stored(kube)
    assert b'events_dropped_total{why="queue full"} 3.0' in metrics.text()


async def test_an_api_server_that_is_away_is_waited_for_a_while() -> None:
    kube, clock, metrics = MemoryKube(), VirtualClock(), Metrics()
    recorder = Recorder(kube, "hpc-bridge", "host", metrics=metrics, clock=clock)
    kube.down = True
    recorder.event(POD, "Normal", "X", "lost")
    await run(recorder, clock, 100)
    assert b'events_dropped_total{why="no answer"} 1.0' in metrics.text()
    assert ATTEMPTS > 1
    kube.down = False
    recorder.event(POD, "Normal", "X", "kept")
    await run(recorder, clock)
    assert stored(kube) == [("X", "kept", 1)]


class Closing(MemoryKube):
    """A namespace that is being deleted."""

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Refused."""
        raise Forbidden(403, "Forbidden", "namespace is being terminated")


async def test_an_event_that_is_refused_is_dropped_and_counted() -> None:
    clock, metrics = VirtualClock(), Metrics()
    recorder = Recorder(Closing(), "hpc-bridge", "host", metrics=metrics, clock=clock)
    recorder.event(POD, "Normal", "X", "y")
    await run(recorder, clock)
    assert b'events_dropped_total{why="refused"} 1.0' in metrics.text()
