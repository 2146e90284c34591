"""What a candidate can do: reasons to refuse it, room and load, waits, NUMA, all with their numbers."""

from __future__ import annotations

from typing import Any

import pytest
from censuses import cluster
from complexes import Gi, census, each, limits, queue, vnode
from hypothesis import given
from hypothesis import strategies as st
from routingcases import spec

from bridge.api.routing import CandidateSpec
from bridge.routing.judge import Asked, ClusterView, Judge, Judgement, probability
from bridge.routing.load import NOTHING, Load, Rooms, total
from bridge.routing.waits import Wait, WaitModel
from pbs_adapter.models import Census, JobOptions

TWO = census(vnode("h1[0]"), vnode("h1[1]"), vnode("h2[0]"), vnode("h2[1]"))  # two hosts of two domains of 8 cores
FAST = census(vnode("h"), queues=(queue(), queue("fast")))
FULL = census(vnode("h1[0]", used=8), vnode("h1[1]", used=7))


def job(ncpus: int = 4, mem: int = Gi, walltime: int = 3600, **more: Any) -> JobOptions:
    return JobOptions(ncpus, mem, walltime, **more)


def ask(
    options: JobOptions | None = None,
    seen: Census | None = TWO,
    *,
    load: Load = NOTHING,
    within: float | None = None,
    candidate: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    refused: tuple[str, ...] = (),
    trouble: dict[str, str] | None = None,
    idle: int = 0,
    **rule: Any,
) -> Judgement:
    options = options or job()
    judge = Judge({"alpha": cluster(**(settings or {}))}, WaitModel())
    asked = Asked(options, "default", refused, repr(options))
    view = ClusterView("alpha", seen, trouble or {}, 10.0, idle)
    where = CandidateSpec.model_validate({"cluster": "alpha"} | (candidate or {}))
    return judge.judge(asked, where, 0, spec(**rule), view, load, 1e9, within)


def loaded(count: int, ncpus: int = 4) -> Load:
    return total([job(ncpus)] * count)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (ask(job(17)), "asks ncpus 17, the largest host has 16"),
        (ask(job(1, 99 * Gi)), "asks mem 99Gi, the largest host has 32Gi"),
        (ask(job(9), numa="require"), "asks ncpus 9, the largest NUMA domain has 8"),
        (
            ask(candidate={"queue": "fast"}, seen=FAST),
            "bridge.yaml does not list queue fast under queues of cluster alpha",
        ),
        (ask(job(queue="nowhere")), "there is no queue nowhere"),
        (ask(refused=("spec.containers[0].image: not mapped",)), "spec.containers[0].image: not mapped"),
        (ask(job(16), maxSlowdown=1.1), "may be slowed down by NUMA up to 1.38 times, the rule's maxSlowdown is 1.1"),
    ],
)
def test_why_it_can_never_run_there(told: Judgement, expected: str) -> None:
    assert (told.possible, told.refused) == (False, (expected,))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (ask(seen=None), "PBS has not been asked yet"),
        (ask(trouble={"": "not connected"}), "not connected"),
        (ask(trouble={"default": "key refused"}), "key refused"),
        (ask(idle=3, idleCap=3), "3 jobs of the bridge wait there, and the rule's idleCap is 3"),
        (ask(load=loaded(10), idleCap=2), "2 jobs of the bridge wait there, and the rule's idleCap is 2"),
        (
            ask(seen=census(vnode("h"), queues=(queue(limits=limits(queued=each(5))),)), load=loaded(5, 1)),
            "PBS takes 5 more jobs of the account, and 5 are on their way",
        ),
    ],
)
def test_why_it_gets_nothing_now(told: Judgement, expected: str) -> None:
    assert (told.possible, told.refused, told.unavailable) == (False, (), expected)


@pytest.mark.parametrize(
    "told",
    [
        ask(),
        ask(trouble={"other": "key refused"}),
        ask(idle=2, idleCap=3),
        ask(load=loaded(8), idleCap=1),
        ask(candidate={"queue": "workq"}),
        ask(
            candidate={"queue": "fast"}, settings={"queues": ["fast"]}, seen=census(vnode("h"), queues=(queue("fast"),))
        ),
        ask(job(16), numa="ignore", maxSlowdown=1.1),
        ask(job(8), maxSlowdown=1.0),
    ],
)
def test_what_may_be_chosen(told: Judgement) -> None:
    assert (told.possible, told.refused, told.unavailable) == (True, (), "")


