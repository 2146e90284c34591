"""Builds the agent from its settings, and names all root tasks in one place.

    status      the agent's own endpoint (always, also while another agent leads)
    leader      holds the Lease; while it does:
      events      writes Events
      routing     decides where gated pods go
      figures     counts pods for the metrics
      and for each cluster
      link        job reports and census
      pods        the pods bound to the node
      node        the Node object, its status and lease
      sweep       jobs whose pod is gone
    The kubelet ports are served from the start of leading to its end.

The first of status and leader that ends, ends the process. A task below the leader that fails is told of, and started
again after a pause: one cluster's trouble, or a bug that one pod or cluster brings to light, is nobody else's.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from bridge.api.settings import Cluster as ClusterSettings
from bridge.api.settings import Settings
from bridge.clusters.connect import connect as connect_cluster
from bridge.clusters.keeping import keep_running
from bridge.clusters.link import ClusterLink
from bridge.clusters.sweep import Sweeper
from bridge.kube import Json, Kubernetes, paths
from bridge.kube.client import connect as connect_kubernetes
from bridge.kube.clock import BackOff, SystemClock
from bridge.kube.errors import Invalid, KubeError, NotFound
from bridge.kube.events import Recorder
from bridge.kube.leader import Leader
from bridge.kube.leading import LeaderOnly
from bridge.kubelet.auth import Gate
from bridge.kubelet.certificate import self_signed, server_context
from bridge.kubelet.endpoint import StatusEndpoint
from bridge.kubelet.server import KubeletServer
from bridge.nodes.loop import NodeAgent
from bridge.plan.model import NodeFacts
from bridge.pods.act import Scene
from bridge.pods.inputs import InputSource
from bridge.pods.loop import PodLoop
from bridge.pods.view import NodePods
from bridge.report import report
from bridge.routing.loop import Router
from bridge.telemetry import Metrics

log = structlog.get_logger(__name__)
COMPONENT = "hpc-bridge"
COUNT_EVERY = 5.0


@dataclass(slots=True)
class VirtualNode:
    """The parts that stand for one cluster."""

    link: ClusterLink
    pods: PodLoop
    view: NodePods
    node: NodeAgent
    sweep: Sweeper
    server: KubeletServer


class Agent:
    """One agent process. `run` returns when it was told to stop."""

    def __init__(self, settings: Settings, kube: Kubernetes, metrics: Metrics) -> None:
        self._settings = settings
        self._kube = kube
        self._metrics = metrics
        self._clock = SystemClock()
        identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        agent = settings.agent
        self._leader = Leader(kube, agent.namespace, agent.lease, identity, agent.lease_duration, self._clock)
        self._writes = LeaderOnly(kube, self._leader.valid)
        self._recorder = Recorder(
            self._writes, COMPONENT, socket.gethostname(), metrics=metrics, clock=self._clock, busy=self._in_burst
        )
        self._nodes: list[VirtualNode] = []
        self._router: Router | None = None
        self._connected = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, or a root task fails."""
        endpoint = StatusEndpoint(self._report, lambda: self._connected, self._metrics, self)
        await endpoint.start(self._settings.agent.status_listen)
        leading = asyncio.ensure_future(self._serve())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([leading, stopping], return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
        finally:
            for task in (leading, stopping):
                task.cancel()
            await asyncio.gather(leading, stopping, return_exceptions=True)
            await endpoint.aclose()

    async def _serve(self) -> None:
        instance, client_ca = await self._instance(), await self._client_ca()
        self._connected = True

        async def lead(epoch: int) -> None:
            await self._lead(epoch, instance, client_ca)

        await self._leader.run(lead)

    async def _lead(self, epoch: int, instance: str, client_ca: str | None) -> None:
        async with AsyncExitStack() as closing:
            self._nodes = []
            for cluster in self._settings.clusters:
                self._nodes.append(await self._build(cluster, instance, epoch, client_ca, closing))
            self._router = router = self._build_router()
            closing.callback(self._forget_router)
            async with asyncio.TaskGroup() as tasks:
                for name, run in {"events": self._recorder.run, "routing": router.run, "figures": self._count}.items():
                    tasks.create_task(keep_running(name, run, self._clock, self._failed), name=name)
                for parts in self._nodes:
                    self._serve_node(parts, tasks)

    def _serve_node(self, parts: VirtualNode, tasks: asyncio.TaskGroup) -> None:
        def failed(task: str, why: str) -> None:
            parts.link.fault(task, why)
            parts.pods.wake_all()  # whatever was being worked on is looked at again

        runs = {"link": parts.link.run, "pods": parts.pods.run, "node": parts.node.run, "sweep": parts.sweep.run}
        for name, run in runs.items():
            work = keep_running(name, run, self._clock, failed)
            tasks.create_task(work, name=f"{parts.link.settings.name}.{name}")

    def _failed(self, task: str, why: str) -> None:
        self._metrics.task_failures.labels("", task).inc()

    async def _build(
        self, cluster: ClusterSettings, instance: str, epoch: int, client_ca: str | None, closing: AsyncExitStack
    ) -> VirtualNode:
        kubelet, name = self._settings.kubelet, cluster.node_name
        adapter = connect_cluster(cluster, instance, lambda: epoch)
        link = ClusterLink(cluster, adapter, metrics=self._metrics, clock=self._clock)
        await adapter.start()
        closing.push_async_callback(link.aclose)
        node: NodeAgent | None = None

        def facts() -> NodeFacts:
            return NodeFacts(name, kubelet.address, (node.allocatable if node is not None else None) or {})

        submitted = self._metrics.submit_seconds.labels(cluster.name)
        numa = self._metrics.numa_domains
        scene = Scene(
            kube=self._writes, link=link, events=self._recorder, inputs=InputSource(self._writes, self._clock),
            clock=self._clock, cluster=cluster, instance=instance, facts=facts, observe_submit=submitted.observe,
            observe_numa=lambda kind, domains: numa.labels(cluster.name, kind).observe(domains),
        )  # fmt: skip
        pods = PodLoop(scene, link, name, self._leader.valid)
        link.on_change.append(pods.wake)
        link.on_health.append(pods.wake_all)
        view = NodePods(pods.pods, link, pods.account_of)
        gate = Gate(self._kube, name, self._clock.monotonic)
        server = KubeletServer(name, view, gate, self._tls(name, client_ca), self._metrics, self._clock)
        port = await server.start(kubelet.bind or kubelet.address, cluster.kubelet_port)
        closing.push_async_callback(server.aclose)
        node = NodeAgent(
            self._writes, cluster, link, kubelet.address, port, self._clock,
            instance=instance, recorder=self._recorder, allowed=self._leader.valid,
        )  # fmt: skip
        sweep = Sweeper(
            link, self._known_uids, self._settings.agent.sweep,
            allowed=self._leader.valid, metrics=self._metrics, clock=self._clock,
        )  # fmt: skip
        return VirtualNode(link, pods, view, node, sweep, server)

    def _build_router(self) -> Router:
        links = {parts.link.settings.name: parts.link for parts in self._nodes}
        placed = {parts.link.settings.name: parts.pods.pods.items for parts in self._nodes}
        router = Router(
            self._writes, links, placed, self._recorder, self._clock,
            namespace=self._settings.agent.namespace, allowed=self._leader.valid, metrics=self._metrics,
        )  # fmt: skip
        for link in links.values():
            link.on_health.append(router.wake)
            link.on_change.append(router.wake)
        return router

    def _forget_router(self) -> None:
        self._router = None

    async def explain(self, asked: Json) -> Json:
        """Where a pod would go and why. asked: `pod`, or `namespace` and `name` of one that is there.

        Raises ValueError for what cannot be answered, LookupError for what is not there (yet).
        """
        if self._router is None:
            raise LookupError("this agent does not lead; ask the one that does")
        pod = asked.get("pod")
        if pod is None:
            try:
                where = paths.pod(str(asked.get("namespace") or "default"), str(asked.get("name") or ""))
                pod = await self._kube.get(where)
            except (NotFound, Invalid):
                raise LookupError(f"there is no pod {asked.get('namespace')}/{asked.get('name')}") from None
        return self._router.explain(pod)

    def clusters(self) -> Json:
        """Room and waits on every cluster."""
        if self._router is None:
            raise LookupError("this agent does not lead; ask the one that does")
        return self._router.clusters()

    def _tls(self, node: str, client_ca: str | None) -> ssl.SSLContext:
        kubelet = self._settings.kubelet
        if kubelet.cert_file and kubelet.key_file:
            pair = Path(kubelet.cert_file).read_bytes(), Path(kubelet.key_file).read_bytes()
        else:
            pair = self_signed(node, kubelet.address)
        return server_context(*pair, client_ca)

    async def _instance(self) -> str:
        """UID of namespace kube-system: tells Kubernetes clusters apart that share an account."""
        namespace = await self._until_answered(paths.namespace("kube-system"))
        return str(namespace["metadata"]["uid"])

    async def _client_ca(self) -> str | None:
        if file := self._settings.kubelet.client_ca_file:
            return await asyncio.to_thread(Path(file).read_text, encoding="utf-8")
        try:
            shared = await self._until_answered(paths.config_map("kube-system", "extension-apiserver-authentication"))
        except NotFound:
            return None
        return (shared.get("data") or {}).get("client-ca-file")

    async def _until_answered(self, path: str) -> Json:
        back_off = BackOff()
        while True:
            try:
                return await self._kube.get(path)
            except NotFound:
                raise
            except KubeError as error:
                log.warning("agent.api_server", path=path, error=str(error))
                await self._clock.sleep(back_off.pause(error.retry_after))

    def _in_burst(self) -> bool:
        routing = self._router is not None and self._router.in_burst
        return routing or any(parts.pods.in_burst for parts in self._nodes)

    def _known_uids(self) -> set[str] | None:
        """UIDs of the pods on all of this agent's nodes, and of all living pods; None until all have been listed.

        Those of other nodes count too: a node that was given another name in bridge.yaml has left pods behind.
        """
        living = self._router.watched.living() if self._router is not None else None
        known = [living, *(parts.pods.known_uids() for parts in self._nodes)]
        if len(known) <= len(self._settings.clusters) or None in known:
            return None
        return {uid for uids in known if uids is not None for uid in uids}

    async def _count(self) -> None:
        """Keep the gauge of pods by state true."""
        while True:
            self._metrics.pods.clear()
            for parts in self._nodes:
                for state, count in parts.view.states().items():
                    self._metrics.pods.labels(parts.link.settings.node_name, state).set(count)
            await self._clock.sleep(COUNT_EVERY)

    def _report(self) -> Json:
        links = [(parts.link, parts.view.states()) for parts in self._nodes]
        return report(links, leading=self._leader.valid(), epoch=self._leader.epoch)


async def run_agent(settings: Settings, kubeconfig: str | None) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    async with connect_kubernetes(kubeconfig, metrics=metrics) as kube:
        await Agent(settings, kube, metrics).run(stop)
