"""What a pod as a whole requests, as kube-scheduler counts it; rules match it, and the local cluster must hold it.

Not what PBS is asked for (`bridge.plan.resources`): that rounds up, adds what the job itself needs, and takes limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from bridge.plan import quantity

Json = dict[str, Any]
Amounts = dict[str, Fraction]


def requests(pod: Json) -> Amounts:
    """Resource to amount (cpu in cores, memory in bytes).

    Init containers run one after the other beside the sidecars started before them; the app containers run side by
    side with all sidecars. The larger of the two counts, and the pod's overhead is added. Requests of the pod as a
    whole (`spec.resources`) replace those of its containers. Raises ValueError for what is no quantity.
    """
    spec = pod.get("spec") or {}
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.get("initContainers") or []:
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, asked)
            starting = _larger(starting, sidecars)
        else:
            starting = _larger(starting, _sum(sidecars, asked))
    running = sidecars
    for container in spec.get("containers") or []:
        running = _sum(running, _asked(container))
    whole = _larger(starting, running) | _asked(spec)
    return _sum(whole, _parsed(spec.get("overhead")))


def _asked(holder: Mapping[str, Any]) -> Amounts:
    """Requests; limits stand in for those that are missing, as the API server has it."""
    declared = holder.get("resources") or {}
    return _parsed(declared.get("limits")) | _parsed(declared.get("requests"))


def _parsed(amounts: Mapping[str, Any] | None) -> Amounts:
    return {name: quantity.parse(value) for name, value in (amounts or {}).items()}


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {name: one.get(name, Fraction(0)) + other.get(name, Fraction(0)) for name in {**one, **other}}


def _larger(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in {**one, **other}}
