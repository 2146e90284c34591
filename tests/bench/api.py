"""api.patches_per_pod: what a pod that queues, runs and completes costs the API server, from its audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.bench.figures import Figure
from tests.bench.stage import Shape, Stage, Theatre, wait

PODS = 60
BUSY = 12


def measure(theatre: Theatre) -> Iterator[Figure]:
    """60 pods wait behind another user's job, run for a few seconds and complete."""
    with theatre.stage(Shape(hosts=1), poll="5s") as stage:
        if theatre.address is None:
            stage.embedded.keep_busy(BUSY)
        stage.create(stage.pod(f"life-{n}", "echo working; sleep 3; echo done") for n in range(PODS))
        wait(lambda: ended(stage), "pods completed", 300, pause=1.0)
        names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in stage.pods()}
        counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("status", "")}
        for event in stage.writes():
            ref = event["objectRef"]
            if ref["name"] in names.values() and event["responseStatus"]["code"] < 300:
                counts[ref.get("subresource", "")][ref["name"]] += 1
    for key, kind, goal in (("status", "status", "≤ 4"), ("metadata", "", "≤ 1")):
        samples = tuple(float(counts[kind][name]) for name in names.values())
        mean = sum(samples) / len(samples)
        yield Figure(f"api.patches_per_pod.{key}", mean, "", goal, samples, "mean of pods that queue, run and complete")


def ended(stage: Stage) -> bool:
    """Whether every pod is over. Raises nothing for failed ones: they are counted too."""
    pods = stage.pods()
    return len(pods) == PODS and all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods)
