"""A node's loop in virtual time. The same against a real control plane: tests/e2e/test_nodes.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from censuses import census, cluster
from embedded import EmbeddedCluster
from memorykube import MemoryKube
from virtualtime import VirtualClock

from bridge.clusters.link import ClusterLink
from bridge.kube import Json, paths
from bridge.kube.events import Recorder
from bridge.nodes.loop import NodeAgent
from pbs_adapter.models import Census

NODE = paths.node("pbs-alpha")
STATUS = paths.node_status("pbs-alpha")
LEASE = paths.lease("kube-node-lease", "pbs-alpha")


class Scene:
    """One node of one embedded cluster; `start` and `stop` are a process's life."""

    def __init__(self) -> None:
        self.clock, self.kube = VirtualClock(), MemoryKube()
        self.census = census()
        self.allowed = True
        self.router: MemoryKube | None = self.kube  # what writes taints
        self._tasks: list[asyncio.Future[None]] = []

    async def start(self, connected: bool = True) -> None:
        """A new process."""
        self.pbs = EmbeddedCluster(self.found, clock=self.clock)
        if connected:
            self.pbs.connect()
        settings = cluster()
        self.link = ClusterLink(settings, self.pbs, clock=self.clock)
        self.recorder = Recorder(self.kube, "hpc-bridge", "here", clock=self.clock)
        self.agent = NodeAgent(
            self.kube, settings, self.link, "10.0.0.1", 10250, self.clock,
            recorder=self.recorder, allowed=lambda: self.allowed, taints=lambda: self.router,
        )  # fmt: skip
        runs = (self.link.run(), self.agent.run(), self.recorder.run())
        self._tasks = [asyncio.ensure_future(run) for run in runs]
        await self.clock.advance(0.5)

    async def stop(self) -> None:
        """As by SIGKILL: nothing is tidied up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def found(self) -> Census:
        return self.census

    @property
    def node(self) -> Json:
        return self.kube.objects[NODE]

    def condition(self, type_: str) -> tuple[str, str]:
        found = next(c for c in self.node["status"]["conditions"] if c["type"] == type_)
        return found["status"], found["reason"]

    def taints(self) -> set[str]:
        return {taint["key"] for taint in self.node["spec"]["taints"]}

    def written(self, path: str) -> int:
        return sum(where == path for _, where in self.kube.writes)


@asynccontextmanager
async def scene(connected: bool = True) -> AsyncIterator[Scene]:
    made = Scene()
    await made.start(connected)
    yield made
    await made.stop()


async def test_an_unchanged_status_is_written_every_five_minutes_and_the_lease_every_ten_seconds() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        before, renewals = s.written(STATUS), s.written(LEASE)
        await s.clock.advance(900)
        assert s.written(STATUS) - before == 3
        assert 89 <= s.written(LEASE) - renewals <= 91
        assert s.written(NODE) <= 1  # the creation


async def test_a_new_census_shows_at_once() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        assert s.agent.allocatable == {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "0"}
        s.census = replace(s.census, vnodes=s.census.vnodes[:2])
        await s.clock.advance(61)
        assert s.node["status"]["allocatable"]["cpu"] == "32"
        assert s.agent.allocatable is not None
        assert s.agent.allocatable["cpu"] == "32"


async def test_an_unreachable_cluster_costs_a_taint_and_nothing_else() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        s.pbs.disconnect()
        await s.clock.advance(30)
        assert s.condition("ClusterReachable") == ("False", "ClusterUnreachable")
        assert s.condition("Ready") == ("True", "KubeletReady")
        assert s.taints() == {"hpc-bridge.io/cluster", "hpc-bridge.io/unreachable"}
        renewed = s.kube.objects[LEASE]["spec"]["renewTime"]
        await s.clock.advance(600)
        assert s.kube.objects[LEASE]["spec"]["renewTime"] > renewed
        s.pbs.connect()
        await s.clock.advance(30)
        assert s.condition("ClusterReachable") == ("True", "ClusterReachable")
        assert s.taints() == {"hpc-bridge.io/cluster"}
        events = [e["reason"] for p, e in s.kube.objects.items() if "/events/" in p]
        assert events == ["ClusterUnreachable", "ClusterReachable"]


async def test_without_routing_the_condition_alone_tells_of_an_unreachable_cluster() -> None:
    """No node may change its own taints."""
    async with scene() as s:
        s.router = None
        await s.clock.advance(20)
        s.pbs.disconnect()
        await s.clock.advance(30)
        assert s.condition("ClusterReachable") == ("False", "ClusterUnreachable")
        assert s.taints() == {"hpc-bridge.io/cluster"}


async def test_a_node_whose_cluster_was_never_seen_is_registered_but_not_ready() -> None:
    async with scene(connected=False) as s:
        await s.clock.advance(60)
        assert s.condition("Ready") == ("False", "ClusterNotYetSeen")
        assert s.agent.allocatable is None
        assert LEASE in s.kube.objects
        s.pbs.connect()
        await s.clock.advance(20)
        assert s.condition("Ready") == ("True", "KubeletReady")
        assert s.taints() == {"hpc-bridge.io/cluster"}


async def test_a_restart_changes_nothing_while_the_cluster_is_being_connected() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        await s.stop()
        writes = s.written(STATUS)
        await s.start(connected=False)
        await s.clock.advance(10)
        assert s.taints() == {"hpc-bridge.io/cluster"}
        assert s.condition("ClusterReachable") == ("True", "ClusterReachable")
        assert s.agent.allocatable is not None
        s.pbs.connect()
        await s.clock.advance(10)
        assert s.written(STATUS) == writes


async def test_a_restart_while_the_cluster_is_away_keeps_the_node_ready() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        await s.stop()
        await s.start(connected=False)
        await s.clock.advance(60)
        assert s.condition("Ready") == ("True", "KubeletReady")
        assert s.condition("ClusterReachable") == ("False", "ClusterUnreachable")
        assert "hpc-bridge.io/unreachable" in s.taints()
        assert s.node["status"]["allocatable"]["cpu"] == "64"


async def test_conditions_that_the_controller_set_to_unknown_are_posted_again() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        for condition in s.node["status"]["conditions"]:
            condition |= {"status": "Unknown", "reason": "NodeStatusUnknown"}
        await s.clock.advance(11)
        assert {c["status"] for c in s.node["status"]["conditions"]} == {"True", "False"}


async def test_a_deleted_node_is_registered_again_and_its_lease_follows() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        old = s.agent.node_uid
        del s.kube.objects[NODE]
        await s.clock.advance(25)
        assert s.agent.node_uid == s.node["metadata"]["uid"] != old
        assert s.kube.objects[LEASE]["metadata"]["ownerReferences"][0]["uid"] == s.agent.node_uid
        del s.kube.objects[LEASE]
        await s.clock.advance(11)
        assert s.kube.objects[LEASE]["spec"]["holderIdentity"] == "pbs-alpha"


async def test_what_an_operator_wrote_stays() -> None:
    async with scene() as s:
        await s.clock.advance(20)
        s.node["metadata"]["labels"] |= {"team": "x", "topology.kubernetes.io/zone": "row-7"}
        s.node["spec"] |= {"unschedulable": True, "taints": [{"key": "maintenance", "effect": "NoSchedule"}]}
        await s.stop()
        await s.start()
        await s.clock.advance(400)
        assert s.node["metadata"]["labels"]["team"] == "x"
        assert s.node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "row-7"
        assert s.node["spec"]["unschedulable"] is True
        assert s.taints() == {"maintenance"}


async def test_a_node_of_a_real_kubelet_is_left_alone() -> None:
    made = Scene()
    kubelet: Json = {
        "metadata": {"name": "pbs-alpha", "uid": "real", "resourceVersion": "1"},
        "spec": {},
        "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0"}},
    }
    made.kube.objects[NODE] = kubelet
    await made.start()
    await made.clock.advance(60)
    assert made.kube.writes == []
    assert made.agent.node_uid is None
    await made.stop()


@pytest.mark.parametrize("why", ["not leading", "no API server"])
async def test_without_leave_or_server_nothing_is_written_and_afterwards_all_is_mended(why: str) -> None:
    async with scene() as s:
        await s.clock.advance(20)
        s.allowed, s.kube.down = why != "not leading", why == "no API server"
        writes = len(s.kube.writes)
        await s.clock.advance(400)
        assert len(s.kube.writes) == writes
        s.allowed, s.kube.down = True, False
        await s.clock.advance(20)
        assert s.written(STATUS) > 0
        assert len(s.kube.writes) > writes
