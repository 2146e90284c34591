"""Keeps one virtual node true: registers it, posts its status, renews its lease. Each node on its own.

Level-triggered: every ten seconds, and when the cluster's health or census changes, the Node is read and whatever is
not as it should be is written. So it also mends what others did: the controller's Unknown conditions, a deleted Node,
a lost label. The lease has a loop of its own, which nothing of the cluster can hold up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from bridge.api.settings import Cluster
from bridge.clusters.health import ClusterHealth
from bridge.kube import Json, Kubernetes, paths
from bridge.kube.clock import BackOff, Clock, SystemClock, wait
from bridge.kube.errors import Conflict, Forbidden, KubeError, NotFound
from bridge.kube.events import Recorder
from bridge.nodes import node as pure
from bridge.nodes.capacity import Capacity, capacity
from bridge.nodes.lease import RENEW, NodeLease
from pbs_adapter.models import Census

INTERVAL = 10.0  # s between two looks at the Node
SETTLE = 30.0  # s after the start in which a cluster not reached yet is still being connected to, not unreachable

log = structlog.get_logger(__name__)


def provider_id(cluster: Cluster, instance: str) -> str:
    """The node's providerID; empty: none."""
    if cluster.provider_id is not None:
        return cluster.provider_id
    return f"hpc-bridge://{instance}/{cluster.name}" if instance else ""


class Link(Protocol):
    """What of `clusters.ClusterLink` a node needs."""

    census: Census | None
    on_health: list[Callable[[], None]]

    def health(self) -> ClusterHealth:
        """Whether the cluster can be used now."""


