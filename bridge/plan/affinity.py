"""Whether a node would take a pod as far as selectors and taints go, as kube-scheduler evaluates them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

Json = dict[str, Any]
KEEPS_AWAY = ("NoSchedule", "NoExecute")


def tolerates(tolerations: Iterable[Json], taint: Json) -> bool:
    """Whether one of the tolerations covers the taint."""
    return any(_covers(each, taint) for each in tolerations)


def _covers(toleration: Json, taint: Json) -> bool:
    effect, key = toleration.get("effect"), toleration.get("key")
    if effect and effect != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return not key or key == taint.get("key")
    return bool(key) and key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


def refusal(spec: Json, node: Json, ignored: Collection[str] = ()) -> str:
    """Why the node would not take the pod by itself; empty when it would. ignored: keys of taints that do not count."""
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"its nodeSelector asks for {key}={value}"
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is not None and not any(_term(term, labels, name) for term in required.get("nodeSelectorTerms") or []):
        return "its node affinity asks for other nodes"
    if (node.get("spec") or {}).get("unschedulable"):
        return "the node is cordoned"
    for taint in (node.get("spec") or {}).get("taints") or []:
        away = taint.get("effect") in KEEPS_AWAY and taint.get("key") not in ignored
        if away and not tolerates(spec.get("tolerations") or [], taint):
            return f"it does not tolerate the node's taint {taint.get('key')}"
    return ""


def _term(term: Json, labels: Mapping[str, str], name: str) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    return bool(expressions or fields) and (
        all(_holds(each, labels) for each in expressions)
        and all(_holds(each, {"metadata.name": name}) for each in fields)
    )


def _holds(requirement: Json, labels: Mapping[str, str]) -> bool:
    key, values = requirement.get("key", ""), requirement.get("values") or []
    value = labels.get(key)
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as way:
            try:
                have, bound = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return have > bound if way == "Gt" else have < bound
        case _:
            return False
