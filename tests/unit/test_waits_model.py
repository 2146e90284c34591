"""The wait model as the router uses it: own pods, censuses, bad clocks, hidden jobs, restarts."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.routing.waits import Shape, Wait, WaitModel, store
from bridge.routing.waits import model as model_module
from bridge.routing.waits.groups import Ended, Traits
from bridge.routing.waits.sightings import GAP, Waiting
from pbs_adapter import cluster_convert as convert
from pbs_adapter.models import Census, CensusJob
from pbs_adapter.remote import parse
from tests.bench import census as bench

T0 = 1_796_030_800.0
QS = (0.5, 0.9)
ONE = Shape(1, walltime=3600, fits_now=True)


def census(
    jobs: Sequence[CensusJob] = (), at: float = T0, account: str = "alice", queued: int = 0, hides: bool = False
) -> Census:
    queue = {"queue_type": "Execution", "enabled": "True", "started": "True", "state_count": f"Queued:{queued} "}
    server = {"default_queue": "workq", "query_other_jobs": str(not hides)}
    return Census(
        at=at,
        server=parse.parse_server(json_bytes("Server", {"pbs": server})),
        queues=tuple(parse.parse_queues(json_bytes("Queue", {"workq": queue})).values()),
        vnodes=(),
        host={},
        jobs=tuple(jobs),
        jobs_at=at,
        account=account,
    )


def json_bytes(kind: str, tree: dict[str, Any]) -> bytes:
    return json.dumps({kind: tree}).encode()


def job(
    number: int, state: str = "Q", owner: str = "bob", elapsed: int | None = None, queue: str = "workq"
) -> CensusJob:
    return CensusJob(str(number), owner, queue, 1, 3600, state, elapsed)


def asked(model: WaitModel, now: float, shape: Shape = ONE, **fields: Any) -> Wait:
    return model.waits(shape, "alpha", "workq", census(**fields), now, QS)


def ran(model: WaitModel, waits: Sequence[float], *, user: str = "alice", first: int = 1, at: float = T0) -> float:
    """Own jobs one after the other, each with its wait; returns the time after the last start."""
    for number, wait in enumerate(waits, first):
        model.observe("alpha", f"{number}.pbs", "workq", user, ONE, at, None, at)
        at += wait
        model.observe("alpha", f"{number}.pbs", "workq", user, ONE, at - wait, at, at)
    return at


def test_nothing_known_is_the_prior() -> None:
    fits, full = asked(WaitModel(), T0), asked(WaitModel(), T0, replace(ONE, fits_now=False))
    assert (fits.basis, fits.samples, fits.sure) == ("prior", 0, 0.0)
    assert all(full.quantiles[q] > fits.quantiles[q] for q in QS)


def test_own_jobs_teach_their_own_group() -> None:
    model = WaitModel()
    now = ran(model, [100.0] * 20)
    found = asked(model, now)
    assert found.basis == "user+queue+size+fits+backlog"
    assert found.quantiles == {0.5: 100.0, 0.9: 100.0}
    assert found.sure > 0.6


def test_few_samples_back_off() -> None:
    model = WaitModel()
    ran(model, [100.0] * 10, user="bob")
    now = ran(model, [5.0] * 2, first=50)
    found = asked(model, now)
    assert found.basis == "queue+size+fits+backlog"
    assert found.samples == 12
    other = model.waits(ONE, "alpha", "elsewhere", census(), now, QS)
    assert other.basis == "fits+backlog"
    assert other.sure < found.sure


def test_other_clusters_are_not_mixed() -> None:
    model = WaitModel()
    now = ran(model, [100.0] * 20)
    assert model.waits(ONE, "beta", "workq", census(), now, QS).basis == "prior"


def test_no_queue_is_the_default_queue() -> None:
    model = WaitModel()
    now = ran(model, [100.0] * 20)
    assert model.waits(ONE, "alpha", None, census(), now, QS) == asked(model, now)


def test_a_queue_that_stands_still_is_seen_before_anything_starts() -> None:
    """The point of censoring: nothing new has started, and yet the estimate grows with the ages of those that wait."""
    model = WaitModel()
    now = ran(model, [1.0] * 10)
    for number in range(100, 140):
        model.observe("alpha", f"{number}.pbs", "workq", "alice", ONE, now, None, now)
    soon, later = asked(model, now), asked(model, now + 7200)
    assert soon.quantiles[0.5] == 1.0
    assert later.quantiles[0.5] >= 7200


def test_a_withdrawn_job_was_no_start() -> None:
    model = WaitModel()
    now = ran(model, [10.0] * 6)
    before = asked(model, now).quantiles[0.9]
    for number in range(100, 106):
        model.observe("alpha", f"{number}.pbs", "workq", "bob", ONE, now - 5000, None, now)
        model.forget("alpha", f"{number}.pbs", now)
    assert asked(model, now).quantiles[0.9] >= before
    model.forget("alpha", "never-seen", now)


# What lists of all jobs teach


def test_waits_from_lists_alone() -> None:
    model, at = WaitModel(), T0
    model.learn("alpha", census(), at)
    for number in range(20):
        at += 300
        model.learn("alpha", census([job(number), job(900, "R", elapsed=0)], at), at)
        at += 300
        model.learn("alpha", census([job(number, "R", elapsed=0), job(900, "R", elapsed=0)], at), at)
    found = asked(model, at, account="bob")
    assert found.basis == "user+queue+backlog"  # hosts are not in these censuses: whether it fitted is unknown
    assert 300 <= found.quantiles[0.5] <= 600


def test_a_list_seen_twice_counts_once() -> None:
    model = WaitModel()
    for _ in range(3):
        model.learn("alpha", census([job(1)], T0), T0 + 60)
    assert asked(model, T0 + 60).samples == 1


def test_jobs_that_never_waited_where_nobody_waits_started_at_once() -> None:
    model = WaitModel()
    for index in range(8):
        at = T0 + 300 * index
        model.learn("alpha", census([job(n, "R", elapsed=0) for n in range(index)], at), at)
    assert asked(model, T0 + 3000, account="bob").quantiles[0.5] == 1.0


def test_what_runs_in_the_first_list_teaches_nothing() -> None:
    model = WaitModel()
    model.learn("alpha", census([job(n, "R", elapsed=60) for n in range(50)]), T0)
    assert asked(model, T0).basis == "prior"


def test_after_a_gap_the_age_of_what_is_new_is_not_known() -> None:
    model = WaitModel()
    model.learn("alpha", census([], T0), T0)
    late = T0 + GAP + 5000
    model.learn("alpha", census([job(1), job(2, "R", elapsed=0)], late), late)
    found = asked(model, late)
    assert found.samples == 1  # job 2 may have waited for any time
    assert found.quantiles == asked(WaitModel(), T0).quantiles  # and job 1 has not waited yet, as far as is known


def test_own_word_beats_the_list() -> None:
    model = WaitModel()
    model.learn("alpha", census([], T0), T0)
    model.observe("alpha", "1.pbs", "workq", "alice", ONE, T0 + 10, None, T0 + 10)
    model.learn("alpha", census([job(1, owner="alice")], T0 + 300), T0 + 300)
    model.learn("alpha", census([job(1, "R", "alice", 0)], T0 + 600), T0 + 600)
    model.observe("alpha", "1.pbs", "workq", "alice", ONE, T0 + 10, T0 + 310, T0 + 610)
    model.learn("alpha", census([job(1, "R", "alice", 0)], T0 + 900), T0 + 900)
    assert asked(model, T0 + 900).samples == 1


def test_an_own_job_that_nobody_speaks_of_any_more_does_not_wait_for_ever() -> None:
    model = WaitModel()
    model.observe("alpha", "1.pbs", "workq", "alice", ONE, T0, None, T0)
    for index in range(1, 7):
        model.learn("alpha", census([], T0 + 300 * index), T0 + 300 * index)
    assert asked(model, T0 + 1800).samples == 1
    grown = [asked(model, T0 + 1800 + later).quantiles[0.9] for later in (0, 600)]
    assert grown[0] == grown[1]


def test_held_and_array_jobs_do_not_wait_for_resources() -> None:
    model = WaitModel()
    model.learn("alpha", census([job(1, "H"), job(2, "W"), job(3, "B"), job(4, "T")]), T0)
    assert asked(model, T0).basis == "prior"


def test_a_job_that_moves_to_another_queue_keeps_its_age() -> None:
    model = WaitModel()
    model.learn("alpha", census([], T0), T0)
    model.learn("alpha", census([job(1, queue="route")], T0 + 300), T0 + 300)
    model.learn("alpha", census([job(1)], T0 + 600), T0 + 600)
    model.learn("alpha", census([job(1, "R", elapsed=0)], T0 + 900), T0 + 900)
    found = asked(model, T0 + 900, account="bob")
    assert found.samples == 1


def test_a_cut_name_is_the_same_user() -> None:
    model, name = WaitModel(), "a-user-of-a-very-long-name"
    for number in range(6):
        at = T0 + 600 * number
        model.learn("alpha", census([job(number, owner=name[:14] + "*")], at), at)
        model.learn("alpha", census([job(number, "R", name[:14] + "*", 0)], at + 300), at + 300)
    assert asked(model, T0 + 3600, account=name).basis.startswith("user+")


def test_hidden_jobs_count_by_the_queue() -> None:
    """The site hides others: only the queue's counter shows that forty jobs wait, for hours."""
    model = WaitModel()
    now = ran(model, [1.0] * 10, user="carol")
    before = asked(model, now).quantiles[0.9]
    for index in range(1, 5):
        model.learn("alpha", census([], now + 300 * index, queued=40, hides=True), now + 300 * index)
    assert asked(model, now + 7200, queued=40, hides=True).quantiles[0.9] > before
    model.learn("alpha", census([], now + 1500, queued=0, hides=True), now + 1500)
    assert asked(model, now + 1500, hides=True).quantiles[0.9] <= before


