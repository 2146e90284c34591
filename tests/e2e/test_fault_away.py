"""The agent or the login node is away for longer than Kubernetes waits for any node: no pod is harmed.

Here Kubernetes waits for half a minute; with HPC_BRIDGE_TEST_FULL=1 it is as patient as by default, and each absence
lasts seven minutes. That its patience is over is seen by a pod on another node, which it deletes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from faultkit import send
from world import Json, World, condition, container, pod, until

from bridge.testbed.agent import Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import ALPHA, BETA, PbsTestCluster

FULL = bool(os.environ.get("HPC_BRIDGE_TEST_FULL"))
AWAY = 420.0 if FULL else 0.0  # s, at least; until the other node's pod is deleted in any case
LONG = 900.0 if FULL else 240.0

pytestmark = pytest.mark.timeout(1800 if FULL else 600)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A control plane that loses patience soon, two clusters, an agent."""
    plane = ControlPlane() if FULL else ControlPlane(node_monitor_grace=20.0, tolerations=5)
    with plane, PbsTestCluster(ALPHA) as alpha, PbsTestCluster(BETA) as beta:
        if alpha.sshd is None:
            pytest.skip("no sshd: a login node cannot be cut off")
        images = {"images": [{"image": "busybox:*"}], "poll": 3, "lostAfter": 3, "walltimeMargin": 5}
        agent = Agent(
            plane,
            [alpha, beta],
            tmp_path_factory.mktemp("agent"),
            agent={"sweep": 4, "leaseDuration": 6},
            changes={"alpha": images, "beta": images},
        )
        agent.start()
        try:
            agent.wait_ready(120)
            yield World(plane, {"alpha": alpha, "beta": beta}, agent)
        finally:
            agent.stop()


