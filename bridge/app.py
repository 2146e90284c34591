"""Builds the agent from its settings, and names all root tasks in one place.

    status      the agent's own endpoints (always, also while another agent leads)
    leader      holds the Lease; while it does:
      routing     decides where gated pods go, and writes Events about them
      figures     counts pods for the metrics
      and for each cluster
      link        job reports and census
      events      writes Events about its pods
      pods        the pods bound to the node
      node        the Node object, its status and lease
      sweep       jobs whose pod is gone
    tls         certificates of the kubelet port that are renewed
    The kubelet ports are served from the start of leading to its end.

What concerns a virtual node and its pods is done as that node. The agent's own identity holds the Lease and routes.

The first of status and leader that ends, ends the process. A task below the leader that fails is told of, and started
again after a pause: one cluster's trouble, or a bug that one pod or cluster brings to light, is nobody else's.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from bridge.api.settings import Cluster as ClusterSettings
from bridge.api.settings import Settings
from bridge.clusters.connect import connect as connect_cluster
from bridge.clusters.keeping import keep_running
from bridge.clusters.link import ClusterLink
from bridge.clusters.sweep import Sweeper
from bridge.kube import Impersonator, Json, paths
from bridge.kube.client import connect as connect_kubernetes
from bridge.kube.clock import BackOff, SystemClock
from bridge.kube.errors import KubeError, NotFound
from bridge.kube.events import Recorder
from bridge.kube.identity import as_node
from bridge.kube.leader import Leader
from bridge.kube.leading import LeaderOnly
from bridge.kubelet.auth import Gate
from bridge.kubelet.certificate import LIFETIME, self_signed
from bridge.kubelet.endpoint import ProbeEndpoint, StatusEndpoint
from bridge.kubelet.server import KubeletServer
from bridge.kubelet.tls import Material, ServingTls
from bridge.nodes.loop import NodeAgent
from bridge.plan.model import NodeFacts
from bridge.pods.act import Scene
from bridge.pods.inputs import InputSource
from bridge.pods.loop import PodLoop
from bridge.pods.view import NodePods
from bridge.report import report
from bridge.routing.loop import Router
from bridge.routing.run import Routing
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
    events: Recorder
    tls: ServingTls


class Agent:
    """One agent process. `run` returns when it was told to stop."""

    def __init__(self, settings: Settings, kube: Impersonator, metrics: Metrics) -> None:
        self._settings = settings
        self._kube = kube
        self._metrics = metrics
        self._clock = SystemClock()
        identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        agent = settings.agent
        self._leader = Leader(kube, agent.namespace, agent.lease, identity, agent.lease_duration, self._clock)
        self._writes = LeaderOnly(kube, self._leader.valid)
        self._nodes: list[VirtualNode] = []
        self._routing: Routing | None = None
        self._connected = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, or a root task fails."""
        agent, kubelet = self._settings.agent, self._settings.kubelet
        endpoint = StatusEndpoint(self._report, lambda: self._connected, self._metrics, self)
        await endpoint.start(agent.status_listen)
        probes = ProbeEndpoint(lambda: self._connected)
        if agent.probe_port is not None:
            await probes.start(kubelet.bind or kubelet.address, agent.probe_port)
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
            await probes.aclose()

    async def _serve(self) -> None:
        instance = await self._instance()
        self._connected = True

        async def lead(epoch: int) -> None:
            await self._lead(epoch, instance)

        await self._leader.run(lead)

    async def _lead(self, epoch: int, instance: str) -> None:
        agent = self._settings.agent
        async with AsyncExitStack() as closing:
            self._nodes = []
            for cluster in self._settings.clusters:
                self._nodes.append(await self._build(cluster, instance, epoch, closing))
            self._routing = routing = Routing(
                self._kube, self._build_router, agent.namespace, self._clock, enabled=self._settings.routing.enabled
            )
            closing.callback(self._forget_routing)
            async with asyncio.TaskGroup() as tasks:
                for name, run in {"routing": routing.run, "figures": self._count}.items():
                    tasks.create_task(keep_running(name, run, self._clock, self._failed), name=name)
                for parts in self._nodes:
                    self._serve_node(parts, tasks)

    def _serve_node(self, parts: VirtualNode, tasks: asyncio.TaskGroup) -> None:
        def failed(task: str, why: str) -> None:
            parts.link.fault(task, why)
            parts.pods.wake_all()  # whatever was being worked on is looked at again

        runs = {
            "link": parts.link.run, "events": parts.events.run, "tls": parts.tls.run,
            "pods": parts.pods.run, "node": parts.node.run, "sweep": parts.sweep.run,
        }  # fmt: skip
        for name, run in runs.items():
            work = keep_running(name, run, self._clock, failed)
            tasks.create_task(work, name=f"{parts.link.settings.name}.{name}")

    def _failed(self, task: str, why: str) -> None:
        self._metrics.task_failures.labels("", task).inc()

    async def _build(self, cluster: ClusterSettings, instance: str, epoch: int, closing: AsyncExitStack) -> VirtualNode:
        kubelet, name = self._settings.kubelet, cluster.node_name
        identity = as_node(self._kube, name)
        writes = LeaderOnly(identity, self._leader.valid)
        events = self._recorder(writes, name)
        adapter = connect_cluster(cluster, instance, lambda: epoch)
        link = ClusterLink(cluster, adapter, metrics=self._metrics, clock=self._clock)
        await adapter.start()
        closing.push_async_callback(link.aclose)
        node: NodeAgent | None = None

        def facts() -> NodeFacts:
            if node is None:
                return NodeFacts(name, kubelet.address)
            return NodeFacts(name, kubelet.address, node.allocatable or {}, node.node)

        submitted = self._metrics.submit_seconds.labels(cluster.name)
        numa = self._metrics.numa_domains
        scene = Scene(
            kube=writes, link=link, events=events, inputs=InputSource(writes, self._clock),
            clock=self._clock, cluster=cluster, instance=instance, facts=facts, observe_submit=submitted.observe,
            observe_numa=lambda kind, domains: numa.labels(cluster.name, kind).observe(domains),
        )  # fmt: skip
        pods = PodLoop(scene, link, name, self._leader.valid)
        link.on_change.append(pods.wake)
        link.owner_of = pods.owner_of
        link.on_health.append(pods.wake_all)
        link.owner_of = pods.owner_of
        view = NodePods(pods.pods, link, pods.account_of)
        gate = Gate(identity, name, self._clock.monotonic)
        tls = await self._tls(name)
        own_metrics = partial(self._metrics.text_of, cluster.name, name)
        server = KubeletServer(name, view, gate, tls.context, own_metrics, self._clock)
        port = await server.start(kubelet.bind or kubelet.address, cluster.kubelet_port)
        closing.push_async_callback(server.aclose)
        node = NodeAgent(
            writes, cluster, link, kubelet.address, port, self._clock, instance=instance,
            recorder=events, allowed=self._leader.valid, taints=lambda: self._writes if self._router else None,
        )  # fmt: skip
        sweep = Sweeper(
            link, self._known_uids, self._settings.agent.sweep,
            allowed=self._leader.valid, metrics=self._metrics, clock=self._clock,
        )  # fmt: skip
        return VirtualNode(link, pods, view, node, sweep, server, events, tls)

    def _recorder(self, writes: LeaderOnly, host: str) -> Recorder:
        return Recorder(writes, COMPONENT, host, metrics=self._metrics, clock=self._clock, busy=self._in_burst)

    def _build_router(self) -> tuple[Router, Recorder]:
        links = {parts.link.settings.name: parts.link for parts in self._nodes}
        placed = {parts.link.settings.name: parts.pods.pods.items for parts in self._nodes}
        events = self._recorder(self._writes, socket.gethostname())
        router = Router(
            self._writes, links, placed, events, self._clock,
            namespace=self._settings.agent.namespace, allowed=self._leader.valid, metrics=self._metrics,
        )  # fmt: skip
        for link in links.values():
            link.on_health.append(router.wake)
            link.on_change.append(router.wake)
        return router, events

    @property
    def _router(self) -> Router | None:
        return self._routing.router if self._routing is not None else None

    def _forget_routing(self) -> None:
        self._routing = None

    async def explain(self, asked: Json) -> Json:
        """Where a pod would go and why. asked: `pod`, or `namespace` and `name` of one that is there.

        Raises ValueError for what cannot be answered, LookupError for what is not there (yet).
        """
        return await self._routes().explain(asked)

    def clusters(self) -> Json:
        """Room and waits on every cluster. Raises LookupError."""
        return self._routes().clusters()

    def _routes(self) -> Routing:
        if self._routing is None:
            raise LookupError("this agent does not lead; ask the one that does")
        return self._routing

    async def _tls(self, node: str) -> ServingTls:
        kubelet = self._settings.kubelet
        own: tuple[float, tuple[bytes, bytes]] | None = None
        ca = await self._client_ca()

        async def read() -> Material:
            nonlocal own
            if kubelet.cert_file and kubelet.key_file:
                files = Path(kubelet.cert_file), Path(kubelet.key_file)
                pair = await asyncio.to_thread(lambda: (files[0].read_bytes(), files[1].read_bytes()))
            else:
                if own is None or self._clock.time() - own[0] > LIFETIME.total_seconds() / 2:
                    own = self._clock.time(), self_signed(node, kubelet.address)
                pair = own[1]
            return Material(*pair, await self._client_ca(wait=False) or ca)

        return ServingTls(node, await read(), read, self._clock)

    async def _instance(self) -> str:
        """UID of namespace kube-system: tells Kubernetes clusters apart that share an account."""
        namespace = await self._until_answered(paths.namespace("kube-system"))
        return str(namespace["metadata"]["uid"])

    async def _client_ca(self, *, wait: bool = True) -> str | None:
        """What client certificates must come from; None: nobody says. wait: until the API server answers."""
        if file := self._settings.kubelet.client_ca_file:
            return await asyncio.to_thread(Path(file).read_text, encoding="utf-8")
        path = paths.config_map("kube-system", "extension-apiserver-authentication")
        try:
            shared = await (self._until_answered(path) if wait else self._kube.get(path))
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
        routing = self._routing is not None and self._routing.in_burst
        return routing or any(parts.pods.in_burst for parts in self._nodes)

    def _known_uids(self) -> set[str] | None:
        """UIDs of the pods on all of this agent's nodes and of those that the router sees; None until all are known.

        Without routing nobody tells of pods on other nodes, such as one that had another name in bridge.yaml.
        """
        known = [parts.pods.known_uids() for parts in self._nodes]
        if self._routing is None or len(known) < len(self._settings.clusters):
            return None
        known.append(self._routing.living())
        if None in known:
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
        routing = self._routing.problem if self._routing is not None else ""
        return report(links, leading=self._leader.valid(), epoch=self._leader.epoch, routing=routing)


async def run_agent(settings: Settings, kubeconfig: str | None) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    async with connect_kubernetes(kubeconfig, metrics=metrics) as kube:
        await Agent(settings, kube, metrics).run(stop)