def test_a_queue_that_disappears() -> None:
    model = WaitModel()
    at = ran(model, [50.0] * 10)
    model.learn("alpha", census([job(500)], at, queued=9, hides=True), at)
    gone = replace(census([], at + 300), queues=())
    model.learn("alpha", gone, at + 300)
    found = model.waits(ONE, "alpha", "workq", gone, at + 300, QS)
    assert found.quantiles[0.5] == 50.0


def test_twenty_thousand_foreign_jobs() -> None:
    model, last = WaitModel(), None
    for index in range(3):
        last = convert.census(*bench.answer(T0 + 300 * index, 500 * index), last)
        model.learn("alpha", last, T0 + 300 * index)
    assert last is not None
    assert len(last.jobs) == bench.JOBS
    theirs = model.waits(ONE, "alpha", "q_1d", replace(last, account="user001"), T0 + 900, QS)
    ours = model.waits(ONE, "alpha", "q_1d", replace(last, account="alice"), T0 + 900, QS)
    assert theirs.basis.startswith("user+queue")
    assert ours.basis.startswith("queue")


# Clocks


@pytest.mark.parametrize("jump", [-86400.0, 86400.0, 3e8])
@pytest.mark.parametrize("whose", ["host", "agent"])
def test_a_clock_that_jumps_ages_nobody(whose: str, jump: float) -> None:
    model, host, agent = WaitModel(), T0, T0
    model.learn("alpha", census([], host), agent)
    for step in range(1, 6):
        if step == 3:
            host, agent = (host + jump, agent) if whose == "host" else (host, agent + jump)
        host, agent = host + 300, agent + 300
        model.learn("alpha", census([job(n) for n in range(6)], host), agent)
    host, agent = host + 300, agent + 300
    model.learn("alpha", census([job(n, "R", elapsed=0) for n in range(6)], host), agent)
    longest = asked(model, agent, account="bob").quantiles[0.5]
    assert 600 <= longest <= 1800


