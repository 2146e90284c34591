"""Does a pod fit the local cluster now? From Node objects and the pods bound to them, as far as one can tell outside.

The scheduler knows more (affinity between pods, spreading, volumes, ports): a pod that is released because it seems to
fit may still wait. In mode `can` it is then looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bridge.api import names
from bridge.plan import quantity
from bridge.plan.affinity import refusal
from bridge.routing.requests import requests

Json = dict[str, Any]
Milli = dict[str, int]
PODS = "pods"


@dataclass(frozen=True, slots=True)
class LocalFit:
    """now: the node that could take it at once, "" for none. ever: some node could if it were empty.

    share: the largest part of the biggest node's allocatable that one of the requests is; None: there are no nodes.
    why: what is in the way.
    """

    now: str = ""
    ever: bool = False
    share: float | None = None
    why: str = "there are no local nodes"


def asks(pod: Json) -> Milli:
    """What the pod takes of a node, in thousandths. Raises ValueError for what is no quantity."""
    return _milli(requests(pod)) | {PODS: 1000}


def _milli(amounts: Mapping[str, Fraction]) -> Milli:
    return {name: -(-amount.numerator * 1000 // amount.denominator) for name, amount in amounts.items()}


def prune_bound(pod: Json) -> Json:
    """What is kept of a bound pod: where it is and what it takes."""
    metadata = pod["metadata"]
    kept = {key: metadata[key] for key in ("uid", "name", "namespace", "resourceVersion") if key in metadata}
    return {"metadata": kept, "spec": {"nodeName": pod["spec"].get("nodeName", "")}, "asks": asks(pod)}


def is_local(node: Json) -> bool:
    """Whether it is a node that runs pods itself."""
    return (node["metadata"].get("labels") or {}).get(names.NODE_TYPE_LABEL) != names.NODE_TYPE


class Locals:
    """Free room on the local nodes at one moment; `take` sets some of it aside for a pod that is about to come."""

    def __init__(self, nodes: Iterable[Json], bound: Iterable[Json]) -> None:
        self._nodes = {
            node["metadata"]["name"]: node
            for node in sorted(nodes, key=lambda n: str(n["metadata"]["name"]))
            if is_local(node)
        }
        self._whole = {name: _allocatable(node) for name, node in self._nodes.items()}
        self._free = {name: dict(amounts) for name, amounts in self._whole.items()}
        for pod in bound:
            if (name := pod["spec"].get("nodeName")) in self._free:
                self.take(name, pod["asks"])

    def take(self, node: str, asked: Mapping[str, int]) -> None:
        """Set room aside."""
        free = self._free[node]
        for resource, amount in asked.items():
            free[resource] = free.get(resource, 0) - amount

    def fit(self, pod: Json) -> LocalFit:
        """Where the pod would fit now. Raises ValueError for what is no quantity."""
        if not self._nodes:
            return LocalFit()
        asked = asks(pod)
        why, ever = "", False
        for name, node in self._nodes.items():
            if said := refusal(pod["spec"], node) or _not_ready(node):
                why = why or f"no local node takes it: {said} ({name})"
                continue
            if short := _short(asked, self._whole[name]):
                why = why or f"it is too large for local nodes: {short}"
                continue
            ever = True
            if not (short := _short(asked, self._free[name])):
                return LocalFit(name, True, self._share(asked), "")
            why = f"no local node has room now: {short}"
        return LocalFit("", ever, self._share(asked), why)

    def _share(self, asked: Milli) -> float:
        """Of the biggest node: the one with the most cores, then the most memory."""
        biggest = max(self._whole.values(), key=lambda has: (has.get("cpu", 0), has.get("memory", 0)))
        parts = [
            amount / biggest[name] if biggest.get(name) else 1e9
            for name, amount in asked.items()
            if amount and name != PODS
        ]
        return max((part for part in parts), default=0.0)


def _allocatable(node: Json) -> Milli:
    status = node.get("status") or {}
    amounts = status.get("allocatable") or status.get("capacity") or {}
    return {PODS: 110_000} | _milli({name: quantity.parse(amount) for name, amount in amounts.items()})


def _not_ready(node: Json) -> str:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return "" if ready else "the node is not ready"


def _short(asked: Milli, has: Mapping[str, int]) -> str:
    for name, amount in asked.items():
        if amount > has.get(name, 0):
            return f"asks {name} {_shown(name, amount)}, there is {_shown(name, max(0, has.get(name, 0)))}"
    return ""


def _shown(name: str, milli: int) -> str:
    return f"{milli / 1000 / (1 << 30):.3g}Gi" if name == "memory" else f"{milli / 1000:g}"
