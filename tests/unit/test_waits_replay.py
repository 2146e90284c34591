"""The replay that measures the wait estimate: it sees nothing of the future, and its parts add up."""

from __future__ import annotations

import doctest
import random
from collections.abc import Callable, Sequence

import pytest

from tests.bench import replay as module
from tests.bench import swf
from tests.bench.baselines import Bound, Last, Predictor, WithWaiting
from tests.bench.replay import Machine, Part, parts, replay, scores
from tests.bench.swf import TraceJob
from tests.bench.waits import Account, Model, compare

PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "last": Last,
    "with waiting": WithWaiting,
    "bound": lambda: Bound(1.645, 2, 20),
    "model": Model,
    "account": lambda: Account("1"),
}


def trace(seed: int = 1, jobs: int = 400) -> list[TraceJob]:
    """A made-up trace: three users on 32 CPUs, first come first served, with bursts."""
    rng, at, found = random.Random(seed), 0.0, []
    free: list[float] = [0.0] * 32
    for number in range(jobs):
        at += rng.choice((1, 1, 1, 600, 4000))
        ncpus, user = rng.choice((1, 4, 16)), str(rng.randrange(3))
        runtime = rng.choice((20.0, 1000.0, 9000.0))
        free.sort()
        start = max(at, free[ncpus - 1])
        free[:ncpus] = [start + runtime] * ncpus
        found.append(TraceJob(number, at, start - at, runtime, ncpus, 10_000, user, f"q{ncpus}", 1, ()))
    return found


def predictions(jobs: Sequence[TraceJob], make: Callable[[], Predictor]) -> dict[int, tuple[float, ...]]:
    whole = Part(-1.0, float("inf"))
    told = replay(jobs, {"it": make()}, whole, Machine(trace()))
    return {job.number: tuple(said) for _, job, said in told}


@pytest.mark.parametrize("doctested", [module, swf])
def test_doctests(doctested: object) -> None:
    assert doctest.testmod(doctested).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_nothing_leaks_from_the_future(name: str, share: float) -> None:
    """Scramble every outcome after a cut: no prediction up to the cut may change, and later ones do."""
    jobs = trace()
    cut = jobs[int(share * len(jobs))].submitted
    rng = random.Random(9)
    scrambled = []
    for job in jobs:
        if job.start >= cut:
            job = job._replace(
                wait=cut - job.submitted + rng.random() * 1e6 if job.submitted <= cut else 1e6 * rng.random()
            )
        if job.end >= cut > job.start:
            job = job._replace(runtime=cut - job.start + rng.random() * 1e6)
        scrambled.append(job)
    before, after = predictions(jobs, PREDICTORS[name]), predictions(scrambled, PREDICTORS[name])
    until = [job.number for job in jobs if job.submitted <= cut]
    assert {n: before[n] for n in until} == {n: after[n] for n in until}
    assert before != after


def test_a_start_counts_only_when_it_is_strictly_earlier() -> None:
    first = TraceJob(1, 0.0, 100.0, 50.0, 1, None, "u", "q", 1, ())
    same, later = first._replace(number=2, submitted=100.0), first._replace(number=3, submitted=101.0)
    told = replay([first, same, later], {"last": Last(1)}, Part(-1, 1e9), Machine([first]))
    assert [said[0] for _, _, said in told] == [0.0, 0.0, 100.0]


def test_parts_share_nothing_and_scores_count_every_job() -> None:
    jobs = trace()
    early, late = parts(jobs)
    assert early.after < early.until == late.after < late.until
    found = scores(jobs, {"zero": Last(0)}, late)["zero"]
    assert found.jobs == sum(job.submitted > late.after for job in jobs)
    whole, part = compare(jobs, {"zero": Last(0), "model": Model()}, {"1": Account("1")})
    assert whole["model"].jobs == found.jobs
    assert part["model"].jobs == part["zero"].jobs == sum(j.submitted > late.after and j.user == "1" for j in jobs)


def test_the_model_is_better_than_the_simple_ones_where_users_differ() -> None:
    """As under fairshare or a cap for each user: the same queue, and yet other waits."""
    rng = random.Random(3)
    jobs = [
        TraceJob(
            n, 600.0 * n, (1.0 if n % 2 else 3600.0) * rng.uniform(0.8, 1.2), 60.0, 1, None, str(n % 2), "q", 1, ()
        )
        for n in range(300)
    ]
    _, late = parts(jobs)
    found = scores(jobs, {name: make() for name, make in PREDICTORS.items() if name != "account"}, late)
    assert found["model"].means()[1] < 0.3 * min(found[name].means()[1] for name in ("last", "with waiting", "bound"))


def test_the_machine_knows_hosts() -> None:
    jobs = [
        TraceJob(1, 0, 0, 100, 8, None, "u", "q", 2, (("a", 4), ("b", 4))),
        TraceJob(2, 200, 0, 100, 4, None, "u", "q", 1, (("a", 4),)),
    ]
    machine = Machine(jobs)
    assert dict(machine.sizes) == {"a": 4, "b": 4}
    machine.begin(jobs[1])
    assert not machine.fits(jobs[0])
    assert machine.fits(jobs[1])
    machine.begin(jobs[1], -1)
    assert machine.fits(jobs[0])


ALEA = "7 100 5 60 8 1 1024 8 3600 1048576 1 24 1 1 -1 1 1 1 {1,1,1,1,2,2,2,2} q_1d 2:ppn=4:x86_64"


def test_lines_of_alea() -> None:
    (job,) = swf.parse(["; a comment", "", ALEA])
    assert job == TraceJob(7, 100.0, 5.0, 60.0, 8, 3600, "24", "q_1d", 2, (("1", 4), ("2", 4)))
    assert (job.start, job.end) == (105.0, 165.0)


@pytest.mark.parametrize("line", ["1 2 3", ALEA.replace("7 100 5 ", "7 100 -1 "), ALEA.replace(" 8 ", " -1 ")])
def test_lines_without_a_wait_or_cpus_are_left_out(line: str) -> None:
    assert list(swf.parse([line])) == []
