"""wait.*: the wait estimate against simple predictors on a trace: `python -m tests.bench.waits [FILE.swf[.gz]]`.

The default trace is the first 60 days of wagap-2013: CERIT-SC's jobs, published with the Alea scheduling simulator.
Acknowledge both where its figures are used. Nothing is measured where the file is missing.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bridge.routing.waits import Shape, WaitModel
from pbs_adapter.models import Census, CensusJob
from pbs_adapter.remote import parse
from tests.bench.baselines import WINDOW, Bound, Last, Predictor, WithWaiting
from tests.bench.figures import Figure, quantile
from tests.bench.replay import Machine, Score, parts, replay, scores
from tests.bench.swf import TraceJob, read

DEFAULT = Path(__file__).parents[3] / "shared/traces/wagap-2013-first60d.swf.gz"
EVERY = 300.0  # s between two lists
ACCOUNTS = 2  # the busiest users, each seen as the bridge's account
EMPTY = Census(0.0, parse.parse_server(b'{"Server": {"trace": {}}}'), (), (), {})


class Model:
    """The bridge's model, told the exact times of everyone's jobs."""

    def __init__(self) -> None:
        self.model = WaitModel()
        self.seconds: list[float] = []

    def predict(self, job: TraceJob, fits: bool, now: float, wanted: Sequence[float]) -> Sequence[float]:
        census = replace(EMPTY, account=job.user)
        begun = time.process_time()
        wait = self.model.waits(_shape(job, fits), "trace", job.queue, census, now, wanted)
        self.seconds.append(time.process_time() - begun)
        return list(wait.quantiles.values())

    def submitted(self, job: TraceJob, fits: bool, now: float) -> None:
        self._tell(job, fits, None, now)

    def started(self, job: TraceJob, fits: bool, now: float) -> None:
        self._tell(job, fits, now, now)

    def _tell(self, job: TraceJob, fits: bool, started: float | None, now: float) -> None:
        shape = _shape(job, fits)
        self.model.observe("trace", str(job.number), job.queue, job.user, shape, job.submitted, started, now)


class Account(Model):
    """What one account sees: its own jobs exactly, those of others in a list every five minutes, as a census has it."""

    def __init__(self, user: str) -> None:
        super().__init__()
        self._user = user
        self._waiting: dict[int, TraceJob] = {}
        self._running: dict[int, TraceJob] = {}
        self._last = 0.0

    def predict(self, job: TraceJob, fits: bool, now: float, wanted: Sequence[float]) -> Sequence[float]:
        """Nothing for the jobs of others."""
        self._list(now)
        return super().predict(job, fits, now, wanted) if job.user == self._user else []

    def submitted(self, job: TraceJob, fits: bool, now: float) -> None:
        self._list(now)
        self._waiting[job.number] = job
        if job.user == self._user:
            super().submitted(job, fits, now)

    def started(self, job: TraceJob, fits: bool, now: float) -> None:
        self._list(now)
        self._running[job.number] = self._waiting.pop(job.number)
        if job.user == self._user:
            super().started(job, fits, now)

    def _list(self, now: float) -> None:
        """All lists that fall due before `now`; nothing has started or come since the last call."""
        self._last = self._last or now
        while self._last + EVERY <= now:
            self._last += EVERY
            self._running = {number: job for number, job in self._running.items() if job.end > self._last}
            jobs = tuple(_listed(job, self._last) for group in (self._waiting, self._running) for job in group.values())
            self.model.learn("trace", replace(EMPTY, jobs=jobs, jobs_at=self._last), self._last)


def _listed(job: TraceJob, now: float) -> CensusJob:
    elapsed = int(now - job.start) // 60 * 60 if job.start <= now else None
    state = "Q" if elapsed is None else "R"
    return CensusJob(str(job.number), job.user, job.queue, job.ncpus, job.walltime, state, elapsed, None, job.chunks)


def _shape(job: TraceJob, fits: bool) -> Shape:
    return Shape(job.ncpus, walltime=job.walltime, fits_now=fits)


def baselines() -> dict[str, Predictor]:
    """By name; several settings of the one that has settings."""
    found: dict[str, Predictor] = {
        "zero": Last(0),
        "last start": Last(1),
        f"last {WINDOW}": Last(),
        "Kaplan-Meier": WithWaiting(),
    }
    for z in (0.0, 1.645):
        for misses in (2, 5):
            for keep in (20, WINDOW):
                found[f"bound z={z} misses={misses} keep={keep}"] = Bound(z, misses, keep)
    return found


def measure(_theatre: object = None, path: Path | None = None) -> Iterator[Figure]:
    """Gains over the simple predictor that turned out best, by hindsight; our settings were chosen before the cut."""
    path = path or Path(os.environ.get("TRACE") or DEFAULT)
    if not path.exists():
        return
    jobs = read(path)
    model, busiest = Model(), [user for user, _ in Counter(job.user for job in jobs).most_common(ACCOUNTS)]
    accounts = {user: Account(user) for user in busiest}
    whole, part = compare(jobs, {**baselines(), "model": model}, accounts)
    for kind, found in (("", whole), ("_account", part)):
        for index, (key, goal) in enumerate((("wait.cap_gain", "≥ 0.35"), ("wait.log_gain", "≥ 0.4"))):
            simple = {name: score.means()[index] for name, score in found.items() if name != "model"}
            best = min(simple, key=lambda name: simple[name])
            ours = found["model"].means()[index]
            note = f"{found['model'].jobs} jobs of {path.name}: {ours:.4g} against {simple[best]:.4g} ({best})"
            has_goal = not kind and path.name == DEFAULT.name
            yield Figure(key + kind, 1 - ours / simple[best], goal=goal if has_goal else "", note=note)
    covered = [f"{covered / whole['model'].jobs:.2f}" for covered in whole["model"].covered]
    yield Figure("wait.coverage_90", float(covered[-1]), note=f"shares below P50, P80, P90: {' '.join(covered)}")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        goal = "≤ 2" if name == "p50" else ""
        yield Figure(f"wait.predict_ms.{name}", 1000 * quantile(model.seconds, share), "ms", goal, note="CPU time")


def compare(
    jobs: Sequence[TraceJob], predictors: dict[str, Predictor], accounts: dict[str, Predictor]
) -> tuple[dict[str, Score], dict[str, Score]]:
    """Scores after the cut: of all jobs, and of the jobs of the accounts, where "model" is what each account saw."""
    _, late = parts(jobs)
    whole = {name: Score() for name in predictors}
    part = {name: Score() for name in predictors}
    for name, job, said in replay(jobs, {**predictors, **accounts}, late, Machine(jobs)):
        if name in predictors:
            whole[name].add(job.wait, said)
        if job.user in accounts and (name == job.user or (name in predictors and name != "model")):
            part["model" if name == job.user else name].add(job.wait, said)
    return whole, part


def main() -> int:
    """Print every predictor's loss, then the figures."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    jobs = read(path)
    early, late = parts(jobs)
    for title, part in (("before the cut", early), ("after the cut", late)):
        print(f"{title}: capped, log, coverage")
        for name, score in scores(jobs, {**baselines(), "model": Model()}, part).items():
            cap, log = score.means()
            print(f"  {name:32} {cap:9.0f} {log:7.3f}  {' '.join(f'{c / score.jobs:.2f}' for c in score.covered)}")
    for figure in measure(path=path):
        print(f"{figure.key} = {figure.value:.4g} {figure.unit} (goal {figure.goal or '-'}) {figure.note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
