"""start_overhead_ms.p50: from PBS's start of podrun to the first process of the container (host runtime)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.figures import Figure, median
from tests.bench.stage import Shape, Stage, Theatre, wait

PODS = 15


def measure(theatre: Theatre) -> Iterator[Figure]:
    """15 pods one after another tell the time first of all; PBS has opened job.out right before it started podrun."""
    with theatre.stage(Shape(hosts=1)) as stage:
        samples = tuple(overhead(stage, f"start-{number}") for number in range(PODS))
        python = stage.shell("s=$(date +%s%N); /usr/bin/python3 -c pass; e=$(date +%s%N); echo $(( (e - s) / 1000 ))")
    note = f"a bare python3 takes {int(python) / 1000:.0f} ms here"
    yield Figure("start_overhead_ms.p50", median(samples), "ms", "≤ 300", samples, note)


def overhead(stage: Stage, name: str) -> float:
    """Milliseconds for one pod."""
    stage.create([stage.pod(name, "date +%s.%N")])
    pod = wait(lambda: ended(stage, name), f"{name} ended", 120)
    folder = f"{stage.spool}/*/*/pods/{pod['metadata']['uid']}"
    opened, line = stage.shell(f"stat -c %.9Y {folder}/job.out; cat {folder}/logs/main/0.log").splitlines()
    return (float(line.split()[3]) - float(opened)) * 1000


def ended(stage: Stage, name: str) -> dict[str, object] | None:
    """The pod once it is over."""
    found = (pod for pod in stage.pods() if pod["metadata"]["name"] == name)
    return next((pod for pod in found if pod["status"]["phase"] in ("Succeeded", "Failed")), None)