@pytest.mark.parametrize(
    ("told", "fits", "slots", "taken"),
    [
        (ask(), True, 8, 0),
        (ask(load=loaded(1)), True, 8, 1),
        (ask(load=loaded(7)), True, 8, 7),
        (ask(load=loaded(8)), False, 8, 8),
        (ask(load=loaded(9)), False, 8, 9),
        (ask(job(8), load=loaded(1)), True, 4, 1),
        (ask(job(8), load=loaded(3)), True, 4, 2),
        (ask(job(1), load=loaded(3, 5)), True, 32, 15),
        (ask(job(9)), True, 2, 0),
        (ask(job(1, 9 * Gi)), True, 6, 0),
        (ask(job(4), numa="require"), True, 8, 0),
        (ask(job(5), numa="require"), True, 4, 0),
        (ask(seen=FULL), False, 0, 0),
        (ask(job(1), seen=FULL), True, 1, 0),
        (ask(seen=census(vnode("h", reservations=("R1.pbs",)))), None, 2, 0),
        (ask(seen=census(vnode("h", reservations=("R1.pbs",))), load=loaded(2)), False, 2, 2),
    ],
)
def test_room_and_load(told: Judgement, fits: bool | None, slots: int, taken: int) -> None:
    assert (told.fits_now, told.slots, told.taken) == (fits, slots, taken)


def test_pods_on_their_way_beyond_what_is_free_are_waited_for() -> None:
    first, second = ask(load=loaded(9)), ask(load=loaded(40))
    assert first.wait is not None
    assert first.expected == first.wait.quantiles[0.5] + 4 * 3600 / 32
    assert second.expected - first.expected == pytest.approx((32 - 1) * 4 * 3600 / 32)


def test_limits_of_the_account_bound_the_room() -> None:
    bound = census(vnode("h", 64), queues=(queue(limits=limits(run=each(3))),))
    assert ask(job(1), seen=bound).slots == 3


@pytest.mark.parametrize(
    ("told", "slowdown"),
    [
        (ask(job(8)), (1.0, 1.0)),
        (ask(job(9)), (1 + 0.1 * 0.25 * (1 / 0.7 - 1), 1 + 0.5 * 0.5 * (1 / 0.4 - 1))),
        (ask(job(9), numa="ignore"), (1.0, 1.0)),
        (ask(job(8), numa="require"), (1.0, 1.0)),
        (ask(job(2), seen=census(vnode("h"))), (1.0, 1.375)),  # nobody knows the domains
        (ask(job(9), settings={"numa": {"memoryBound": 0}}), (1.0, 1.0)),
    ],
)
def test_slowdown(told: Judgement, slowdown: tuple[float, float]) -> None:
    assert told.slowdown == pytest.approx(slowdown)
    assert told.run == pytest.approx(3600 * sum(slowdown) / 2)


@pytest.mark.parametrize(
    ("seconds", "share"), [(0, 0.0), (5, 0.1), (10, 0.2), (20, 0.4), (30, 0.6), (99, 0.6), (-5, 0.0)]
)
def test_probability(seconds: float, share: float) -> None:
    assert probability(Wait({0.2: 10.0, 0.6: 30.0}, 9, "queue", 0.5), seconds) == share


def test_probability_of_a_start_in_time() -> None:
    free, busy = ask(within=180.0, startWithin=180), ask(seen=FULL, within=180.0, startWithin=180)
    assert free.in_time is not None
    assert busy.in_time is not None
    assert free.in_time > 0.5 > busy.in_time


@pytest.mark.parametrize(
    ("author", "rule", "holds"),
    [
        (None, "prefer", "prefer"),
        (None, "require", "require"),
        ("ignore", "prefer", "ignore"),
        ("ignore", "require", "require"),
        ("require", "ignore", "require"),
        ("prefer", "ignore", "prefer"),
    ],
)
def test_who_decides_about_numa(author: Any, rule: Any, holds: str) -> None:
    assert Asked(job(), None, numa=author).wish(rule) == holds


def test_what_does_not_work_is_no_room() -> None:
    away = census(vnode("h1", state="offline"), vnode("h2"), vnode("h3", used=8, state="job-busy"))
    told = ask(job(1), seen=away)
    assert (told.slots, told.cores) == (8, 16)


def test_a_queue_with_vnodes_of_its_own_has_only_these() -> None:
    seen = census(vnode("h1"), vnode("h2", 2, queue="own"), queues=(queue(), queue("own")))
    settings = {"queues": ["own"]}
    assert [ask(job(1), seen, candidate={"queue": q}, settings=settings).slots for q in ("workq", "own")] == [8, 2]


def test_room_is_read_once_a_census() -> None:
    rooms, place = Rooms(), ask().placement
    assert place is not None
    assert rooms.of(job(), place, TWO) == rooms.of(job(), place, TWO)
    assert rooms.of(job(1), place, FULL).slots == 1


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 16), st.integers(1, 16))
def test_more_demand_ahead_never_shortens_the_estimate(one: int, more: int, ncpus: int, size: int) -> None:
    less = ask(job(ncpus), load=loaded(one, size), within=600.0, startWithin=600)
    greater = ask(job(ncpus), load=loaded(one + more, size), within=600.0, startWithin=600)
    assert greater.expected >= less.expected
    assert (greater.in_time or 0) <= (less.in_time or 0)