def now() -> str:
    """As the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def report_ready(world: World, node: str) -> None:
    """Make a node that reports now that it is ready, in a zone where ours are not: Kubernetes is patient by zone."""
    labels = {"topology.kubernetes.io/zone": "elsewhere", "topology.kubernetes.io/region": "elsewhere"}
    world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}})
    at = now()
    ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": at, "lastTransitionTime": at}
    status = json.dumps({"status": {"conditions": [ready]}})
    world.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={status}")


def patience_of_kubernetes(world: World, name: str) -> None:
    """Return when Kubernetes has given up a node that reported for the last time now, and deletes its pod.

    Another node goes on to report: where none does, Kubernetes blames the network and evicts nobody.
    """
    started = time.monotonic()
    holder: Json = {"holderIdentity": f"{name}-well", "leaseDurationSeconds": 40}
    lease: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    lease["metadata"] = {"name": f"{name}-well", "namespace": "kube-node-lease"}
    for node in (name, f"{name}-well"):
        report_ready(world, node)
    thing = pod(name, "true")
    del thing["spec"]["runtimeClassName"]
    world.apply(thing | {"spec": thing["spec"] | {"nodeName": name}})

    renewed = 0.0

    def given_up() -> bool:
        nonlocal renewed
        if time.monotonic() - renewed >= 2:
            world.apply(lease | {"spec": holder | {"renewTime": now()}})
            renewed = time.monotonic()
        return "deletionTimestamp" in world.pod(name)["metadata"]

    until(given_up, "the pod on the other node is evicted", LONG)
    world.kubectl("delete", "pod", name, "--force", "--grace-period=0")
    world.kubectl("delete", "node", name, f"{name}-well")
    time.sleep(max(0.0, AWAY - (time.monotonic() - started)))


def three_pods(world: World, prefix: str) -> dict[str, str]:
    """One that runs on, one that ends when its file appears, one that is never started; their UIDs."""
    big = pod(f"{prefix}-waits", "true", cluster="beta")
    big["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "8"}}
    filler = pod(f"{prefix}-fills", "exec sleep 3000", cluster="beta")
    world.apply(filler)
    world.wait_phase(f"{prefix}-fills", "Running")
    world.apply(
        pod(f"{prefix}-stays", "exec sleep 3000"),
        pod(f"{prefix}-ends", "for i in $(seq 150); do sleep 0.1; done; exit 4"),
        big,
    )
    for name in ("stays", "ends"):
        world.wait_phase(f"{prefix}-{name}", "Running")
    world.wait_reason(f"{prefix}-waits", "PBSQueued")
    return {name: world.pod(f"{prefix}-{name}")["metadata"]["uid"] for name in ("fills", "stays", "ends", "waits")}


def unharmed(world: World, prefix: str, uids: dict[str, str]) -> None:
    """Nothing has happened to them but what they did themselves."""
    ended = world.wait_phase(f"{prefix}-ends", "Failed", timeout=120)
    assert container(ended)["state"]["terminated"]["exitCode"] == 4
    assert "reason" not in ended["status"]
    for name in ("fills", "stays", "waits"):
        is_ready = "False" if name == "waits" else "True"
        found = world.wait(
            f"{prefix}-{name}",
            lambda p, ready=is_ready: condition(p, "Ready")["status"] == ready,  # type: ignore[misc]
            what="as before",
        )
        assert found["metadata"]["uid"] == uids[name]
        assert "deletionTimestamp" not in found["metadata"]
        assert container(found)["restartCount"] == 0
        assert found["status"]["phase"] == ("Pending" if name == "waits" else "Running")
    world.kubectl("delete", "pod", *(f"{prefix}-{name}" for name in uids), "--wait=false")
    for name in uids:
        world.wait_gone(f"{prefix}-{name}", timeout=90)


def unreachable(world: World, node: str) -> bool:
    """Does the node say that its cluster is away?"""
    found = world.get("node", node)
    tainted = any(t["key"] == "hpc-bridge.io/unreachable" for t in found["spec"].get("taints", []))
    assert {t["effect"] for t in found["spec"].get("taints", [])} <= {"NoSchedule"}, found["spec"]["taints"]
    return tainted and condition(found, "ClusterReachable")["status"] == "False"


def test_the_agent_is_away(world: World) -> None:
    uids = three_pods(world, "agent")
    world.stop_agent(kill=True)
    try:
        patience_of_kubernetes(world, "ghost-of-agent")
        assert condition(world.get("node", "pbs-alpha"), "Ready")["status"] == "Unknown"
    finally:
        world.agent.start()
    world.agent.wait_ready(120)
    unharmed(world, "agent", uids)


def test_the_login_node_answers_no_more(world: World) -> None:
    """Not refused but silent, as a host that is overloaded or a network that loses everything."""
    uids = three_pods(world, "ssh")
    sshd = world.clusters["alpha"].sshd
    assert sshd is not None
    silent = sshd.pids[1:]
    send(signal.SIGSTOP, silent)
    try:
        until(lambda: unreachable(world, "pbs-alpha"), "alpha is away", 120)
        patience_of_kubernetes(world, "ghost-of-ssh")
        assert unreachable(world, "pbs-alpha")
        assert condition(world.get("node", "pbs-alpha"), "Ready")["status"] == "True"
        assert not unreachable(world, "pbs-beta")
        assert world.pod("ssh-ends")["status"]["phase"] == "Running"  # nobody knows better
        world.apply(pod("ssh-other", "true", cluster="alpha"), pod("ssh-beta", "true", cluster="beta"))
        world.wait_phase("ssh-beta", "Succeeded")
    finally:
        send(signal.SIGCONT, silent)
    until(lambda: not unreachable(world, "pbs-alpha"), "alpha is back", 400)
    unharmed(world, "ssh", uids)
    world.wait_phase("ssh-other", "Succeeded")


def test_the_login_node_is_down_when_the_agent_starts(world: World) -> None:
    sshd = world.clusters["alpha"].sshd
    assert sshd is not None
    world.stop_agent()
    sshd.stop()
    world.agent.start()
    until(lambda: unreachable(world, "pbs-alpha"), "alpha is away", 120)
    world.apply(pod("start-alpha", "true"), pod("start-beta", "true", cluster="beta"))
    world.wait_phase("start-beta", "Succeeded", timeout=120)
    assert world.pod("start-alpha")["status"]["phase"] == "Pending"
    sshd.restart()
    until(lambda: not unreachable(world, "pbs-alpha"), "alpha is back", 120)
    world.wait_phase("start-alpha", "Succeeded")
