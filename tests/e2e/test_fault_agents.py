"""Two agents: the one that was paused finds its Lease taken, and whatever it was about to do does not happen."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from faultkit import Points, agent_pids, await_phases, counting, gated, history, open_gates, runs, send
from world import World, container, until

from bridge.testbed.agent import Agent

STEPS = {  # what the paused agent is about to do to a pod
    "submit.before": "exit 3",
    "submit.answered": "exit 3",
    "status.terminal": "exit 3",
    "cancel.before": "trap 'exit 0' TERM; while :; do sleep 0.1; done",
    "delete.before": "trap 'exit 0' TERM; while :; do sleep 0.1; done",
}


@contextmanager
def second_agent(bridge: World, folder: Path) -> Iterator[Agent]:
    """Another agent with the same settings and ports of its own."""
    settings = yaml.safe_load(bridge.agent.config.read_text())
    clusters = {c["name"]: {k: v for k, v in c.items() if k != "kubeletPort"} for c in settings["clusters"]}
    own = {k: v for k, v in settings["agent"].items() if k != "statusListen"}
    second = Agent(bridge.control_plane, list(bridge.clusters.values()), folder, agent=own, changes=clusters)
    second.start()
    try:
        yield second
    finally:
        second.stop()


def test_a_former_leader_changes_nothing(bridge: World, points: Points, tmp_path: Path) -> None:
    names = {f"lead-{point.replace('.', '-')}": point for point in STEPS}
    starts = [name for name, point in names.items() if STEPS[point] == "exit 3"]
    leaves = [name for name in names if name not in starts]
    things = {name: counting(bridge, name, STEPS[point]) for name, point in names.items()}
    try:
        bridge.apply(*(things[name] for name in leaves))
        for name in leaves:
            bridge.wait_phase(name, "Running")
        uids = {name: bridge.pod(name)["metadata"]["uid"] for name in leaves}
        uids |= gated(bridge, *(things[name] for name in starts))
        for name, point in names.items():
            points.arm(point, uids[name])
        open_gates(bridge, starts)
        bridge.kubectl("delete", "pod", *leaves, "--wait=false")
        for name, point in names.items():
            until(lambda point=point, name=name: points.reached(point, uids[name]), f"{name} stands at {point}")  # type: ignore[misc]
        paused = agent_pids(bridge)
        send(signal.SIGSTOP, paused)
        with second_agent(bridge, tmp_path) as second:
            second.wait_ready(120)
            await_phases(bridge, dict.fromkeys(starts, "Failed"))
            for name in leaves:
                bridge.wait_gone(name)
            before = {name: bridge.pod(name) for name in starts}
            points.release()
            send(signal.SIGCONT, paused)
            until(lambda: not leads(bridge.agent), "the first one knows that it leads no more")
            bridge.apply(counting(bridge, "lead-after", "true"))  # by the time it has ended, any harm would be done
            bridge.wait_phase("lead-after", "Succeeded")
            assert {name: bridge.pod(name) for name in starts} == before
            assert leads(second)
    finally:
        points.release()
        send(signal.SIGCONT, agent_pids(bridge))
    jobs = history(bridge)
    assert {name: len(jobs[uid]) for name, uid in uids.items()} == dict.fromkeys(names, 1)
    assert {name: runs(bridge, name) for name in names} == dict.fromkeys(names, 1)
    assert {container(before[name])["state"]["terminated"]["exitCode"] for name in starts} == {3}
    bridge.restart_agent()


def leads(agent: Agent) -> bool:
    """Does the agent say that it leads?"""
    report = agent.report()
    return report is not None and bool(report["leading"])
