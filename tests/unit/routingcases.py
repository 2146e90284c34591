"""Judgements and rules made by hand, for tables."""

from __future__ import annotations

from typing import Any

from bridge.api.routing import RoutingRuleSpec
from bridge.routing.judge import Judgement
from bridge.routing.waits import Wait

HOUR = 3600.0


def spec(**fields: Any) -> RoutingRuleSpec:
    """A rule's spec; fields by their names in YAML."""
    return RoutingRuleSpec.model_validate(fields)


def judged(cluster: str, expected: float = 60.0, **fields: Any) -> Judgement:
    """A candidate with room that may be chosen, for a job of one hour, unless told otherwise."""
    base: dict[str, Any] = {"queue": None, "fits_now": True, "run": HOUR, "slots": 10, "cores": 100}
    base["wait"] = Wait({0.5: expected, 0.9: expected * 2}, 20, "queue", 0.5)
    return Judgement(cluster, expected=expected, **base | fields)
