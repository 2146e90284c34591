"""Which rule decides about a pod, and what its labels say: pure, from objects as the API server has them.

Authors write a label, admins write rules; this is the one place where the two meet. Where the pod then goes is decided
elsewhere. docs/how-to/write-a-rule.md tells the order in which rules are tried, which is that of `_rank`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from bridge.api import names
from bridge.api.routing import CandidateSpec, Mode, PodMatch, RoutingRuleSpec, Rule, RuleProblem
from bridge.plan import quantity
from bridge.routing.requests import Amounts, requests
from bridge.routing.selectors import METADATA_NAME, requirements, selects

Json = dict[str, Any]
Known = Mapping[str, Collection[str]]
"""Cluster to the names of its queues; an empty collection where PBS has not been asked yet."""

Transfer = Literal["can", "must", "cooperative"]
SYSTEM = ("kube-system", "hpc-bridge")
BUILT_IN = Rule("built-in", 0, RoutingRuleSpec.model_validate({}))
TRANSFER_SHARE = 0.7
"""`hpctransfer: can` moves what asks for more than this share of the biggest local node; k8shpc's own figure."""

_MODES: dict[str, Mode] = {"can": "can", "must": "must", "never": "never"}
_TRANSFERS: dict[str, Transfer] = {"can": "can", "must": "must", "cooperative": "cooperative"}


@dataclass(frozen=True, slots=True)
class Match:
    """What decides about one pod. `rule` None: nobody wants it anywhere else, it is the local cluster's.

    `why` says why this rule and this mode, for Events and `explain`. `losers` are the other rules that are for this
    pod too, with what made them give way. With `transfer`, the mode holds if `moves` says so, else it is never.
    """

    rule: Rule | None
    mode: Mode
    why: str
    losers: tuple[tuple[str, str], ...] = ()
    transfer: Transfer | None = None


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the pod's labels say: which mode, by which label, and what could not be understood."""

    mode: Mode | None = None
    label: str = ""
    ignored: str = ""
    transfer: Transfer | None = None


def match(pod: Json, namespace: Json, rules: Sequence[Rule], *, system: Collection[str] = SYSTEM) -> Match:
    """The rule for a gated pod: of all that are for it the most specific, else the built-in one if a label asks.

    `system`: namespaces whose pods are never routed, which are kube-system and the agent's own.
    """
    metadata = namespace.get("metadata") or {}
    if metadata.get("name") in system:
        return Match(None, "never", f"pods of namespace {metadata['name']} are never routed")
    wish = _wish((pod.get("metadata") or {}).get("labels") or {})
    asked, usable = requests(pod), (rule for rule in rules if not _system_fields(rule.spec.match, system))
    fitting = sorted((r for r in usable if _is_for(r.spec.match, pod, metadata, asked)), key=_rank)
    if wish.mode == "never":
        return Match(None, "never", f"its label {wish.label} keeps it on the local cluster")
    if not fitting:
        if wish.mode is None:
            return Match(None, "never", f"no rule is for it, and it has no label {names.ROUTE}{wish.ignored}")
        why = f"its label {wish.label} asks for it, and no rule is for it: the built-in rule over all clusters"
        return Match(BUILT_IN, wish.mode, why + wish.ignored, transfer=wish.transfer)
    rule, others = fitting[0], fitting[1:]
    losers = tuple((other.name, _gave_way(other, rule)) for other in others)
    if rule.spec.mode == "never":
        return Match(rule, "never", f"rule {rule.name} keeps it on the local cluster{wish.ignored}", losers)
    by = f"mode {wish.mode} by its label {wish.label}" if wish.mode else f"mode {rule.spec.mode} by the rule"
    return Match(
        rule, wish.mode or rule.spec.mode, f"rule {rule.name} is for it, {by}{wish.ignored}", losers, wish.transfer
    )


def _wish(labels: Mapping[str, str]) -> _Wish:
    """The bridge's own label before k8shpc's; a value that means nothing is as if it were not there."""
    ignored = ""
    if names.ROUTE in labels:
        value = str(labels[names.ROUTE])
        if value in _MODES:
            return _Wish(_MODES[value], f"{names.ROUTE}={value}")
        ignored += f" (label {names.ROUTE}={value} ignored: it may be can, must or never)"
    if names.TRANSFER in labels:
        value = str(labels[names.TRANSFER])
        if value in _TRANSFERS:
            return _Wish("must", f"{names.TRANSFER}={value}", ignored, _TRANSFERS[value])
        ignored += f" (label {names.TRANSFER}={value} ignored: it may be can, must or cooperative)"
    return _Wish(ignored=ignored)


def moves(transfer: Transfer, *, share: Fraction | float | None, fits_now: bool) -> bool:
    """Whether hpctransfer sends the pod away, as k8shpc does.

    `share`: the largest part of the biggest local node's allocatable that one of its requests is; None: there is no
    local node. `fits_now`: some local node could take it at this moment.
    """
    match transfer:
        case "must":
            return True
        case "can":
            return share is None or share > TRANSFER_SHARE
        case "cooperative":
            return not fits_now


def _is_for(wanted: PodMatch, pod: Json, namespace: Json, asked: Amounts) -> bool:
    return (
        (not wanted.namespaces or namespace.get("name") in wanted.namespaces)
        and selects(wanted.namespace_selector, {METADATA_NAME: namespace.get("name", "")} | _labels(namespace))
        and selects(wanted.label_selector, _labels(pod.get("metadata") or {}))
        and all(asked.get(name, 0) >= quantity.parse(least) for name, least in wanted.min_requests.items())
        and all(asked.get(name, 0) <= quantity.parse(most) for name, most in wanted.max_requests.items())
    )