class NodeAgent:
    """One virtual node. `kubelet_address` and `kubelet_port` are what the API server dials.

    instance: names the Kubernetes cluster in the providerID. allowed: whether this process may write (it leads).
    taints: by whom the unreachable taint is written, for a node may not change its own; None: by nobody, the condition
    tells alone.
    """

    def __init__(
        self,
        kube: Kubernetes,
        cluster: Cluster,
        link: Link,
        kubelet_address: str,
        kubelet_port: int,
        clock: Clock | None = None,
        *,
        instance: str = "",
        recorder: Recorder | None = None,
        allowed: Callable[[], bool] = lambda: True,
        taints: Callable[[], Kubernetes | None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._taints = taints
        self._cluster = cluster
        self._link = link
        self._address = kubelet_address
        self._port = kubelet_port
        self._clock = clock or SystemClock()
        self._recorder = recorder
        self._allowed = allowed
        self._lease = NodeLease(kube, cluster.node_name, self._clock)
        self._wake = asyncio.Event()
        self._registered = asyncio.Event()
        self._started = self._clock.monotonic()
        self._reached = False  # by this process, ever
        self._provider_id = provider_id(cluster, instance)
        self._kubernetes: str | None = None
        self._status: Json = {}
        self._told: set[str] = set()  # accounts and tasks in trouble that an Event has been made of
        self.node: Json = {}  # metadata and spec as last read
        self._capacity: tuple[float, Capacity] | None = None
        self.node_uid: str | None = None
        link.on_health.append(self.wake)

    def __repr__(self) -> str:
        return f"<NodeAgent {self._cluster.node_name} uid={self.node_uid}>"

    @property
    def name(self) -> str:
        """Name of the Node."""
        return self._cluster.node_name

    @property
    def allocatable(self) -> dict[str, str] | None:
        """What the Node offers to pods, as last posted; None before the cluster was ever seen."""
        return dict(self._status.get("allocatable") or {}) or None

    def wake(self) -> None:
        """Look at the Node now."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. The Node stays: its pods do, too."""
        self._started = self._clock.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_node(), name=f"{self.name}.status")
            tasks.create_task(self._keep_lease(), name=f"{self.name}.lease")

    async def _keep_node(self) -> None:
        back_off = BackOff(0.3, 7.0)
        while True:
            pause = INTERVAL
            try:
                if self._allowed():
                    await self._look()
                back_off.reset()
            except Conflict:  # a controller wrote the Node between our reading and writing
                pause = back_off.pause()
            except KubeError as error:
                pause = back_off.pause(error.retry_after)
                log.warning("node.not_written", node=self.name, error=str(error), pause=round(pause, 2))
            await wait(self._clock, self._wake, pause)

    async def _keep_lease(self) -> None:
        back_off = BackOff(0.2, 7.0)
        while True:
            await self._registered.wait()
            if self._allowed() and self.node_uid and not await self._lease.renew(self.node_uid):
                await self._clock.sleep(back_off.pause())
                continue
            back_off.reset()
            await self._clock.sleep(RENEW)

    async def _look(self) -> None:
        if self._kubernetes is None:
            self._kubernetes = await self._server_version()
        view = self._view()
        try:
            found = await self._kube.get(paths.node(self.name))
        except NotFound:
            found = await self._kube.create(paths.nodes(), pure.new_node(self._cluster, view, self._clock.time()))
            log.info("node.registered", node=self.name)
        if pure.is_foreign(found):
            log.error("node.name_taken", node=self.name, problem="a kubelet has a node of this name; rename ours")
            self._registered.clear()
            self.node_uid = None
            return
        self.node_uid = found["metadata"]["uid"]
        self.node = {"metadata": found["metadata"], "spec": found["spec"]}
        self._registered.set()
        if patch := pure.metadata_patch(self._cluster, view, found):
            found = await self._kube.patch(paths.node(self.name), patch, kind="merge")
        await self._post_status(view, found)
        self._announce_trouble(view)
        others = self._taints()
        if others is not None and (patch := pure.taints_patch(view, found)):
            patched = await others.patch(paths.node(self.name), patch, kind="merge")
            self._announce(view, patched)

    async def _post_status(self, view: pure.View, found: Json) -> None:
        old = found.get("status") or {}
        now = self._clock.time()
        new = pure.status(self._cluster, view, old, now)
        ours = pure.own_resources(found)
        if pure.must_write(old, new, now, ours):
            body = pure.status_patch(old, new, ours)
            written = await self._kube.patch(paths.node_status(self.name), body)
            found["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
        self._status = new

    def _announce(self, view: pure.View, node: Json) -> None:
        log.info("node.taint", node=self.name, reachable=view.reachable, text=view.message)
        if self._recorder is None:
            return
        about = {"kind": "Node", "metadata": {"name": self.name, "uid": node["metadata"]["uid"]}}
        if view.reachable:
            self._recorder.event(about, "Normal", "ClusterReachable", pure.REACHABLE_MESSAGE)
        else:
            self._recorder.event(about, "Warning", "ClusterUnreachable", view.message)

    def _announce_trouble(self, view: pure.View) -> None:
        """An Event for each account, and each task of the agent, that is in trouble while the cluster can be used."""
        health = self._link.health()
        bad = {name for name, text in health.trouble.items() if text and view.reachable} | set(health.faults)
        if self._recorder is not None and self.node_uid and bad - self._told:
            about = {"kind": "Node", "metadata": {"name": self.name, "uid": self.node_uid}}
            self._recorder.event(about, "Warning", "ClusterDegraded", health.message)
        self._told = bad

    def _view(self) -> pure.View:
        health, census = self._link.health(), self._link.census
        self._reached |= health.reachable
        settling = not self._reached and self._clock.monotonic() - self._started < SETTLE
        offer = self._offer(census) if census is not None else None
        return pure.View(
            address=self._address,
            port=self._port,
            census=census,
            capacity=offer.capacity if offer else {},
            allocatable=offer.allocatable if offer else {},
            reachable=None if settling else health.reachable,
            message=health.message,
            provider_id=self._provider_id,
            kubernetes=self._kubernetes or "",
        )

    async def _server_version(self) -> str:
        try:
            return str((await self._kube.get("/version")).get("gitVersion", ""))
        except (NotFound, Forbidden):
            return ""

    def _offer(self, census: Census) -> Capacity:
        """The capacity that follows from this census, worked out once."""
        if self._capacity is None or self._capacity[0] != census.at:
            self._capacity = census.at, capacity(census, self._cluster, census.host.get("user", ""))
        return self._capacity[1]
