"""Which candidate is best: a total order over judgements, the same for the same input. Pure.

Times within 5 % of each other are one class, since estimates are no better; in a class what is free is filled evenly.
Ties end with the candidate's name. A candidate that gets better in anything never loses a place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.api.routing import RoutingRuleSpec
from bridge.routing.judge import Judgement

ALIKE = 0.05  # times that differ by less than this share are one class
NEAR = 60.0  # s; below it classes have the width they have here
LIKELY = 0.5  # a start in time is likely from this probability on
STEP = 0.05  # probabilities to start in time are compared in such steps

Key = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates in their order. chosen: None if none may be chosen. note: what else is to be said of the choice.

    ranked: all that may be chosen, the chosen one first. away: those that get nothing now. refused: those that could
    never run the pod.
    """

    ranked: tuple[Judgement, ...] = ()
    away: tuple[Judgement, ...] = ()
    refused: tuple[Judgement, ...] = ()
    note: str = ""

    @property
    def chosen(self) -> Judgement | None:
        """Where the pod goes."""
        return self.ranked[0] if self.ranked else None


def choose(
    judgements: Sequence[Judgement], spec: RoutingRuleSpec, previous: tuple[str, str | None] | None = None
) -> Choice:
    """Order the candidates. previous: (cluster, queue) that the pod has been told before."""
    ranked = sorted((each for each in judgements if each.possible), key=lambda each: (_key(each, spec), _names(each)))
    refused = sorted((each for each in judgements if each.refused), key=_names)
    away = sorted((each for each in judgements if each.unavailable and not each.refused), key=_names)
    notes = []
    told = next((each for each in ranked if (each.cluster, each.queue) == previous), None)
    if told is not None and told is not ranked[0] and not _clearly_better(ranked[0], told, spec):
        notes.append(f"stays with what was said before: {ranked[0].name} is not better by {spec.hysteresis:.0%}")
        ranked = [told, *(each for each in ranked if each is not told)]
    if spec.start_within is not None and ranked:
        best = ranked[0].in_time or 0.0
        if best < LIKELY:
            notes.append(f"nowhere is it likely to start within {spec.start_within:.0f} s; here by {best:.0%}")
    return Choice(tuple(ranked), tuple(away), tuple(refused), "; ".join(notes))


def _names(each: Judgement) -> tuple[str, str]:
    return each.cluster, each.queue or ""


def _key(each: Judgement, spec: RoutingRuleSpec) -> Key:
    """Less is better."""
    chance = (-math.floor((each.in_time or 0.0) / STEP + 1e-9),) if spec.start_within is not None else ()
    return (*chance, *_by_objective(each, spec))


def _by_objective(each: Judgement, spec: RoutingRuleSpec) -> Key:
    match spec.objective:
        case "ordered":
            return (float(each.fits_now is not True), float(each.order))
        case "spread":
            return _share(each)
        case _:
            value = _value(each, spec)
            return (_class(value), *_share(each), value)


def _value(each: Judgement, spec: RoutingRuleSpec) -> float:
    return each.start if spec.objective == "earliestStart" else each.completion


def _class(seconds: float) -> float:
    """Classes that are 5 % wide, and 3 s near zero.

    >>> [_class(s) for s in (0, 2, 4, 3600, 3700, 4000)]
    [0, 0, 1, 84, 84, 86]
    """
    return math.floor(math.log1p(max(0.0, seconds) / NEAR) / math.log1p(ALIKE))


def _share(each: Judgement) -> Key:
    """How much of its part a candidate has got. First what is free is filled, then what works (D'Hondt's divisors)."""
    if each.taken < each.slots:
        return (0.0, (each.taken + 1) / (each.slots * each.weight))
    return (1.0, (each.taken - each.slots + 1) / (max(1, each.cores) * each.weight))


def _clearly_better(first: Judgement, told: Judgement, spec: RoutingRuleSpec) -> bool:
    """Whether it is worth changing from what the pod has been told."""
    if spec.start_within is not None and (first.in_time or 0.0) > (told.in_time or 0.0) + spec.hysteresis:
        return True
    if spec.objective == "ordered":
        return _by_objective(first, spec)[0] < _by_objective(told, spec)[0]
    if spec.objective == "spread":
        return first.taken < first.slots and told.taken >= told.slots
    return _value(first, spec) < _value(told, spec) * (1 - spec.hysteresis)
