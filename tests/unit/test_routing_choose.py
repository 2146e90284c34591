"""The order of candidates: a table of cases, and properties that must hold whatever the numbers are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routingcases import HOUR, judged, spec

from bridge.api.routing import RoutingRuleSpec
from bridge.routing.choose import choose
from bridge.routing.judge import Judgement

FULL: dict[str, Any] = {"fits_now": False, "taken": 10}


def order(*judgements: Judgement, **rule: Any) -> str:
    return " ".join(each.name for each in choose(judgements, spec(**rule)).ranked)


@pytest.mark.parametrize(
    ("judgements", "rule", "expected"),
    [
        # earliestCompletion: the wait, then the run time
        ((judged("a", 900), judged("b", 60)), {}, "b a"),
        ((judged("a", 60), judged("b", 900)), {}, "a b"),
        ((judged("a", 60, run=2 * HOUR), judged("b", 900)), {}, "b a"),
        ((judged("a", 60, run=1.3 * HOUR), judged("b", 60)), {}, "b a"),
        # penalties and weights
        ((judged("a", 60, penalty=900.0), judged("b", 60)), {}, "b a"),
        ((judged("a", 60, penalty=300.0), judged("b", 60)), {}, "b a"),
        ((judged("a", 60, penalty=300.0), judged("b", 900)), {}, "a b"),
        ((judged("a", 900, weight=2.0), judged("b", 60)), {}, "a b"),
        ((judged("a", 60, weight=0.5), judged("b", 60)), {}, "b a"),
        # earliestStart: the run time plays no part
        ((judged("a", 60, run=20 * HOUR), judged("b", 900)), {"objective": "earliestStart"}, "a b"),
        ((judged("a", 60, penalty=1000.0), judged("b", 900)), {"objective": "earliestStart"}, "b a"),
        ((judged("a", 200), judged("b", 100, weight=0.1)), {"objective": "earliestStart"}, "a b"),
        # alike: what is free is filled evenly, then the name
        ((judged("b", 61), judged("a", 60)), {}, "a b"),
        ((judged("a", 60, taken=1), judged("b", 61)), {}, "b a"),
        ((judged("a", 60, taken=1), judged("b", 61, slots=2)), {}, "a b"),
        ((judged("a", 60, taken=1), judged("b", 61, taken=1, slots=100)), {}, "b a"),
        ((judged("a", 60, taken=9), judged("b", 61, **FULL)), {}, "a b"),
        ((judged("b"), judged("a"), judged("c")), {}, "a b c"),
        ((judged("a", queue="q2"), judged("a", queue="q1")), {}, "a/q1 a/q2"),
        # ordered: what fits now, then as listed; waits play no part
        ((judged("a", 60, order=1), judged("b", 9000, order=0)), {"objective": "ordered"}, "b a"),
        ((judged("a", order=1), judged("b", order=0, **FULL)), {"objective": "ordered"}, "a b"),
        ((judged("a", order=1, **FULL), judged("b", order=0, **FULL)), {"objective": "ordered"}, "b a"),
        ((judged("a", order=1), judged("b", order=0, fits_now=None)), {"objective": "ordered"}, "a b"),
        # spread: in proportion to what is free, times weight
        ((judged("a", slots=1), judged("b", slots=9)), {"objective": "spread"}, "b a"),
        ((judged("a", slots=1, weight=10.0), judged("b", slots=9)), {"objective": "spread"}, "a b"),
        ((judged("a", slots=4), judged("b", slots=9, taken=5)), {"objective": "spread"}, "a b"),
        ((judged("a", slots=4, taken=4), judged("b", slots=9, taken=8)), {"objective": "spread"}, "b a"),
        ((judged("a", slots=0, cores=10), judged("b", slots=0, cores=90)), {"objective": "spread"}, "b a"),
        ((judged("a", slots=0, taken=4, cores=90), judged("b", slots=0, cores=10)), {"objective": "spread"}, "a b"),
        # startWithin: the most likely to start in time, then the objective
        ((judged("a", in_time=0.4), judged("b", in_time=0.9)), {"startWithin": 180}, "b a"),
        ((judged("a", 60, in_time=0.9), judged("b", 900, in_time=0.91)), {"startWithin": 180}, "a b"),
        ((judged("a", 900, in_time=0.0), judged("b", 60, in_time=0.0)), {"startWithin": 180}, "b a"),
        # what may not be chosen is not ranked
        ((judged("a", refused=("asks ncpus 99",)), judged("b")), {}, "b"),
        ((judged("a", unavailable="unreachable"), judged("b", 90000)), {}, "b"),
        ((judged("a", unavailable="stale"), judged("b", refused=("no",))), {}, ""),
        ((), {}, ""),
    ],
)  # fmt: skip
def test_the_order(judgements: tuple[Judgement, ...], rule: dict[str, Any], expected: str) -> None:
    assert order(*judgements, **rule) == expected
    assert order(*reversed(judgements), **rule) == expected


@pytest.mark.parametrize(
    ("a", "b", "rule", "told", "expected"),
    [
        (judged("a", 60), judged("b", 300), {}, "b", "b"),  # 6 % earlier is not 10 %
        (judged("a", 60), judged("b", 900), {}, "b", "a"),
        (judged("a", 60), judged("b", 600), {"hysteresis": 0.5}, "b", "b"),
        (judged("a", 60), judged("b", 2600), {"hysteresis": 0.5}, "b", "b"),
        (judged("a", 60), judged("b", 600), {"hysteresis": 0}, "b", "a"),
        (judged("a", 60), judged("b", 60), {}, None, "a"),
        (judged("a", 60), judged("b", 60, unavailable="unreachable"), {}, "b", "a"),
        (judged("a", order=0), judged("b", order=1), {"objective": "ordered"}, "b", "b"),
        (judged("a", order=0), judged("b", order=1, **FULL), {"objective": "ordered"}, "b", "a"),
        (judged("a", slots=99), judged("b", slots=1), {"objective": "spread"}, "b", "b"),
        (judged("a", slots=99), judged("b", slots=1, taken=1), {"objective": "spread"}, "b", "a"),
        (judged("a", in_time=0.9), judged("b", in_time=0.3), {"startWithin": 60}, "b", "a"),
        (judged("a", in_time=0.9), judged("b", in_time=0.84), {"startWithin": 60}, "b", "b"),
    ],
)
def test_who_was_told_before(a: Judgement, b: Judgement, rule: dict[str, Any], told: str | None, expected: str) -> None:
    choice = choose([a, b], spec(**rule), (told, None) if told else None)
    assert choice.chosen is not None
    assert choice.chosen.cluster == expected
    assert ("stays" in choice.note) == (told == expected and order(a, b, **rule)[0] != expected)


def test_the_rest_is_kept_with_its_reasons() -> None:
    away, never, both = (
        judged("c", unavailable="unreachable"),
        judged("b", refused=("too big",)),
        judged("a", refused=("too big",), unavailable="unreachable"),
    )
    choice = choose([away, never, both], spec())
    assert (choice.chosen, choice.away, choice.refused) == (None, (away,), (both, never))


@pytest.mark.parametrize(("chance", "said"), [(0.2, True), (0.49, True), (0.5, False), (0.99, False)])
def test_says_so_when_nowhere_is_likely_to_start_in_time(chance: float, said: bool) -> None:
    choice = choose([judged("a", in_time=chance), judged("b", in_time=0.1)], spec(startWithin="3m"))
    assert ("nowhere is it likely to start within 180 s" in choice.note) is said


def test_many_pods_are_spread_in_proportion_to_what_is_free() -> None:
    """Each pod that is routed counts as load for the next."""
    there = {name: judged(name, 60.0, slots=slots) for name, slots in (("a", 600), ("b", 300), ("c", 100))}
    for _ in range(500):
        chosen = choose(list(there.values()), spec()).chosen
        assert chosen is not None
        there[chosen.cluster] = replace(chosen, taken=chosen.taken + 1)
    assert {name: each.taken for name, each in there.items()} == {"a": 300, "b": 150, "c": 50}


seconds = st.floats(0, 1e6)
candidates = st.builds(
    judged,
    st.just("x"),
    seconds,
    order=st.integers(0, 9),
    weight=st.floats(0.01, 100),
    penalty=seconds,
    fits_now=st.sampled_from([True, False, None]),
    run=seconds,
    in_time=st.floats(0, 1),
    slots=st.integers(0, 50),
    taken=st.integers(0, 60),
    cores=st.integers(0, 500),
)
several = st.lists(candidates, min_size=2, max_size=5).map(
    lambda made: [replace(each, cluster=f"c{index}") for index, each in enumerate(made)]
)
rules = st.builds(
    spec,
    objective=st.sampled_from(["earliestCompletion", "earliestStart", "ordered", "spread"]),
    startWithin=st.sampled_from([None, 180]),
)


@given(several, rules)
def test_the_order_is_total_and_does_not_depend_on_that_of_the_input(
    made: list[Judgement], rule: RoutingRuleSpec
) -> None:
    ranked = choose(made, rule).ranked
    assert sorted(each.cluster for each in ranked) == [each.cluster for each in made]
    for other in itertools.islice(itertools.permutations(made), 24):
        assert choose(other, rule).ranked == ranked


def _better(each: Judgement, what: str, share: float) -> Judgement:
    """The same, strictly better in one thing where it can be."""
    match what:
        case "expected" | "run" | "penalty":
            return replace(each, **{what: getattr(each, what) * share})
        case "weight":
            return replace(each, weight=each.weight * (1 + share))
        case "in_time":
            return replace(each, in_time=(each.in_time or 0) + share * (1 - (each.in_time or 0)))
        case "taken":
            return replace(each, taken=int(each.taken * share))
        case "slots" | "cores":
            return replace(each, **{what: getattr(each, what) + 1 + int(share * 50)})
        case "order":
            return replace(each, order=int(each.order * share))
        case _:
            return replace(each, fits_now=True)


@given(
    several,
    rules,
    st.sampled_from(["expected", "run", "penalty", "weight", "in_time", "taken", "slots", "cores", "order", "fits"]),
    st.floats(0, 0.99),
    st.integers(0, 4),
)
def test_a_cluster_that_gets_better_never_loses_a_place(
    made: list[Judgement], rule: RoutingRuleSpec, what: str, share: float, which: int
) -> None:
    index = which % len(made)
    name = made[index].cluster
    before = [each.cluster for each in choose(made, rule).ranked].index(name)
    made[index] = _better(made[index], what, share)
    after = [each.cluster for each in choose(made, rule).ranked].index(name)
    assert after <= before
