"""What a kubelet checks before it accepts a pod that the scheduler did not place: may it be here, does it fit? Pure.

Pods that the scheduler bound are never rejected here: the node may have shrunk since, and they wait in PBS instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from bridge.api import names
from bridge.plan import quantity
from bridge.plan.affinity import refusal
from bridge.plan.resources import asked, containers
from bridge.pods.record import Failure
from pbs_adapter.models import Json

TERMINAL = ("Succeeded", "Failed")


def scheduled(pod: Json) -> bool:
    """Did the scheduler bind the pod? With spec.nodeName set by hand only the node itself writes the condition."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c.get("type") == "PodScheduled" and c.get("status") == "True" for c in conditions)


def requests(pod: Json) -> dict[str, int]:
    """What the scheduler counts for the pod: cpu in thousandths, everything else in its own unit, rounded up."""
    apps, inits = containers(pod, "containers"), containers(pod, "initContainers")
    asked_for = {
        n for c in apps + inits for side in ("requests", "limits") for n in (c.get("resources") or {}).get(side) or {}
    } | {*(pod["spec"].get("overhead") or {})}
    totals = {}
    for name in asked_for:
        each = {id(c): asked(c, name, limit_first=False) or 0 for c in apps + inits}
        total = max([sum(each[id(c)] for c in apps), *(each[id(c)] for c in inits)])
        total += quantity.parse((pod["spec"].get("overhead") or {}).get(name, "0"))
        totals[name] = quantity.ceil(Fraction(total) * (1000 if name == "cpu" else 1))
    return totals


def admit(
    pod: Json,
    others: Iterable[Json],
    allocatable: Mapping[str, str],
    node: Json,
    counted: Callable[[Json], Mapping[str, int]] = requests,
) -> Failure | None:
    """Return why the pod must be rejected, or None.

    `others`: pods on the node that have been accepted. `allocatable`: the node's, as quantity strings. `node`: its
    object, empty while it was not read. `counted`: `requests`, perhaps remembered, since it is asked of every other
    pod. Only pods that the scheduler has not seen and
    that have not been accepted yet (no startTime) are checked.
    """
    if scheduled(pod) or pod.get("status", {}).get("startTime"):
        return None
    accepted = [o for o in others if o.get("status", {}).get("phase") not in TERMINAL]
    most = quantity.ceil(quantity.parse(allocatable["pods"])) if "pods" in allocatable else None  # 1000 comes as "1k"
    if most is not None and len(accepted) >= most:
        return _out_of("pods", 1, len(accepted), most)
    for name, wanted in counted(pod).items():
        if name not in allocatable:
            if wanted and name != "ephemeral-storage":
                return _out_of(name, wanted, 0, 0)
            continue
        used = sum(counted(o).get(name, 0) for o in accepted)
        capacity = quantity.parse(allocatable[name]) * (1000 if name == "cpu" else 1)
        if wanted and wanted + used > capacity:
            return _out_of(name, wanted, used, int(capacity))
    return _elsewhere(pod, node)


def _elsewhere(pod: Json, node: Json) -> Failure | None:
    """As a kubelet's general filter, whose words these are. Host ports are refused as a field."""
    spec = pod["spec"]
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        text = "Failed to admit pod as the OS field doesn't match node OS"
        return Failure("PodOSNotSupported", text, rejected=True)
    if not node:
        return None
    wanted, has = (spec.get("nodeSelector") or {}).get(names.OS_LABEL), (node["metadata"].get("labels") or {})
    if wanted is not None and wanted != has.get(names.OS_LABEL):
        text = f"Failed to admit pod as the `{names.OS_LABEL}` label doesn't match node label"
        return Failure("PodOSSelectorNodeLabelDoesNotMatch", text, rejected=True)
    ending = [t for t in (node.get("spec") or {}).get("taints") or [] if t.get("effect") == "NoExecute"]
    if said := refusal(spec, {"metadata": node["metadata"], "spec": {"taints": ending}}):
        selected = refusal(spec, {"metadata": node["metadata"], "spec": {}})
        reason = "NodeAffinity" if selected else "TaintToleration"
        return Failure(reason, f"Predicate {reason} failed: {said}", rejected=True)
    return None


def _out_of(name: str, asked: int, used: int, capacity: int) -> Failure:
    text = f"Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {capacity}"
    return Failure(f"OutOf{name}", text, rejected=True)
