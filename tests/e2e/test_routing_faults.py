"""The agent is killed while it routes: gated pods wait, and are routed in order when it is back, each once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faultkit import Points, await_phases, history, kill_agent
from world import Json, World, pod, until

GATE = "hpc-bridge.io/routing"
SPACE = "killed"


def gated(name: str) -> Json:
    """A pod as its author writes it."""
    thing = pod(name, "echo ran")
    thing["metadata"]["namespace"] = SPACE
    del thing["spec"]["runtimeClassName"]
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": "64Mi"}}
    return thing


@pytest.fixture(scope="module")
def world(bridge: World) -> Iterator[World]:
    bridge.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": {GATE: "enabled"}}},
        {
            "apiVersion": "hpc-bridge.io/v1alpha1",
            "kind": "RoutingRule",
            "metadata": {"name": "killed"},
            "spec": {"match": {"namespaces": [SPACE]}, "mode": "must", "candidates": [{"cluster": "alpha"}]},
        },
    )
    yield bridge
    bridge.kubectl("delete", "routingrule", "killed")
    bridge.kubectl("delete", "namespace", SPACE, "--wait=false")


def is_gated(world: World, name: str) -> bool:
    return bool(world.pod(name, SPACE)["spec"].get("schedulingGates"))


@pytest.mark.parametrize("point", ["route.before", "route.after"])
def test_killed_while_deciding(world: World, points: Points, point: str) -> None:
    names = [f"{point.replace('.', '-')}-{number}" for number in range(3)]
    for name in names:
        thing = gated(name)
        thing["spec"]["schedulingGates"] = [{"name": "test/wait"}]
        world.apply(thing)
    uids = {name: world.pod(name, SPACE)["metadata"]["uid"] for name in names}
    points.arm(point, uids[names[0]])
    try:
        for name in names:
            gates = [gate["name"] for gate in world.pod(name, SPACE)["spec"]["schedulingGates"]]
            path = f"/spec/schedulingGates/{gates.index('test/wait')}"
            patch = f'[{{"op": "remove", "path": "{path}"}}]'
            world.kubectl("patch", "pod", name, "-n", SPACE, "--type=json", "-p", patch)
        until(lambda: points.reached(point, uids[names[0]]), f"the agent stands at {point}")
        kill_agent(world)
    finally:
        points.release()
    assert [is_gated(world, name) for name in names] == [point == "route.before", True, True]
    world.agent.start()
    world.agent.wait_ready(90)
    await_phases(world, dict.fromkeys(names, "Succeeded"), "-n", SPACE)
    jobs = history(world)
    assert [len(jobs.get(uid, [])) for uid in uids.values()] == [1, 1, 1]
    for name in names:
        assert '"to":"alpha"' in world.pod(name, SPACE)["metadata"]["annotations"]["status.hpc-bridge.io/route"]
