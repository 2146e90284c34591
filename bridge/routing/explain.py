"""The one structure that answers "why there?" and "why is it still waiting?": for `explain`, the annotation, the Event.

docs/reference/explain.md documents it; it may gain keys, and none changes its meaning while `version` is 1. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.kube.clock import rfc3339
from bridge.routing.choose import Choice
from bridge.routing.decide import Verdict, mode
from bridge.routing.judge import ALWAYS, Judgement
from bridge.routing.local import LocalFit
from bridge.routing.rules import Match

Json = dict[str, Any]
VERSION = 1
IN_ANNOTATION = 4  # candidates that the annotation tells of


@dataclass(frozen=True, slots=True)
class Outcome:
    """All about one pod at one moment. `at`: epoch seconds."""

    pod: str  # namespace/name
    match: Match
    local: LocalFit
    choice: Choice | None
    verdict: Verdict
    at: float

    def to_json(self, most: int | None = None) -> Json:
        """The structure. most: candidates that are told of, the best first; `leftOut` counts the others."""
        rule, verdict, choice = self.match.rule, self.verdict, self.choice or Choice()
        every = [*_ranked(choice.ranked), *((each, None) for each in (*choice.away, *choice.refused))]
        told = every if most is None else every[:most]
        return {
            "version": VERSION,
            "pod": self.pod,
            "at": rfc3339(self.at),
            "decision": _DECISIONS[verdict.step, verdict.to is not None],
            "to": "local" if verdict.to is None else verdict.to.cluster,
            "queue": None if verdict.to is None else verdict.to.queue,
            "why": verdict.why,
            "note": choice.note,
            "waitsSeconds": None if verdict.wait is None else round(verdict.wait, 1),
            "rule": None if rule is None else rule.name,
            "mode": mode(self.match, self.local),
            "objective": None if rule is None else rule.spec.objective,
            "quantile": None if rule is None else rule.spec.quantile,
            "whyRule": self.match.why,
            "otherRules": [{"rule": name, "why": why} for name, why in self.match.losers],
            "local": {
                "fitsNow": bool(self.local.now),
                "fitsEver": self.local.ever,
                "node": self.local.now or None,
                "why": self.local.why,
            },
            "candidates": [candidate(each, rank) for each, rank in told],
            "leftOut": len(every) - len(told),
        }

    def annotation(self) -> str:
        """The same on one line, with the first candidates only."""
        return json.dumps(self.to_json(IN_ANNOTATION), separators=(",", ":"))

    def sentence(self) -> str:
        """The same for people, for an Event: what, why, what it is compared with."""
        verdict, choice = self.verdict, self.choice or Choice()
        to = "the local cluster" if verdict.to is None else f"cluster {verdict.to.name}"
        parts = [f"{_WORDS[verdict.step]}{'' if verdict.step == 'hold' else to + ': '}{verdict.why}"]
        if verdict.to is not None:
            parts += [told(verdict.to), *(f"next {each.name}: {told(each)}" for each in choice.ranked[1:2])]
            parts += [f"{each.name}: {reason(each)}" for each in (*choice.away, *choice.refused)[:3]]
        parts += [choice.note] if choice.note else []
        parts += [self.match.why] if self.match.why != verdict.why else []
        return "; ".join(parts)


# (step, to a candidate): what `decision` says.
_DECISIONS = {
    ("open", False): "local",
    ("open", True): "cluster",
    ("add", True): "cluster",
    ("add", False): "local",
    ("hold", False): "wait",
    ("hold", True): "wait",
}
_WORDS = {"open": "released to ", "add": "may also go to ", "hold": ""}


def _ranked(ranked: Sequence[Judgement]) -> Iterable[tuple[Judgement, int | None]]:
    return ((each, rank) for rank, each in enumerate(ranked, 1))


def reason(each: Judgement) -> str:
    """Why a candidate is not chosen."""
    return each.unavailable or "; ".join(each.refused)


def told(each: Judgement) -> str:
    """What is expected of a candidate, in a few words."""
    fits = {True: "fits now", False: "does not fit now", None: "may fit now"}[each.fits_now]
    waits = ""
    if each.wait is not None:
        half, most = (each.wait.quantiles.get(q, 0.0) for q in ALWAYS)
        waits = f", wait P50 {seconds(half)} P90 {seconds(most)} ({each.wait.basis}, {each.wait.samples} jobs)"
    place = each.placement
    spans = f", {place.domains_now[0]} NUMA domain(s)" if place is not None and place.domains_now else ""
    return f"{fits}{waits}{spans}, ends in {seconds(each.expected + each.run)}"


def seconds(value: float) -> str:
    """A duration for people.

    >>> seconds(5), seconds(150), seconds(5400), seconds(200000)
    ('5 s', '2.5 min', '1.5 h', '2.3 d')
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.2g} {unit}" if value < 9.5 * size else f"{value / size:.0f} {unit}"
    return f"{value:.0f} s"


def candidate(each: Judgement, rank: int | None) -> Json:
    """One candidate."""
    place, wait = each.placement, each.wait
    judged = place is not None and wait is not None
    return {
        "cluster": each.cluster,
        "queue": each.queue,
        "executionQueue": place.queues[0] if place is not None and place.queues else None,
        "rank": rank,
        "fitsNow": each.fits_now if judged else None,
        "fitsEver": not each.refused if judged or each.refused else None,
        "refused": list(each.refused),
        "unavailable": each.unavailable,
        "waitsFor": list(place.waits) if place is not None else [],
        "doubts": list(place.doubts) if place is not None else [],
        "wait": None
        if wait is None
        else {
            "p50": round(wait.quantiles[ALWAYS[0]], 1),
            "p90": round(wait.quantiles[ALWAYS[1]], 1),
            "sure": round(wait.sure, 2),
            "samples": wait.samples,
            "basis": wait.basis,
        },
        "expectedWaitSeconds": round(each.expected, 1) if judged else None,
        "completionSeconds": round(each.expected + each.run, 1) if judged else None,
        "startsInTime": each.in_time,
        "numa": None
        if place is None
        else {
            "domainsNow": list(place.domains_now) if place.domains_now else None,
            "domainsBest": place.domains_best or None,
            "slowdown": [round(value, 3) for value in each.slowdown],
        },
        "largestNow": place.largest_now if place is not None else None,
        "room": each.slots,
        "onTheirWay": each.taken,
        "reportAgeSeconds": None if each.age is None else round(each.age),
    }
