"""api.patches_per_pod: what a pod that queues, runs and completes costs the API server, from its audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.bench.figures import Figure
from tests.bench.stage import Json, Shape, Stage, Theatre, wait

PODS = 60
BUSY = 12


def measure(theatre: Theatre) -> Iterator[Figure]:
    """60 pods wait behind another user's job, run for a few seconds and complete."""
    with theatre.stage(Shape(hosts=1), poll="5s") as stage:
        if theatre.address is None:
            stage.embedded.keep_busy(BUSY)
        stage.create(stage.pod(f"life-{n}", "echo working; sleep 3; echo done") for n in range(PODS))
        wait(lambda: ended(stage), "pods completed", 300, pause=1.0)
        counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("status", "message", "metadata")}
        shown: dict[str, Json] = {}
        for event in stage.writes():
            name, patched = event["objectRef"]["name"], event["requestObject"].get("status")
            if not name.startswith("life-") or event["responseStatus"]["code"] >= 300:
                continue
            before = shown.get(name)
            kind = "metadata" if patched is None else "message" if before == essence(patched) else "status"
            counts[kind][name] += 1
            if patched is not None:
                shown[name] = essence(patched)
    for kind, goal in (("status", "≤ 4"), ("metadata", "≤ 1"), ("message", "≤ 1")):
        samples = tuple(float(counts[kind][f"life-{n}"]) for n in range(PODS))
        note = "of a waiting reason's text alone; one in five minutes" if kind == "message" else "the most of any pod"
        yield Figure(f"api.patches_per_pod.{kind}", max(samples), "", goal, samples, note)


def essence(status: Json) -> Json:
    """A status without the texts of waiting reasons and the times of conditions."""
    containers = [
        {kind: value.get("reason") if kind == "waiting" else value for kind, value in each["state"].items()}
        for each in status.get("containerStatuses", [])
    ]
    conditions = [(each["type"], each["status"], each.get("reason")) for each in status.get("conditions", [])]
    return {"phase": status.get("phase"), "containers": containers, "conditions": conditions}


def ended(stage: Stage) -> bool:
    """Whether every pod is over. Raises nothing for failed ones: they are counted too."""
    pods = stage.pods()
    return len(pods) == PODS and all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods)
