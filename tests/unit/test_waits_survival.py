"""Kaplan-Meier against hand-made tables, against plain order statistics, and what must hold for any samples."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.routing.waits import groups, sightings, survival
from bridge.routing.waits.survival import CENSORED, START, Sample, quantiles

SAMPLES = st.lists(
    st.tuples(st.integers(0, 100).map(float), st.sampled_from((START, CENSORED)), st.sampled_from((0.25, 1.0, 3.0))),
    max_size=30,
)
PROBABILITIES = (0.1, 0.5, 0.8, 0.9)


@pytest.mark.parametrize("module", [survival, groups, sightings])
def test_doctests(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "median"),
    [
        ([], 0),
        ([(7, START, 1)], 7),
        ([(7, CENSORED, 1)], 7),
        ([(1, START, 1), (2, START, 1)], 1),
        ([(1, START, 1), (2, START, 1), (3, START, 1)], 2),
        ([(1, START, 3), (9, START, 1)], 1),
        ([(1, START, 1), (9, START, 3)], 9),
        # Leukaemia remissions (Freireich 1963), the textbook's table: the median of the treated is 23 weeks.
        (
            [(t, START, 1) for t in (6, 6, 6, 7, 10, 13, 16, 22, 23)]
            + [(t, CENSORED, 1) for t in (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35)],
            23,
        ),
    ],
)
def test_medians(samples: list[Sample], median: float) -> None:
    assert quantiles(samples, (0.5,)) == [median]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40))
def test_without_censoring_they_are_order_statistics(waits: list[int]) -> None:
    ordered = sorted(waits)
    for probability in PROBABILITIES:
        at = min(len(ordered) - 1, max(0, -int(-len(ordered) * (probability - 1e-8) // 1) - 1))
        assert quantiles([(wait, START, 1) for wait in waits], (probability,)) == [ordered[at]]


@given(SAMPLES, st.integers(0, 120).map(float), st.sampled_from((0.25, 1.0, 50.0)))
def test_one_more_that_waits_never_shortens(samples: list[Sample], age: float, weight: float) -> None:
    before = quantiles(samples, PROBABILITIES)
    after = quantiles([*samples, (age, CENSORED, weight)], PROBABILITIES)
    assert all(a >= b for a, b in zip(after, before, strict=True))


@given(SAMPLES, st.data())
def test_having_waited_longer_never_shortens(samples: list[Sample], data: st.DataObject) -> None:
    ages = [index for index, sample in enumerate(samples) if sample[1] == CENSORED]
    if not ages:
        return
    index = data.draw(st.sampled_from(ages))
    seconds, kind, weight = samples[index]
    older = [*samples[:index], (seconds + data.draw(st.integers(1, 50)), kind, weight), *samples[index + 1 :]]
    pairs = zip(quantiles(older, PROBABILITIES), quantiles(samples, PROBABILITIES), strict=True)
    assert all(after >= before for after, before in pairs)


@given(SAMPLES)
def test_quantiles_rise_with_the_probability(samples: list[Sample]) -> None:
    found = quantiles(samples, PROBABILITIES)
    assert found == sorted(found)
