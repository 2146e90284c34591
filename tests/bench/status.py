"""status_latency_s.p99: from a container's start or end to its pod's status in the API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from bridge.kube import paths
from bridge.kube.client import KubeClient
from tests.bench.figures import Figure, quantile
from tests.bench.stage import NAMESPACE, BenchError, Stage

PODS = 100
APART = 0.3
LASTS = 4
PATIENCE = 300.0


def latency(stage: Stage) -> Iterator[Figure]:
    """100 short pods beside those that run already; when the API server shows their starts and ends to a watch."""
    seen: dict[str, dict[str, float]] = {}
    stage.client(lambda kube: _follow(stage, kube, seen))
    samples: list[float] = []
    for uid, times in seen.items():
        written = json.loads(stage.shell(f"cat {stage.spool}/*/*/pods/{uid}/status.json"))["containers"]["main"]
        samples += [times["started"] - written["started_at"], times["ended"] - written["finished_at"]]
    note = f"{len(samples)} starts and ends; p50 {quantile(samples, 0.5):.2f} s"
    yield Figure("status_latency_s.p99", quantile(samples, 0.99), "s", "≤ 2", tuple(samples), note)


async def _follow(stage: Stage, kube: KubeClient, seen: dict[str, dict[str, float]]) -> None:
    _, version = await kube.list(paths.pods(NAMESPACE), label_selector="for=latency")
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(_watch(kube, version, seen))
        for number in range(PODS):
            pod = stage.pod(f"status-{number}", f"echo x; sleep {LASTS}", labels={"for": "latency"})
            pod["spec"]["nodeName"] = stage.node
            await kube.create(paths.pods(NAMESPACE), pod)
            await asyncio.sleep(APART)
        await watching
    if len(seen) < PODS:
        raise BenchError(f"only {len(seen)} of {PODS} pods ended")


async def _watch(kube: KubeClient, version: str, seen: dict[str, dict[str, float]]) -> None:
    events = kube.watch(paths.pods(NAMESPACE), version, label_selector="for=latency")
    async with contextlib.aclosing(events):
        async for _, pod in events:
            if "status" not in pod:
                continue
            times = seen.setdefault(pod["metadata"]["uid"], {})
            states: list[dict[str, Any]] = [c["state"] for c in pod["status"].get("containerStatuses", [])]
            if any("running" in state or "terminated" in state for state in states):
                times.setdefault("started", time.time())
            if any("terminated" in state for state in states):
                times.setdefault("ended", time.time())
            if len(seen) == PODS and all("ended" in each for each in seen.values()):
                return
