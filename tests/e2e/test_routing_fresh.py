"""A burst seconds after another user has filled a cluster: it goes to the other one, though the last census is old."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from world import World, plain, until

from bridge.testbed.agent import Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import PbsTestCluster
from pbs_adapter.minipbs import Config, Host, Queue

Json = dict[str, Any]
SPACE = "burst"
PODS = 100
GIB = 1 << 30
RULE = {
    "apiVersion": "hpc-bridge.io/v1alpha1",
    "kind": "RoutingRule",
    "metadata": {"name": "burst"},
    "spec": {"match": {"namespaces": [SPACE]}, "mode": "must"},
}


@pytest.fixture(scope="module")
def wide(
    bridge: World, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, PbsTestCluster]]:
    """Two clusters of 128 cores each whose census comes every ten minutes; the other agent rests meanwhile."""
    bridge.stop_agent()
    configs = [
        Config(server=name, hosts=(Host(f"{name}-n1", 128, 512 * GIB),), queues=(Queue("workq"),))
        for name in ("delta", "gamma")
    ]
    try:
        with PbsTestCluster(configs[0]) as delta, PbsTestCluster(configs[1]) as gamma:
            clusters = {"delta": delta, "gamma": gamma}
            settings = {"images": [{"image": "busybox:*"}], "poll": 5, "census": "10m"}
            agent = Agent(
                control_plane,
                list(clusters.values()),
                tmp_path_factory.mktemp("wide"),
                agent={"leaseDuration": 6},
                changes=dict.fromkeys(clusters, settings),
            )
            agent.start()
            try:
                agent.wait_ready(180)
                labels = {"hpc-bridge.io/routing": "enabled"}
                world = World(control_plane, clusters, agent)
                world.apply(
                    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}}, RULE
                )
                yield world, delta
            finally:
                agent.stop()
                bridge.kubectl("delete", "routingrule", "burst", "--ignore-not-found")
                bridge.kubectl("delete", "pods", "--all", "-n", SPACE, "--grace-period=0", "--force", "--wait=false")
                bridge.kubectl("delete", "node", "pbs-delta", "pbs-gamma", "--ignore-not-found")
    finally:
        with bridge.agent.config.open("a") as file:  # changed, so that its rights are applied again: ours were others
            file.write("\n")
        bridge.agent.start()
        bridge.agent.wait_ready(180)


def test_a_burst_goes_where_there_is_room_though_the_census_is_old(wide: tuple[World, PbsTestCluster]) -> None:
    """At f7055a2 half of it went to the full cluster and waited there while the other was idle."""
    world, delta = wide

    def old() -> bool:
        report = world.agent.report()
        times = [each["censusAt"] or time.time() for each in report["clusters"]] if report else [time.time()]
        return time.time() - max(times) > 6

    until(old, "the censuses are older than five seconds", 60)
    delta.keep_busy(300)
    until(lambda: " R " in delta.pbs("qstat", "-a", "-w").stdout, "the other user's job runs", 30)
    world.apply(*(plain(f"burst-{number}", SPACE, command="true") for number in range(PODS)))

    def routed() -> Counter[str]:
        pods = world.get("pods", "-n", SPACE)["items"]
        told = [pod["metadata"].get("annotations", {}).get("status.hpc-bridge.io/route") for pod in pods]
        return Counter(json.loads(text)["to"] for text in told if text)

    until(lambda: routed().total() == PODS, "all are routed", 120)
    assert routed() == {"gamma": PODS}
