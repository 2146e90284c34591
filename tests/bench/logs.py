"""logs.read_mb_s and logs.follow_ms.p50: kubectl logs, through kube-apiserver, agent, SSH and helper."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

from bridge.testbed.kubectl import find_kubectl
from tests.bench.figures import Figure, median
from tests.bench.stage import NAMESPACE, BenchError, Shape, Stage, Theatre, wait

MEGABYTES = 25
LINE = "x" * 99
ROUNDS = 3
FOLLOWED = 60


def measure(theatre: Theatre) -> Iterator[Figure]:
    """25 MB of lines of 100 bytes are read three times; then a container that tells the time is followed."""
    with theatre.stage(Shape(hosts=1)) as stage:
        writer = f"i=0; while [ $i -lt {MEGABYTES} ]; do yes {LINE} | head -c 1000000; i=$((i+1)); sleep 0.05; done"
        clock = f"i=0; while [ $i -lt {FOLLOWED} ]; do date +%s.%N; i=$((i+1)); sleep 0.3; done"
        stage.create([stage.pod("writer", writer), stage.pod("clock", f"sleep 5; {clock}")])
        follow = follow_ms(stage, "clock")
        wait(lambda: phase(stage, "writer") in ("Succeeded", "Failed"), "the writer's end", 300, pause=0.5)
        reads = tuple(read(stage, "writer") for _ in range(ROUNDS))
        yield Figure("logs.read_mb_s", median(reads), "MB/s", "≥ 30", reads, f"{MEGABYTES} MB, lines of 100 bytes")
        yield Figure("logs.follow_ms.p50", median(follow), "ms", "≤ 500", tuple(follow))


def phase(stage: Stage, name: str) -> str:
    """A pod's phase."""
    return next(str(pod["status"]["phase"]) for pod in stage.pods() if pod["metadata"]["name"] == name)


def argv(stage: Stage, *words: str) -> list[str]:
    """kubectl logs."""
    return [find_kubectl(), f"--kubeconfig={stage.control_plane.admin_kubeconfig}", "logs", "-n", NAMESPACE, *words]


def read(stage: Stage, name: str) -> float:
    """MB per second of a whole log."""
    began, size = time.monotonic(), 0
    with subprocess.Popen(argv(stage, name), stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            raise BenchError("no output")
        while block := process.stdout.read(1 << 20):
            size += len(block)
    seconds = time.monotonic() - began
    if size < MEGABYTES * 900_000:
        raise BenchError(f"only {size} bytes of {name}'s log came")
    return size / 1e6 / seconds


def follow_ms(stage: Stage, name: str) -> list[float]:
    """Milliseconds from a line's writing to its coming out of `kubectl logs -f`."""
    wait(lambda: phase(stage, name) == "Running", f"{name} running", 60)
    offset = stage.clock_offset()
    delays = []
    with subprocess.Popen(argv(stage, "-f", name), stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            raise BenchError("no output")
        for line in process.stdout:
            delays.append((time.time() - (float(line) - offset)) * 1000)
    return delays
