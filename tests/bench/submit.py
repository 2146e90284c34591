"""submit.ratio: pods bound at once against `xargs -P8 qsub` of as many on the same host; and PBS connections."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise

from bridge.api import names
from tests.bench.connections import Connections
from tests.bench.figures import Figure, median
from tests.bench.stage import NAMESPACE, Json, Shape, Stage, Theatre, wait

PODS = 500
PARALLEL = 8


def measure(theatre: Theatre) -> Iterator[Figure]:
    """500 distinct pods to a queue that starts nothing, between two rounds of raw qsubs; then all are deleted."""
    with theatre.stage(Shape(held=True), agent={"leaseDuration": 120}) as stage:
        stage.shell(raw_qsub(stage, "raw", 1))  # the user's background qsub is there for both
        bare = [bare_starts(stage)]
        raw = [raw_rate(stage)]
        with connections(stage) as submitting:
            rates = bound_at_once(stage)
        wait(lambda: all(shown(pod) for pod in stage.pods()), "every job id shown", pause=1.0)  # the agent rests again
        raw.append(raw_rate(stage))
        bare.append(bare_starts(stage))
        yield Figure(
            "submit.ratio",
            rates[0] / median(raw),
            "",
            "≥ 0.8",
            tuple(rates[0] / each for each in raw),
            f"of {PARALLEL} qsubs at a time; the time of the last {PODS}th job counts",
        )
        yield Figure("submit.pods_per_s", rates[0], "/s", "", tuple(rates[1:]), "spread: by fifths of the pods")
        yield Figure("submit.xargs_per_s", median(raw), "/s", "", tuple(raw))
        yield Figure(
            "submit.bare_starts_per_s", median(bare), "/s", "", tuple(bare), "python3 -I -S -c pass, 8 at a time"
        )
        if submitting is None:
            return
        with Connections(stage) as deleting:
            stage.clear()
        counts = (float(submitting.per_minute), float(deleting.per_minute))
        note = f"{PODS} submits, and {PODS} queued pods deleted at once ({deleting.total} in all)"
        yield Figure("pbs.connections_per_min.max", max(counts), "/min", "≤ 200", counts, note)


def shown(pod: Json) -> bool:
    """Whether the pod tells of its job."""
    waiting = [each["state"].get("waiting", {}) for each in pod["status"].get("containerStatuses", [])]
    return names.JOB_ID in pod["metadata"].get("annotations", {}) and bool(waiting)


def connections(stage: Stage) -> Connections | nullcontext[None]:
    """Counted where the server is ours."""
    return Connections(stage) if hasattr(stage.target, "server") else nullcontext()


def bound_at_once(stage: Stage) -> list[float]:
    """Pods accepted by PBS per second, from the moment the agent may see them; then the same by fifths."""
    pid = stage.agent_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        stage.create(stage.pod(f"submit-{n}", f"echo {n}; sleep 1", labels={"number": str(n)}) for n in range(PODS))
        uids = {pod["metadata"]["uid"] for pod in stage.pods() if pod["metadata"]["namespace"] == NAMESPACE}
        before = float(stage.shell("date +%s.%N"))
    finally:
        os.kill(pid, signal.SIGCONT)
    wait(lambda: uids <= set(stage.accepted()), "all jobs accepted", pause=2.0)
    times = sorted(at - before for uid, at in stage.accepted().items() if uid in uids)
    fifth = PODS // 5
    edges = [0.0, *(times[n * fifth - 1] for n in range(1, 6))]
    return [PODS / times[-1], *(fifth / (late - early) for early, late in pairwise(edges))]


def raw_rate(stage: Stage) -> float:
    """qsubs of `xargs -P8` per second; the jobs are deleted afterwards."""
    seconds = timed(stage, raw_qsub(stage, "raw", PODS))
    stage.shell(f"{stage.pbs_bin}qselect -N raw | xargs -r -n 1 -P {PARALLEL} {stage.pbs_bin}qdel")
    return PODS / seconds


def raw_qsub(stage: Stage, name: str, count: int) -> str:
    """The same qsub as a pod's, as a shell line that runs it `count` times."""
    queue = f"-q {stage.queue}" if stage.queue else ""
    words = f"{stage.pbs_bin}qsub -h -r n -c n -m n -j oe -koed -o /dev/null -N {name} {queue} "
    words += "-l select=1:ncpus=1:mem=327680kb -l walltime=01:01:05 -- /usr/bin/python3 /tmp/podrun.pyz /tmp/@"
    return f"seq {count} | xargs -P {PARALLEL} -I @ {words} >/dev/null"


def bare_starts(stage: Stage) -> float:
    """Bare Python processes started per second, as many and as many at a time."""
    return PODS / timed(stage, f"seq {PODS} | xargs -P {PARALLEL} -I @ /usr/bin/python3 -I -S -c pass")


def timed(stage: Stage, line: str) -> float:
    """Seconds that a shell line takes on the login node, by the login node's clock."""
    return float(stage.shell(f"s=$(date +%s.%N); {line}; e=$(date +%s.%N); echo \"$e - $s\" | awk '{{print $1 - $3}}'"))
