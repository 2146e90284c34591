"""The agent is killed while it routes: gated pods wait, and are routed in order when it is back, each once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faultkit import Points, await_phases, history, kill_agent
from world import World, plain, until

GATE = "hpc-bridge.io/routing"
SPACE = "killed"


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
        thing = plain(name, SPACE)
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


def test_routed_in_order_when_the_agent_is_back(world: World, points: Points) -> None:
    """While a gate is about to be opened, no later one is."""
    world.stop_agent()
    names = [f"order-{number}" for number in range(5)]
    for name in names:
        world.apply(plain(name, SPACE))
    assert all(is_gated(world, name) for name in names)
    third = world.pod(names[2], SPACE)["metadata"]["uid"]
    points.arm("route.before", third)
    try:
        world.agent.start()
        until(lambda: points.reached("route.before", third), "the agent is about to open the third gate")
        await_phases(world, dict.fromkeys(names[:2], "Succeeded"), "-n", SPACE, *names[:2])
        assert [is_gated(world, name) for name in names] == [False, False, True, True, True]
    finally:
        points.release()
    await_phases(world, dict.fromkeys(names, "Succeeded"), "-n", SPACE, *names)
