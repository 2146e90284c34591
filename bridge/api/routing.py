"""RoutingRule, the custom resource: what an admin writes to say which pods go to which clusters, and how to choose.

The CRD's schema (`bridge.api.crd`) and docs/reference/routing-rule.md are generated from here. The API server refuses
at apply what the schema refuses; `parse_rule` judges again, because a rule may be older than the schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WithJsonSchema,
)

from bridge.api.settings import DNS_LABEL, parse_duration

GROUP, VERSION, KIND, PLURAL = "hpc-bridge.io", "v1alpha1", "RoutingRule", "routingrules"

Mode = Literal["can", "must", "never"]
Objective = Literal["earliestCompletion", "earliestStart", "ordered", "spread"]

_MONTH = 30 * 86400
_QUEUE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_QUANTITY = r"^([0-9]{1,18}(\.[0-9]{1,9})?|\.[0-9]{1,9})([numkMGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?$"
_QUANTITY_SAYS = 'a quantity of zero or more, at most 1Ei; write for example "4", 500m, 1.5, 8Gi'
_TIME = "(([0-9]{1,9}[smhd])+|[0-9]{1,9}(:[0-5]?[0-9]){0,2})"
_TIME_SAYS = "a duration of at most 30 days; write seconds, or for example 90s, 15m, 2h, 1h30m, 01:30:00"
# The agent's namespace may have another name; condition Accepted then says what the schema cannot know.
_SYSTEM = "['kube-system', 'hpc-bridge']"
_SYSTEM_SAYS = "pods of kube-system and of the bridge itself must never wait for the bridge; leave them out"
_NAMED_LABELS = (
    "(has(self.namespaceSelector.matchLabels) && self.namespaceSelector.matchLabels.exists(k, "
    f"k == 'kubernetes.io/metadata.name' && self.namespaceSelector.matchLabels[k] in {_SYSTEM}))"
)
_NAMED_EXPRESSIONS = (
    "(has(self.namespaceSelector.matchExpressions) && self.namespaceSelector.matchExpressions.exists(e, "
    f"e.key == 'kubernetes.io/metadata.name' && e.operator == 'In' && e.values.exists(v, v in {_SYSTEM})))"
)


def _cel(rule: str, message: str) -> JsonValue:
    return {"rule": rule, "message": message}


def _int_or_string(*rules: JsonValue) -> WithJsonSchema:
    return WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32, "x-kubernetes-validations": [*rules]})


def parse_quantity(value: object) -> object:
    """The text of a Kubernetes quantity; whole numbers become text, the rest is left for pydantic to judge.

    >>> parse_quantity(4), parse_quantity("8Gi")
    ('4', '8Gi')
    """
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_quantity(value: str) -> str:
    if not re.fullmatch(_QUANTITY, value):
        raise ValueError(f"{value[:60]!r} is not {_QUANTITY_SAYS}")
    return value


_DURATION = _int_or_string(
    _cel(f"type(self) == string ? self.matches('^{_TIME}$') : self >= 0 && self <= {_MONTH}", f"must be {_TIME_SAYS}")
)
# Zero of an optional duration would mean "never": it is a mistake.
_POSITIVE = _int_or_string(
    _cel(
        f"type(self) == string ? self.matches('^{_TIME}$') && self.matches('[1-9]') : self > 0 && self <= {_MONTH}",
        f"must be more than zero, and {_TIME_SAYS}",
    )
)
Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=_MONTH), _DURATION]
PositiveDuration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=_MONTH), _POSITIVE]
Quantity = Annotated[
    str,
    BeforeValidator(parse_quantity),
    AfterValidator(_check_quantity),
    _int_or_string(
        # The pattern first: what it lets through is cheap to compare.
        _cel(
            f"string(self).matches(r'{_QUANTITY}') && quantity(string(self)).compareTo(quantity('1Ei')) <= 0",
            f"must be {_QUANTITY_SAYS}",
        )
    ),
]
Quantities = Annotated[dict[str, Quantity], Field(max_length=16)]
LabelValue = Annotated[str, Field(max_length=63)]
LabelName = Annotated[str, Field(min_length=1, max_length=317)]
Namespace = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, populate_by_name=True)


class Requirement(_Strict):
    """One of a selector's `matchExpressions`."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                _cel(
                    "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                    "In and NotIn need values, Exists and DoesNotExist take none",
                )
            ]
        }
    )

    key: LabelName = Field(description="Name of a label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="As in any label selector.")
    values: tuple[LabelValue, ...] = Field((), max_length=32, description="Values for `In` and `NotIn`.")


class Selector(_Strict):
    """A label selector as everywhere in Kubernetes: all of it must hold; an empty one selects everything."""

    match_labels: dict[str, LabelValue] = Field(
        default_factory=dict, alias="matchLabels", max_length=32, description="Labels and the values they must have."
    )
    match_expressions: tuple[Requirement, ...] = Field(
        (), alias="matchExpressions", max_length=16, description="Further requirements."
    )


class PodMatch(_Strict):
    """Which pods a rule is for: all that is given must hold. Left out altogether: every pod that is gated."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                _cel(
                    "!has(self.minRequests) || !has(self.maxRequests) || self.minRequests.all(r, "
                    "!(r in self.maxRequests) || quantity(string(self.minRequests[r]))"
                    ".compareTo(quantity(string(self.maxRequests[r]))) <= 0)",
                    "no pod has requests of at least minRequests and at most maxRequests; make minRequests the smaller",
                ),
                _cel(
                    f"!has(self.namespaceSelector) || !({_NAMED_LABELS} || {_NAMED_EXPRESSIONS})",
                    _SYSTEM_SAYS,
                ),
            ]
        }
    )

    namespace_selector: Selector | None = Field(
        None, alias="namespaceSelector", description="Selects namespaces by their labels."
    )
    namespaces: tuple[Namespace, ...] = Field(
        (),
        max_length=64,
        description="Namespaces by name. kube-system and the agent's own are refused: pods there must never wait for "
        "the bridge.",
        json_schema_extra={"x-kubernetes-validations": [_cel(f"!self.exists(n, n in {_SYSTEM})", _SYSTEM_SAYS)]},
    )
    label_selector: Selector | None = Field(None, alias="labelSelector", description="Selects pods by their labels.")
    min_requests: Quantities = Field(
        default_factory=dict,
        alias="minRequests",
        description="Resource to the least that the pod as a whole requests; what it does not request counts as 0.",
    )
    max_requests: Quantities = Field(
        default_factory=dict, alias="maxRequests", description="Resource to the most that the pod as a whole requests."
    )


class CandidateSpec(_Strict):
    """A cluster that may take the pod."""

    cluster: str = Field(pattern=DNS_LABEL, max_length=63, description="Name of the cluster in bridge.yaml.")
    queue: str | None = Field(
        None,
        pattern=_QUEUE,
        max_length=64,
        description="PBS queue. Left out: what the pod gets there by itself, which is the queue of its annotation, "
        "else the cluster's `queue`, else PBS's default.",
    )
    weight: float = Field(
        1,
        ge=0.01,
        le=100,
        description="How much this one is preferred: expected times are divided by it, shares of `spread` multiplied.",
    )
    penalty_seconds: float = Field(
        0,
        ge=0,
        le=_MONTH,
        alias="penaltySeconds",
        description="Seconds added to its expected times, for what money, energy or a far data set cost.",
    )


class RoutingRuleSpec(_Strict):
    """Which pods a rule is for, where they may go, and how one is chosen."""

    match: PodMatch = Field(default_factory=lambda: PodMatch.model_validate({}), description="The pods.")
    mode: Mode = Field(
        "can",
        description="`can`: to the local cluster where the pod fits there now, to a candidate as soon as `localWait` "
        "is over. `must`: to a candidate only. `never`: to the local cluster at once. The pod's label "
        "`hpc-bridge.io/route` decides between can and must; never wins, whoever says it.",
    )
    local_wait: Duration = Field(
        120,
        alias="localWait",
        description="How long the local cluster alone may take the pod, before a candidate may too; also how long a "
        "pod that no candidate can take is kept before it is released to the local cluster with the reason.",
    )
    objective: Objective = Field(
        "earliestCompletion",
        description="What is best. `earliestCompletion`: wait, then run time with the slowdown by NUMA. "
        "`earliestStart`: the wait alone. `ordered`: the first candidate, in the order given, that fits now, else the "
        "first that fits at all. `spread`: in proportion to what is free, times weight.",
    )
    quantile: float = Field(
        0.5,
        ge=0.01,
        le=0.99,
        description="Which quantile of the predicted wait is compared; 0.5 is what happens in half of all cases, 0.9 "
        "is for the careful.",
    )
    start_within: PositiveDuration | None = Field(
        None,
        alias="startWithin",
        description="For interactive work: the candidate most likely to start the pod within this time is taken, and "
        "the pod says so when none is likely to. Left out: no such limit.",
    )
    numa: Literal["ignore", "prefer", "require"] = Field(
        "prefer",
        description="`ignore`: NUMA plays no part. `prefer`: the slowdown of a job spread over domains counts as run "
        "time. `require`: the job is only started inside a single domain.",
    )
    max_slowdown: float | None = Field(
        None,
        ge=1,
        le=100,
        alias="maxSlowdown",
        description="Candidates whose slowdown by NUMA may exceed this factor are refused. Left out: none is.",
    )
    candidates: tuple[CandidateSpec, ...] = Field(
        (),
        max_length=64,
        description="Where the pods may go. Left out: every cluster. One that is not known is skipped, and condition "
        "Accepted says so.",
        json_schema_extra={
            "x-kubernetes-validations": [
                _cel(
                    "self.all(a, self.exists_one(b, a.cluster == b.cluster && (has(a.queue) ? "
                    "has(b.queue) && a.queue == b.queue : !has(b.queue))))",
                    "each cluster and queue may be there once",
                )
            ]
        },
    )
    idle_cap: int | None = Field(
        None,
        ge=1,
        le=100000,
        alias="idleCap",
        description="A cluster where this many of the bridge's jobs wait in PBS gets no new ones. Left out: no cap.",
    )
    hysteresis: float = Field(
        0.1,
        ge=0,
        le=1,
        description="A pod that has been told where it would go changes only for something better by this share.",
    )
    on_unavailable: Literal["local", "wait"] = Field(
        "local",
        alias="onUnavailable",
        description="When no candidate can be reached: `local` releases the pod to the local cluster after "
        "`localWait`, `wait` keeps it until one can.",
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that can be used. `created` is its creationTimestamp, which sorts as text."""

    name: str
    generation: int
    spec: RoutingRuleSpec
    created: str = ""


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """A rule that cannot be used: `problems` are (field, what is wrong with it)."""

    name: str
    generation: int
    problems: tuple[tuple[str, str], ...]


def parse_rule(obj: Mapping[str, Any]) -> Rule | RuleProblem:
    """A RoutingRule as the API server returns it. Never raises on odd content."""
    metadata = obj.get("metadata") or {}
    name, generation = str(metadata.get("name", "")), int(metadata.get("generation") or 0)
    try:
        spec = RoutingRuleSpec.model_validate(obj.get("spec") or {})
    except ValidationError as error:
        found = [(_path(detail["loc"]), _told(detail["msg"])) for detail in error.errors(include_url=False)]
        return RuleProblem(name, generation, tuple(found))
    return Rule(name, generation, spec, str(metadata.get("creationTimestamp") or ""))


def _path(location: tuple[str | int, ...]) -> str:
    return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _told(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
