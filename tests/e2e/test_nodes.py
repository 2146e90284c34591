"""Virtual nodes in a real control plane: two of one process, each over an embedded cluster with recorded censuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from censuses import census, cluster
from embedded import EmbeddedCluster
from waiting import kubectl, running, until

from bridge.clusters.link import ClusterLink
from bridge.kube import Json, errors, paths
from bridge.kube.client import KubeClient, connect
from bridge.kube.clock import parse_rfc3339
from bridge.kube.identity import as_node
from bridge.nodes.loop import NodeAgent
from bridge.telemetry import Metrics
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.local_nodes import LocalNodes
from pbs_adapter.models import Census

LONG = 120.0  # s; for what the node-lifecycle controller takes its time over


class Node:
    """One virtual node, its embedded cluster, and the process that runs it (as far as it lives)."""

    def __init__(self, kube: KubeClient, name: str, port: int) -> None:
        self.kube, self.name, self.port = kube, name, port
        self.census = census()
        self.settings: dict[str, Any] = {}
        self._stack = AsyncExitStack()

    async def start(self, connected: bool = True) -> None:
        """A new process."""
        self.pbs = EmbeddedCluster(self.found)
        if connected:
            self.pbs.connect()
        settings = cluster(**{"name": self.name, "node": self.name, "census": 1, **self.settings})
        self.link = ClusterLink(settings, self.pbs)
        self.agent = NodeAgent(
            as_node(self.kube, self.name), settings, self.link, "127.0.0.1", self.port,
            instance="1-2-3", taints=lambda: self.kube,
        )  # fmt: skip
        await self._stack.enter_async_context(running(self.link.run(), self.agent.run()))

    async def kill(self) -> None:
        """The process ends without tidying up."""
        await self._stack.aclose()

    def found(self) -> Census:
        return self.census

    async def get(self) -> Json:
        """A Node without anything when there is none."""
        try:
            return await self.kube.get(paths.node(self.name))
        except errors.NotFound:
            return {"metadata": {"uid": None}, "spec": {}, "status": {}}

    async def condition(self, type_: str) -> tuple[str, str]:
        found = (await self.get())["status"].get("conditions", [])
        return next(((c["status"], c["reason"]) for c in found if c["type"] == type_), ("", ""))

    async def is_ready(self) -> bool:
        return await self.condition("Ready") == ("True", "KubeletReady")

    async def taints(self) -> set[str]:
        return {taint["key"] for taint in (await self.get())["spec"].get("taints", [])}

    async def settled(self) -> bool:
        """Ready, and what the control plane added to a new node is gone again."""
        return await self.is_ready() and await self.taints() == {"hpc-bridge.io/cluster"}

    async def lease(self) -> Json:
        """`{}` when there is none."""
        try:
            return await self.kube.get(paths.lease(paths.NODE_LEASES, self.name))
        except errors.NotFound:
            return {}

    async def lease_is_ours(self) -> bool:
        owners = (await self.lease()).get("metadata", {}).get("ownerReferences", [])
        return [owner["uid"] for owner in owners] == [(await self.get())["metadata"]["uid"]]


@asynccontextmanager
async def two_nodes(control_plane: ControlPlane, metrics: Metrics) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes with names of the test's own; their Nodes are removed at the end."""
    tag = uuid4().hex[:6]
    async with connect(str(control_plane.admin_kubeconfig), metrics=metrics) as kube:
        nodes = Node(kube, f"one-{tag}", 10251), Node(kube, f"two-{tag}", 10252)
        try:
            for node in nodes:
                await node.start()
            yield nodes
        finally:
            for node in nodes:
                await node.kill()
                await kubectl(control_plane, "delete", "node", node.name, "--ignore-not-found")


@pytest.fixture
def metrics() -> Metrics:
    """Counts the writes of the test's client."""
    return Metrics()


