"""What a thousand and more running pods cost: PBS commands a poll, status latency, the agent's memory and CPU.

The pods are simulated (one podrun for all), everything else is real: API server, agent, SSH, helper, PBS commands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench import status
from tests.bench.connections import Connections
from tests.bench.figures import Figure, median
from tests.bench.stage import BenchError, Shape, Stage, Theatre, wait

POLL = 10
POLLS = 6
WAITING = 20
STEADY = 60.0
FEW, SOME, MANY = 100, 1000, 2000


def measure(theatre: Theatre) -> Iterator[Figure]:
    """One cluster, filled step by step; twenty pods wait in a queue that starts nothing, so that comments are asked."""
    if theatre.address is not None:
        raise BenchError("needs the embedded PBS")
    with theatre.stage(Shape(hosts=17, simulate=True), poll=POLL, queue="workq", queues=["held"]) as stage:
        queue = {"hpc-bridge.io/queue": "held"}
        stage.create(stage.pod(f"waits-{n}", "sleep 1", annotations=queue) for n in range(WAITING))
        grow(stage, 0, FEW - WAITING)
        few = commands(stage)
        grow(stage, FEW - WAITING, SOME)
        yield from status.latency(stage)
        grow(stage, SOME, MANY)
        many = commands(stage)
        note = f"bulk polls without the census; at {FEW} pods: {few:g}, at {MANY}: {many:g}"
        yield Figure("poll.pbs_commands", many, "", "≤ 5", (few, many), note)
        yield Figure(
            "poll.pbs_commands_equal", float(few == many), "", "≥ 1", (), "1: the same at both numbers of pods"
        )
        yield from steady(stage)
        yield Figure("simulated.rss_mb", embedded_rss(stage), "MB", "", (), f"minipbs and {MANY} simulated pods")


def grow(stage: Stage, before: int, after: int) -> None:
    """Let `after` pods run where `before` did."""
    stage.create(stage.pod(f"load-{n}", "echo started; sleep infinity") for n in range(before, after))

    def running() -> bool:
        states = (stage.agent.report() or {"clusters": [{"pods": {}}]})["clusters"][0]["pods"]
        return int(states.get("Running", 0)) >= after

    wait(running, f"{after} pods running", 900, pause=2.0)


def commands(stage: Stage) -> float:
    """PBS commands a poll, over a few polls in which nothing changes."""
    time.sleep(3 * POLL)  # what has just started is looked at once in detail
    with Connections(stage) as counted:
        time.sleep(POLL * POLLS)
    return round(counted.total / POLLS, 1)


def steady(stage: Stage) -> Iterator[Figure]:
    """The agent's memory and CPU while nothing happens."""
    pid = stage.agent_pid()
    cpu, rss = [], []
    for _ in range(4):
        began, used = time.monotonic(), cpu_seconds(pid)
        time.sleep(STEADY / 4)
        cpu.append((cpu_seconds(pid) - used) / (time.monotonic() - began))
        rss.append(rss_mb(pid))
    yield Figure("agent.rss_mb", max(rss), "MB", "≤ 180", tuple(rss), f"{MANY} running pods, steady")
    yield Figure("agent.cpu", median(cpu), "cores", "≤ 0.2", tuple(cpu), f"{MANY} running pods, steady, {STEADY:.0f} s")


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def embedded_rss(stage: Stage) -> float:
    """Resident memory of PBS, its MoM and the simulator."""
    total = 0.0
    for pid in stage.embedded.pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"minipbs" in words or b"--simulate" in words:
            total += rss_mb(pid)
    return total
