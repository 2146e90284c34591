"""From a pod's spec to a PBS job: what it needs, what cannot be honoured, and the files that run it. Pure, no I/O."""

from bridge.plan.fit import Fit, fit, place
from bridge.plan.freeze import freeze, job_name, refresh
from bridge.plan.model import InputRef, Inputs, MissingInput, NodeFacts, Plan, Refusal, token_request
from bridge.plan.placement import Placement
from bridge.plan.plan import plan

__all__ = [
    "Fit",
    "InputRef",
    "Inputs",
    "MissingInput",
    "NodeFacts",
    "Placement",
    "Plan",
    "Refusal",
    "fit",
    "freeze",
    "job_name",
    "place",
    "plan",
    "refresh",
    "token_request",
]