@pytest.fixture
async def nodes(control_plane: ControlPlane, metrics: Metrics) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that are ready."""
    async with two_nodes(control_plane, metrics) as pair:
        for node in pair:
            await until(node.settled)
            await until(node.lease_is_ours)
        yield pair


async def test_nodes_look_like_nodes(control_plane: ControlPlane, nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    wide = await kubectl(control_plane, "get", "nodes", one.name, two.name, "-o", "wide", "--no-headers")
    for line, node in zip(wide.splitlines(), nodes, strict=True):
        name, status, _, _, version, internal, _, image, kernel, runtime = re.split(r"\s{2,}", line.strip())
        assert (name, status, internal) == (node.name, "Ready", "127.0.0.1")
        assert re.match(r"v1\.36\.0-hpcbridge\.\d", version)
        assert (image, kernel.split()[0]) == ("Debian GNU/Linux 12 (bookworm)", "6.1.0-18-amd64")
        assert runtime == "pbs://23.06.06"
    state = (await one.get())["status"]
    assert [c["type"] for c in state["conditions"]] == [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "ClusterReachable",
        "Ready",
    ]
    assert state["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10251}}
    assert state["capacity"] == {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "0"}
    described = await kubectl(control_plane, "describe", "node", one.name)
    assert f"HolderIdentity:  {one.name}" in described
    assert "Failed to get lease" not in described
    assert "Allocated resources:" in described


async def test_the_lease_is_renewed_and_follows_the_node(control_plane: ControlPlane, nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    lease = await one.lease()
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (one.name, 40)
    others = two.agent.node_uid

    async def renewed() -> bool:
        spec = (await one.lease()).get("spec", {})
        return (parse_rfc3339(spec.get("renewTime")) or 0) > (parse_rfc3339(lease["spec"]["renewTime"]) or 0)

    await until(renewed)
    await kubectl(control_plane, "delete", "lease", one.name, "-n", "kube-node-lease")
    await until(one.lease_is_ours)
    old = (await one.get())["metadata"]["uid"]
    await kubectl(control_plane, "delete", "node", one.name)

    async def registered_again() -> bool:
        return (await one.get())["metadata"]["uid"] not in (None, old)

    await until(registered_again)
    await until(one.settled)
    await until(one.lease_is_ours)
    assert two.agent.node_uid == others == (await two.get())["metadata"]["uid"]


async def test_an_operators_work_survives_a_restart(control_plane: ControlPlane, nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    await kubectl(
        control_plane, "label", "node", one.name, "team=chemistry", "topology.kubernetes.io/zone=row-7", "--overwrite"
    )
    await kubectl(
        control_plane, "taint", "node", one.name, "maintenance=soon:PreferNoSchedule", "hpc-bridge.io/cluster-"
    )
    await kubectl(control_plane, "cordon", one.name)
    await kubectl(control_plane, "patch", "node", one.name, "--subresource=status", "--type=merge",
                  "-p", json.dumps({"status": {"capacity": {"example.com/dongle": "4"}}}))  # fmt: skip
    await one.kill()
    one.census = replace(one.census, vnodes=one.census.vnodes[:2])
    await one.start()

    async def new_capacity() -> bool:
        return bool((await one.get())["status"]["capacity"]["cpu"] == "32")

    await until(new_capacity)
    node = await one.get()
    assert node["metadata"]["labels"]["team"] == "chemistry"
    assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "row-7"
    assert node["metadata"]["labels"]["type"] == "virtual-kubelet"
    assert node["spec"]["unschedulable"] is True
    assert {t["key"] for t in node["spec"]["taints"]} == {"maintenance", "node.kubernetes.io/unschedulable"}
    assert node["status"]["capacity"]["example.com/dongle"] == "4"


async def test_what_the_settings_no_longer_say_goes_and_the_provider_id_stays(
    control_plane: ControlPlane, nodes: tuple[Node, Node]
) -> None:
    """Of a node that an earlier version registered, too."""
    one, _ = nodes
    zone = "topology.kubernetes.io/zone"
    assert (await one.get())["spec"]["providerID"] == f"hpc-bridge://1-2-3/{one.name}"
    await one.kill()
    labels = (await one.get())["metadata"]["labels"] | {zone: one.name}
    await kubectl(control_plane, "delete", "node", one.name)
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": one.name, "labels": labels}, "spec": {}}
    await one.kube.create(paths.nodes(), body)
    domains = tuple(v._replace(available={**v.available, "ngpus": 1}) for v in one.census.vnodes[:2])
    one.census = replace(one.census, vnodes=domains)
    one.settings = {"resources": {"nvidia.com/gpu": "ngpus"}, "labels": {"team": "chemistry"}, "overcommit": 3}
    await one.start()

    async def offers(amounts: dict[str, str | None]) -> bool:
        found = (await one.get())["status"].get("allocatable", {})
        return {key: found.get(key) for key in amounts} == amounts

    await until(lambda: offers({"cpu": "96", "nvidia.com/gpu": "6"}))  # more than the capacity, which Kubernetes allows
    assert (await one.get())["status"]["capacity"]["cpu"] == "32"
    labels = (await one.get())["metadata"]["labels"]
    assert (zone in labels, labels["team"]) == (False, "chemistry")
    await one.kill()
    one.settings = {}
    await one.start()
    await until(lambda: offers({"cpu": "32", "nvidia.com/gpu": None}))
    node = await one.get()
    assert "team" not in node["metadata"]["labels"]
    assert node["spec"]["providerID"] == f"hpc-bridge://1-2-3/{one.name}"


async def test_pods_that_spread_over_zones_do_not_wait_for_a_virtual_node(
    control_plane: ControlPlane, nodes: tuple[Node, Node]
) -> None:
    """The scheduler counts tainted nodes, too: a zone of its own would be an empty one, for ever."""
    tag = uuid4().hex[:6]
    with LocalNodes(control_plane, {f"w{n}-{tag}": {"cpu": "8", "memory": "8Gi"} for n in range(3)}) as workers:
        for number, worker in enumerate(workers.nodes):
            await kubectl(control_plane, "label", "node", worker, f"topology.kubernetes.io/zone=z{number}-{tag}")
        web = f"web-{tag}"
        spread = {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": web}},
        }
        template = {
            "metadata": {"labels": {"app": web}},
            "spec": {"topologySpreadConstraints": [spread], "containers": [{"name": "c", "image": "pause"}]},
        }
        spec = {"replicas": 6, "selector": {"matchLabels": {"app": web}}, "template": template}
        made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": web}, "spec": spec}
        await kubectl(control_plane, "create", "-f", "-", input=json.dumps(made))
        try:
            await kubectl(control_plane, "rollout", "status", f"deployment/{web}", "--timeout=60s")
        finally:
            await kubectl(control_plane, "delete", "deployment", web, "--cascade=foreground")


async def test_an_unreachable_cluster_taints_its_own_node_only(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.pbs.disconnect("login node does not answer")

    async def tainted() -> bool:
        return "hpc-bridge.io/unreachable" in await one.taints()

    await until(tainted)
    assert await one.condition("ClusterReachable") == ("False", "ClusterUnreachable")
    assert await one.is_ready()
    assert await two.settled()
    assert await two.condition("ClusterReachable") == ("True", "ClusterReachable")
    one.pbs.connect()
    await until(one.settled)
    assert await one.condition("ClusterReachable") == ("True", "ClusterReachable")


async def test_a_status_that_did_not_change_is_not_written(nodes: tuple[Node, Node], metrics: Metrics) -> None:
    one, _ = nodes

    def status_writes() -> float:
        return sum(
            sample.value
            for metric in metrics.api_writes.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.labels["resource"] == "nodes/status"
        )

    before, lease = status_writes(), await one.lease()

    async def renewed() -> bool:
        spec = (await one.lease())["spec"]
        return (parse_rfc3339(spec["renewTime"]) or 0) - (parse_rfc3339(lease["spec"]["renewTime"]) or 0) >= 8

    for _ in range(50):  # each census wakes the loop, which reads the Node and finds it true
        one.agent.wake()
        await asyncio.sleep(0.02)
    await until(renewed)
    assert status_writes() == before


async def test_the_scheduler_uses_what_the_node_offers(control_plane: ControlPlane, nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    tolerations = [{"key": "hpc-bridge.io/cluster", "operator": "Exists"}]

    async def apply(name: str, cpu: str, **spec: object) -> None:
        container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
        where = {"nodeSelector": {"kubernetes.io/hostname": one.name}, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-{one.name}"}, "spec": {**where, **spec}}
        await kubectl(control_plane, "create", "-f", "-", input=json.dumps(pod))

    async def scheduled(name: str) -> tuple[str, str]:
        found = (await one.kube.get(paths.pod("default", f"{name}-{one.name}")))["status"].get("conditions", [])
        return next(((c["status"], c.get("message", "")) for c in found if c["type"] == "PodScheduled"), ("", ""))

    async def decided(name: str) -> bool:
        return bool((await scheduled(name))[0])

    try:
        await apply("fits", "60", tolerations=tolerations)
        await until(lambda: decided("fits"))
        assert (await scheduled("fits"))[0] == "True"
        await apply("full", "5", tolerations=tolerations)
        await until(lambda: decided("full"))
        assert "Insufficient cpu" in (await scheduled("full"))[1]
        await apply("astray", "1")
        await until(lambda: decided("astray"))
        assert "untolerated taint" in (await scheduled("astray"))[1]
    finally:
        for name in ("fits", "full", "astray"):
            await kubectl(control_plane, "delete", "pod", f"{name}-{one.name}", "--force", "--ignore-not-found")


@pytest.mark.timeout(400)
async def test_a_dead_agent_shows_and_a_new_one_mends_it(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.kill()

    async def unknown() -> bool:
        return await one.condition("Ready") == ("Unknown", "NodeStatusUnknown")

    await until(unknown, LONG)
    assert await two.is_ready()
    await one.start()
    await until(one.settled)
    for type_ in ("MemoryPressure", "DiskPressure", "PIDPressure"):
        assert (await one.condition(type_))[0] == "False"


async def test_a_cluster_that_was_never_seen_makes_a_node_that_is_not_ready(
    control_plane: ControlPlane, metrics: Metrics
) -> None:
    async with connect(str(control_plane.admin_kubeconfig), metrics=metrics) as kube:
        node = Node(kube, f"late-{uuid4().hex[:6]}", 10253)
        try:
            await node.start(connected=False)

            async def registered() -> bool:
                return await node.condition("Ready") == ("False", "ClusterNotYetSeen")

            await until(registered)
            node.pbs.connect()
            await until(node.settled)
        finally:
            await node.kill()
            await kubectl(control_plane, "delete", "node", node.name, "--ignore-not-found")
