"""What a thousand and more running pods cost: PBS commands a poll, status latency, the agent's memory and CPU.

The pods are simulated (one podrun for all), everything else is real: API server, agent, SSH, helper, PBS commands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench import status
from tests.bench.figures import Figure, median
from tests.bench.stage import BenchError, Shape, Stage, Theatre, wait

POLL = 10
WAITING = 20
STEADY = 60.0
FEW, SOME, MANY = 100, 1000, 2000


def measure(theatre: Theatre) -> Iterator[Figure]:
    """One cluster, filled step by step; twenty pods wait in a queue that starts nothing, so that comments are asked."""
    if theatre.address is not None:
        raise BenchError("needs the embedded PBS")
    with theatre.stage(Shape(hosts=17, simulate=True), poll=POLL, census="1h", queues=["held"]) as stage:
        queue = {"hpc-bridge.io/queue": "held"}
        stage.create(stage.pod(f"waits-{n}", "sleep 1", annotations=queue) for n in range(WAITING))
        grow(stage, 0, FEW - WAITING)
        few = commands(stage)
        grow(stage, FEW - WAITING, SOME)
        yield from status.latency(stage)
        grow(stage, SOME, MANY)
        many = commands(stage)
        most = (float(max(few)), float(max(many)))
        note = f"the most in a poll; at {FEW} pods {few}, at {MANY} {many}"
        yield Figure("poll.pbs_commands", most[1], "", "≤ 5", most, note)
        yield Figure("poll.pbs_commands_equal", float(most[0] == most[1]), "", "≥ 1", (), "1: the same at both numbers")
        yield from steady(stage)
        yield Figure("simulated.rss_mb", embedded_rss(stage), "MB", "", (), f"minipbs and {MANY} simulated pods")


def grow(stage: Stage, before: int, after: int) -> None:
    """Let `after` pods run where `before` did."""
    stage.create(stage.pod(f"load-{n}", "echo started; sleep infinity") for n in range(before, after))

    def running() -> bool:
        states = (stage.agent.report() or {"clusters": [{"pods": {}}]})["clusters"][0]["pods"]
        return int(states.get("Running", 0)) >= after

    wait(running, f"{after} pods running", 900, pause=2.0)


def commands(stage: Stage) -> list[int]:
    """PBS commands of each poll of the last minute, in which nothing has changed: connections that come together."""
    time.sleep(3 * POLL + 60.0)  # what has just started is looked at once in detail
    times = sorted(stage.embedded.server.stats()["last_minute"])
    polls: list[list[float]] = []
    for at in times:
        if polls and at - polls[-1][-1] < POLL / 2:
            polls[-1].append(at)
        else:
            polls.append([at])
    return [len(poll) for poll in polls]


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
