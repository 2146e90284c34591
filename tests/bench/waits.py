"""wait.*: the wait estimate against simple predictors on a trace: `python -m tests.bench.waits [FILE.swf[.gz]]`.

The default trace is the first 60 days of wagap-2013: CERIT-SC's jobs, published with the Alea scheduling simulator.
Acknowledge both where its figures are used. Nothing is measured where the file is missing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bridge.routing.waits import Shape, WaitModel
from pbs_adapter.models import Census
from pbs_adapter.remote import parse
from tests.bench.baselines import WINDOW, Bound, Last, Predictor, WithWaiting
from tests.bench.figures import Figure, quantile
from tests.bench.replay import parts, scores
from tests.bench.swf import TraceJob, read

DEFAULT = Path(__file__).parents[3] / "shared/traces/wagap-2013-first60d.swf.gz"
EMPTY = Census(0.0, parse.parse_server(b'{"Server": {"trace": {}}}'), (), (), {})


class Model:
    """The bridge's model, told the exact times of everyone's jobs."""

    def __init__(self) -> None:
        self.model = WaitModel()
        self.seconds: list[float] = []

    def predict(self, job: TraceJob, fits: bool, now: float, wanted: Sequence[float]) -> Sequence[float]:
        census = replace(EMPTY, account=job.user)
        begun = time.perf_counter()
        wait = self.model.waits(_shape(job, fits), "trace", job.queue, census, now, wanted)
        self.seconds.append(time.perf_counter() - begun)
        return list(wait.quantiles.values())

    def submitted(self, job: TraceJob, fits: bool, now: float) -> None:
        self._tell(job, fits, None, now)

    def started(self, job: TraceJob, fits: bool, now: float) -> None:
        self._tell(job, fits, now, now)

    def _tell(self, job: TraceJob, fits: bool, started: float | None, now: float) -> None:
        shape = _shape(job, fits)
        self.model.observe("trace", str(job.number), job.queue, job.user, shape, job.submitted, started, now)


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
    """Gains over the best simple predictor: its settings chosen before the cut, like ours, or (stricter) after it."""
    path = path or Path(os.environ.get("TRACE") or DEFAULT)
    if not path.exists():
        return
    jobs = read(path)
    _, late = parts(jobs)
    simple = {name: score.means() for name, score in scores(jobs, baselines(), late).items()}
    model = Model()
    ours = scores(jobs, {"model": model}, late)["model"]
    for index, (key, goal) in enumerate((("wait.cap_gain", "≥ 0.35"), ("wait.log_gain", "≥ 0.4"))):
        name, loss = min(((name, means[index]) for name, means in simple.items()), key=lambda pair: pair[1])
        mine = ours.means()[index]
        note = f"{path.name}, {ours.jobs} jobs: {mine:.4g} against {loss:.4g} ({name})"
        yield Figure(key, 1 - mine / loss, "", goal if path == DEFAULT else "", note=note)
    covered = " ".join(f"{c / ours.jobs:.2f}" for c in ours.covered)
    yield Figure("wait.coverage_90", ours.covered[-1] / ours.jobs, note=f"shares below P50, P80, P90: {covered}")
    yield Figure("wait.predict_ms.p99", 1000 * quantile(model.seconds, 0.99), "ms")
    yield Figure("wait.predict_ms.p50", 1000 * quantile(model.seconds, 0.5), "ms", "≤ 2")


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
