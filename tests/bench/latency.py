"""queued_latency_ms.p50: from the creation of a single pod to its job in PBS, minus one raw qsub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from bridge.kube import paths
from bridge.kube.client import KubeClient
from tests.bench.figures import Figure, median
from tests.bench.stage import NAMESPACE, Shape, Stage, Theatre, wait
from tests.bench.submit import raw_qsub, timed

PODS = 20
APART = 1.0


def measure(theatre: Theatre) -> Iterator[Figure]:
    """20 pods one after another, a raw qsub of the same machine before and after."""
    with theatre.stage(Shape(held=True)) as stage:
        raws = [timed(stage, raw_qsub(stage, "raw", 1)) * 1000 for _ in range(6)]
        samples = one_by_one(stage)
        raws += [timed(stage, raw_qsub(stage, "raw", 1)) * 1000 for _ in range(5)]
        raws = raws[1:]  # the first one starts the user's background qsub
        stage.shell(f"{stage.pbs_bin}qselect -N raw | xargs -r {stage.pbs_bin}qdel")
    raw = median(raws)
    net = tuple(sample - raw for sample in samples)
    yield Figure("queued_latency_ms.p50", median(net), "ms", "≤ 150", net, f"less one raw qsub of {raw:.0f} ms")


def one_by_one(stage: Stage) -> list[float]:
    """Milliseconds from the creation of each pod until PBS has its job."""
    offset = stage.clock_offset()
    created: dict[str, float] = {}

    async def create(kube: KubeClient) -> None:
        for number in range(PODS):
            pod = stage.pod(f"latency-{number}", "true")
            pod["spec"]["nodeName"] = stage.node
            at = time.time()
            made = await kube.create(paths.pods(NAMESPACE), pod)
            created[made["metadata"]["uid"]] = at
            await asyncio.sleep(APART)

    stage.client(create)
    wait(lambda: created.keys() <= stage.accepted().keys(), "jobs accepted", 120, pause=0.5)
    return [(stage.accepted()[uid] - offset - at) * 1000 for uid, at in created.items()]