def test_a_clock_that_jumps_between_two_lists() -> None:
    model = WaitModel()
    model.learn("alpha", census([], T0), T0)
    model.learn("alpha", census([job(n) for n in range(30)], T0 + 300), T0 + 300)
    steady, jumped = asked(model, T0 + 300 + GAP), asked(model, T0 + 1e8)
    assert jumped == steady
    assert min(asked(model, T0 - 1e8).quantiles.values()) >= 0


def test_a_start_before_the_submission_waited_for_nothing() -> None:
    model = WaitModel()
    for number in range(10):
        model.observe("alpha", f"{number}.pbs", "workq", "alice", ONE, T0, T0 - 50, T0)
    assert asked(model, T0).quantiles[0.5] == 0.0


# PBS's own estimates


@pytest.mark.parametrize("estimate", [T0 - 1.0, T0 + 1e12, float("inf"), float("nan"), -5.0, None])
def test_an_absurd_estimate_is_none(estimate: float | None) -> None:
    model = WaitModel()
    now = ran(model, [10.0] * 6, at=T0 - 60)
    model.observe("alpha", "70.pbs", "workq", "bob", ONE, now, None, now)
    before = asked(model, now)
    model.observe("alpha", "70.pbs", "workq", "bob", ONE, now, None, now, estimated=estimate)
    assert asked(model, now) == before


def test_a_sane_estimate_counts_a_little_and_goes_with_its_job() -> None:
    model = WaitModel()
    now = ran(model, [10.0] * 6)
    model.observe("alpha", "70.pbs", "workq", "bob", ONE, now, None, now, estimated=now + 40_000)
    assert 10.0 < asked(model, now).quantiles[0.9] <= 40_000
    model.observe("alpha", "70.pbs", "workq", "bob", ONE, now, now + 5, now + 5)
    assert asked(model, now + 5).quantiles[0.9] == 10.0


# More demand ahead never shortens the estimate


HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(("alice", "bob", "carol")), st.sampled_from((1, 4, 64)), st.booleans(), st.integers(0, 9000)
    ),
    max_size=60,
)
WAITERS = st.lists(
    st.tuples(
        st.sampled_from(("alice", "bob", "carol")), st.sampled_from((1, 4, 64)), st.booleans(), st.integers(0, 9000)
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(HISTORIES, WAITERS, st.booleans(), st.sampled_from((1, 64)))
def test_more_demand_never_shortens(
    history: list[tuple[str, int, bool, int]], waiters: list[tuple[str, int, bool, int]], fits: bool, size: int
) -> None:
    model = WaitModel()
    for number, (user, cpus, fitted, wait) in enumerate(history):
        shape, since = Shape(cpus, fits_now=fitted), T0 - 20_000 + number
        model.observe("alpha", f"{number}.a", "workq", user, shape, since, since + wait, T0)
    last = asked(model, T0, Shape(size, fits_now=fits))
    for number, (user, cpus, fitted, age) in enumerate(waiters):
        model.observe("alpha", f"{number}.w", "workq", user, Shape(cpus, fits_now=fitted), T0 - age, None, T0)
        now = asked(model, T0, Shape(size, fits_now=fits))
        assert all(now.quantiles[q] >= last.quantiles[q] for q in QS)
        last = now
    full = asked(model, T0, Shape(size, fits_now=False))
    assert all(full.quantiles[q] >= last.quantiles[q] for q in QS)


@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_more_hidden_demand_never_shortens(history: list[tuple[str, int, bool, int]], counts: list[int]) -> None:
    model, at = WaitModel(), T0
    for number, (user, cpus, fitted, wait) in enumerate(history):
        since = T0 - 20_000 + number
        model.observe("alpha", f"{number}.a", "workq", user, Shape(cpus, fits_now=fitted), since, since + wait, T0)
    last = asked(model, at)
    for count in sorted(counts):
        at += 300
        model.learn("alpha", replace(census([], at, queued=count, hides=True), jobs_at=0.0), at)
        now = asked(model, T0)
        assert all(now.quantiles[q] >= last.quantiles[q] for q in QS)
        last = now


# Restarts


def test_what_was_learnt_survives_a_restart() -> None:
    model = WaitModel()
    rng = random.Random(5)
    now = ran(model, [rng.expovariate(0.01) for _ in range(300)])
    model.learn("alpha", census([], now), now)
    model.learn("alpha", census([job(7000)], now + 300), now + 300)
    after = WaitModel()
    assert after.load(model.dump())
    after.learn("alpha", census([job(7000)], now + 600), now + 600)
    model.learn("alpha", census([job(7000)], now + 600), now + 600)
    found, kept = asked(after, now + 600), asked(model, now + 600)
    assert found.basis == kept.basis
    assert found.quantiles == pytest.approx(kept.quantiles, abs=0.2)
    assert b"alice" not in model.dump()


@pytest.mark.parametrize("content", [b"", b"x", b"\x00" * 99, b"{}"])
def test_a_store_that_is_spoilt_changes_nothing(content: bytes) -> None:
    model = WaitModel()
    now = ran(model, [100.0] * 9)
    before = asked(model, now)
    assert not model.load(content)
    assert asked(model, now) == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_change_of_a_store_is_survived(data: st.DataObject) -> None:
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
    row = ["at", "wait", "started", "user", "queue", "size", "fits", "backlog"]
    values: list[Any] = [1.0, 2.0, 1, "u", "q", 1, True, 0]
    values[data.draw(st.integers(0, len(row) - 1))] = data.draw(leaf)
    tree: dict[str, Any] = {"version": 1, "clusters": {"alpha": {"ended": [values], "waiting": {"1": data.draw(leaf)}}}}
    if data.draw(st.booleans()):
        tree["clusters"]["alpha"][data.draw(st.sampled_from(("ended", "waiting")))] = data.draw(leaf)
    model = WaitModel()
    model.load(zlib.compress(json.dumps(tree).encode()))
    assert min(asked(model, T0).quantiles.values()) >= 0


def test_a_store_fits_into_a_config_map() -> None:
    rng = random.Random(7)
    clusters = {
        f"c{n}": (
            [
                Ended(
                    T0 + rng.random() * 1e6,
                    rng.random() * 1e5,
                    True,
                    Traits(f"{rng.randrange(1 << 48):x}", "q", 3, True, 0),
                )
                for _ in range(5000)
            ],
            {str(n): Waiting(Traits("u", "q", 1, None, 0), rng.random() * 1e9, True) for n in range(5000)},
        )
        for n in range(6)
    }
    content = store.dump(clusters)
    assert len(content) <= store.MAX_SIZE
    loaded = store.load(content)
    assert loaded is not None
    assert [ended.at for ended in loaded["c0"][0][-3:]] == [round(e.at) for e in clusters["c0"][0][-3:]]


def test_groups_do_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "MAX_GROUPS", 50)
    monkeypatch.setattr(model_module, "HISTORY", 5)
    model, now = WaitModel(), T0
    for number in range(300):
        now += 60
        model.observe("alpha", str(number), f"q{number}", f"user{number}", ONE, now - 30, now, now)
    assert len(model._clusters["alpha"].sightings.groups) <= 150
