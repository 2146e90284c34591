"""Pod conditions: the five a kubelet owns, merged with those of others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bridge.kube.clock import rfc3339

Json = dict[str, Any]

OWNED = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def condition(kind: str, value: bool, reason: str = "", message: str = "") -> Json:
    """One condition without its times; `merge` fills these."""
    return {"type": kind, "status": "True" if value else "False", "reason": reason, "message": message}


def _unready(statuses: Iterable[Json]) -> list[str]:
    return [s["name"] for s in statuses if not s.get("ready")]


def _names(names: list[str]) -> str:
    return "[" + " ".join(names) + "]"


def gates_open(pod: Json) -> list[str]:
    """Readiness gates that others have not set to True, in spec order."""
    return [
        g["conditionType"] for g in pod["spec"].get("readinessGates", []) if _gate(pod, g["conditionType"]) != "True"
    ]


def _gate(pod: Json, kind: str) -> str | None:
    held = (c.get("status") for c in pod.get("status", {}).get("conditions", []) if c["type"] == kind)
    return next(held, None)


def _gate_text(pod: Json, kind: str) -> str:
    """A kubelet's own words."""
    value = _gate(pod, kind)
    if value is None:
        return f'corresponding condition of pod readiness gate "{kind}" does not exist.'
    return f'the status of pod readiness gate "{kind}" is not "True", but {value}'


def own_conditions(
    pod: Json, phase: str, inits: list[Json], apps: list[Json], *, network: bool, initialized: bool, blocked: str = ""
) -> list[Json]:
    """Return the owned conditions for these container statuses, in the order of `OWNED`.

    `blocked` is a reason that makes the pod not ready whatever its containers say (`PBSSuspended`).
    """
    pending = [s["name"] for s in inits if s.get("state", {}).get("terminated", {}).get("exitCode") != 0]
    done = condition("Initialized", True)
    if not initialized:
        text = f"containers with incomplete status: {_names(pending)}"
        done = condition("Initialized", False, "ContainersNotInitialized", text)
    if phase == "Succeeded":
        done = condition("Initialized", True, "PodCompleted")
        not_ready, why = "PodCompleted", ""
    elif phase == "Failed":
        not_ready, why = "PodFailed", ""
    else:
        unready = _unready(apps)
        not_ready = blocked or ("ContainersNotReady" if unready else "")
        why = f"containers with unready status: {_names(unready)}" if unready and not blocked else ""
    containers_ready = condition("ContainersReady", not not_ready, not_ready, why)
    ready = condition("Ready", not not_ready, not_ready, why)
    if not not_ready and (gates := gates_open(pod)):
        texts = ", ".join(_gate_text(pod, gate) for gate in gates)
        ready = condition("Ready", False, "ReadinessGatesNotReady", texts)
    return [
        condition("PodReadyToStartContainers", network),
        done,
        ready,
        containers_ready,
        condition("PodScheduled", True),
    ]


def merge(pod: Json, wanted: list[Json], now: float, generation: int | None) -> list[Json]:
    """Give `wanted` their times: a transition time is kept while the status value stays the same.

    Conditions of others are not part of the result: the strategic merge patch leaves them alone. generation: the one
    that is observed; None where the API server has none.
    """
    existing = {c["type"]: c for c in pod.get("status", {}).get("conditions", [])}
    merged = []
    for new in wanted:
        old = existing.get(new["type"])
        same = old is not None and old.get("status") == new["status"]
        entry = {"type": new["type"], "status": new["status"], "lastProbeTime": None}
        entry["lastTransitionTime"] = old["lastTransitionTime"] if same and old else rfc3339(now)
        for key in ("reason", "message"):
            if new[key]:
                entry[key] = new[key]
            elif old is not None and old.get(key):
                entry[key] = None  # removes it
        if generation is not None:
            entry["observedGeneration"] = generation
        merged.append(entry)
    return merged