def _labels(metadata: Json) -> dict[str, str]:
    return metadata.get("labels") or {}


def _counts(wanted: PodMatch) -> tuple[int, int, int]:
    """How specific a rule is: names namespaces; requirements on labels; limits on requests."""
    labels = [*requirements(wanted.namespace_selector), *requirements(wanted.label_selector)]
    return int(bool(wanted.namespaces)), len(labels), len(wanted.min_requests) + len(wanted.max_requests)


def _rank(rule: Rule) -> tuple[int, int, int, str, str]:
    """The order in which rules win: the more specific, then the older, then the first by name."""
    named, labels, sizes = _counts(rule.spec.match)
    return -named, -labels, -sizes, rule.created, rule.name


def _gave_way(loser: Rule, winner: Rule) -> str:
    """Why one rule comes after another: the first thing in which they differ."""
    (named, labels, sizes), (own_named, own_labels, own_sizes) = (
        _counts(winner.spec.match),
        _counts(loser.spec.match),
    )
    if named != own_named:
        return f"rule {winner.name} names the namespace"
    if labels != own_labels:
        return f"rule {winner.name} asks for more labels ({labels}, this rule {own_labels})"
    if sizes != own_sizes:
        return f"rule {winner.name} sets more limits on requests ({sizes}, this rule {own_sizes})"
    if winner.created != loser.created:
        return f"rule {winner.name} is as specific and older"
    return f"rule {winner.name} is as specific and as old, and comes first by name"


def candidates(rule: Rule, known: Known) -> tuple[CandidateSpec, ...]:
    """The rule's candidates without those that are not known; every known cluster, by name, where it lists none."""
    if not rule.spec.candidates:
        return tuple(CandidateSpec.model_validate({"cluster": name}) for name in sorted(known))
    return tuple(each for each in rule.spec.candidates if not _unknown(each, known))


def _unknown(candidate: CandidateSpec, known: Known) -> str:
    """The field that names what is not there; empty when all is known, or PBS has not been asked yet."""
    if candidate.cluster not in known:
        return "cluster"
    queues = known[candidate.cluster]
    return "queue" if queues and candidate.queue is not None and candidate.queue not in queues else ""


def accepted(rule: Rule | RuleProblem, known: Known, *, system: Collection[str] = SYSTEM) -> list[Json]:
    """The rule's conditions (without lastTransitionTime): Accepted, with every field that is wrong."""
    if isinstance(rule, RuleProblem):
        told = "; ".join(f"{field}: {message}" for field, message in rule.problems)
        return [_condition("Accepted", False, "InvalidSpec", f"the rule is not used: {told}", rule.generation)]
    fields = _system_fields(rule.spec.match, system)
    if fields:
        message = (
            f"the rule is not used: {', '.join(fields)}: pods of {' and '.join(sorted(system))} must never wait for "
            "the bridge; leave them out"
        )
        return [_condition("Accepted", False, "SystemNamespace", message, rule.generation)]
    wrong = [
        (field, f"spec.candidates[{index}].{field}: {_no_such(each, field, known)}")
        for index, each in enumerate(rule.spec.candidates)
        if (field := _unknown(each, known))
    ]
    if wrong:
        reason = "UnknownCluster" if any(field == "cluster" for field, _ in wrong) else "UnknownQueue"
        message = "; ".join(text for _, text in wrong)
        return [_condition("Accepted", False, reason, f"candidates skipped: {message}", rule.generation)]
    return [_condition("Accepted", True, "Accepted", "", rule.generation)]


def _no_such(candidate: CandidateSpec, field: str, known: Known) -> str:
    if field == "cluster":
        return f"no cluster {candidate.cluster} in bridge.yaml (there: {', '.join(sorted(known)) or 'none'})"
    there = ", ".join(sorted(known[candidate.cluster]))
    return f"no queue {candidate.queue} on {candidate.cluster} (there: {there})"


def _system_fields(wanted: PodMatch, system: Collection[str]) -> list[str]:
    """The fields that name a namespace whose pods are never routed."""
    listed = [f"spec.match.namespaces[{index}]" for index, name in enumerate(wanted.namespaces) if name in system]
    selected = any(
        label == METADATA_NAME and operator == "In" and not set(values).isdisjoint(system)
        for label, operator, values in requirements(wanted.namespace_selector)
    )
    return [*listed, *([f"spec.match.namespaceSelector ({METADATA_NAME})"] if selected else [])]


def shadowed(rule: Rule, losses: Iterable[tuple[str, str]]) -> Json:
    """The condition of a rule that gave way. `losses`: (pod as namespace/name, why), newest last; empty: it did not."""
    seen = list(losses)
    if not seen:
        return _condition("Shadowed", False, "MostSpecific", "", rule.generation)
    pod, why = seen[-1]
    message = f"gave way for {len(seen)} {'pod' if len(seen) == 1 else 'pods'}, last for {pod}: {why}"
    return _condition("Shadowed", True, "MoreSpecificRule", message, rule.generation)


def _condition(kind: str, holds: bool, reason: str, message: str, generation: int) -> Json:
    status = "True" if holds else "False"
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:4000],
        "observedGeneration": generation,
    }


def summary(spec: RoutingRuleSpec) -> str:
    """The candidates in a few words, for `status.candidates`: `alpha/workq, beta`."""
    told = [f"{each.cluster}/{each.queue}" if each.queue else each.cluster for each in spec.candidates]
    return ", ".join(told) or "all clusters"
