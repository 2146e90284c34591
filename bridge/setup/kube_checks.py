"""What `doctor` checks of the Kubernetes side: the API server, the agent's rights, and the kubelet ports.

The rights are what the agent's own requests need; deploy/ grants exactly these (tests compare).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from bridge.api.settings import Cluster, Settings
from bridge.kube import Json, paths
from bridge.kube.client import KubeClient
from bridge.kube.clock import parse_rfc3339
from bridge.kube.errors import Forbidden, KubeError, NotFound
from bridge.setup import neighbours
from bridge.setup.checks import Check, Rows
from bridge.setup.shell import plain

API, RBAC, KUBELET = "API server", "RBAC", "kubelet port"
DAEMON_SETS, PREEMPTION = "DaemonSets", "preemption"
NODE_LEASES, AUTHENTICATION = paths.NODE_LEASES, "extension-apiserver-authentication"


@dataclass(frozen=True, slots=True)
class Need:
    """Verbs on one resource; `namespace` "" is every namespace, `name` "" every object. `why`: what for."""

    group: str
    resource: str  # with its subresource, as in RBAC rules
    verbs: tuple[str, ...]
    why: str
    namespace: str = ""
    name: str = ""

    def attributes(self, verb: str) -> Json:
        """As in a SelfSubjectAccessReview."""
        resource, _, subresource = self.resource.partition("/")
        found = {"group": self.group, "resource": resource, "subresource": subresource, "verb": verb}
        return {k: v for k, v in {**found, "namespace": self.namespace, "name": self.name}.items() if v}

    def __str__(self) -> str:
        where = f" {self.name}" if self.name else ""
        return f"{self.resource}{where}{f' in {self.namespace}' if self.namespace else ''} ({self.why})"


def needs(namespace: str, lease: str) -> tuple[Need, ...]:
    """All that the agent may have to do; its Lease is `namespace`/`lease`."""
    leases, authorization = "coordination.k8s.io", "authorization.k8s.io"
    return (
        Need("", "nodes", ("get", "list", "watch", "create", "patch"), "the virtual nodes"),
        Need("", "nodes/status", ("patch",), "their status"),
        Need("", "pods", ("get", "list", "watch", "patch", "delete"), "pods bound to them"),
        Need("", "pods/status", ("patch",), "their status"),
        Need("", "configmaps", ("get",), "what pods refer to"),
        Need("", "secrets", ("get",), "what pods refer to"),
        Need("", "serviceaccounts/token", ("create",), "projected tokens"),
        Need("", "events", ("get", "create", "patch"), "Events"),
        Need("", "namespaces", ("get",), "its UID names this Kubernetes cluster", name="kube-system"),
        Need("", "namespaces", ("list", "watch"), "rules select pods by their namespaces' labels"),
        Need("hpc-bridge.io", "routingrules", ("list", "watch"), "RoutingRules"),
        Need("hpc-bridge.io", "routingrules/status", ("patch",), "their status"),
        Need("authentication.k8s.io", "tokenreviews", ("create",), "callers of the kubelet port"),
        Need(authorization, "subjectaccessreviews", ("create",), "callers of the kubelet port"),
        Need(leases, "leases", ("create",), "the leader's Lease", namespace),
        Need(leases, "leases", ("get", "patch"), "the leader's Lease", namespace, lease),
        Need("", "configmaps", ("patch",), "what was learnt of waits", namespace, "hpc-bridge-waits"),
        Need(leases, "leases", ("get", "create", "patch"), "the nodes' Leases", NODE_LEASES),
        Need("", "configmaps", ("get",), "the CA of kubelet clients", "kube-system", AUTHENTICATION),
    )


async def check_kubernetes(kube: KubeClient, settings: Settings, now: float) -> AsyncIterator[Check]:
    """The rows of the Kubernetes side. `now`: epoch seconds."""
    rows = Rows("kubernetes")
    try:
        version = await kube.get("/version")
    except KubeError as error:
        yield rows.failed(API, str(error), "is the --kubeconfig right, and can this machine reach the API server?")
        for row in rows.unseen(
            (RBAC, DAEMON_SETS, PREEMPTION, *(f"{KUBELET} of {c.node_name}" for c in settings.clusters)), API
        ):
            yield row
        return
    yield rows.ok(API, f"{kube.host}, {plain(str(version.get('gitVersion', '')), 40)}")
    yield await _rights(rows, kube, settings)
    yield await _daemon_sets(rows, kube, settings)
    yield await _preemption(rows, kube)
    running = await _runs(kube, settings, now)
    for cluster in settings.clusters:
        yield await _kubelet(rows, kube, cluster.node_name, running)


async def _rights(rows: Rows, kube: KubeClient, settings: Settings) -> Check:
    wanted = [(need, verb) for need in needs(settings.agent.namespace, settings.agent.lease) for verb in need.verbs]
    try:
        allowed = await asyncio.gather(*(_may(kube, need, verb) for need, verb in wanted))
    except KubeError as error:
        return rows.failed(RBAC, f"cannot be asked: {error}", "give the agent's kubeconfig")
    missing = list(_summed((need, verb) for (need, verb), may in zip(wanted, allowed, strict=True) if not may))
    if missing:
        return rows.failed(RBAC, f"not allowed: {'; '.join(missing)}", "kubectl apply -k deploy")
    return rows.ok(RBAC, f"all {len(wanted)} rights that the agent needs")


def _summed(missing: Iterator[tuple[Need, str]]) -> Iterator[str]:
    verbs: dict[Need, list[str]] = {}
    for need, verb in missing:
        verbs.setdefault(need, []).append(verb)
    for need, lacking in verbs.items():
        yield f"{', '.join(lacking)} {need}"


async def _may(kube: KubeClient, need: Need, verb: str) -> bool:
    kind = "SelfSubjectAccessReview"
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": need.attributes(verb)},
    }  # fmt: skip
    answer = await kube.create(paths.self_subject_access_reviews(), body)
    return bool(answer.get("status", {}).get("allowed"))


async def _daemon_sets(rows: Rows, kube: KubeClient, settings: Settings) -> Check:
    """Those that were there before the admission policy: their pods on virtual nodes stop rollouts on real ones."""
    advice = "give a kubeconfig that may list DaemonSets, such as an administrator's"
    try:
        found, _ = await kube.list(paths.daemon_sets())
        nodes = [await _node(kube, cluster) for cluster in settings.clusters]
    except Forbidden as error:
        return rows.skipped(DAEMON_SETS, str(error), advice)
    except KubeError as error:
        return rows.failed(DAEMON_SETS, str(error), "is the API server well?")
    landing = [each for each in found if any(neighbours.lands(each, node) for node in nodes)]
    if not landing:
        return rows.ok(DAEMON_SETS, f"none of {len(found)} comes to virtual nodes")
    named = ", ".join(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in landing)
    text = f"pods that are never run come to virtual nodes, and stop the rollouts of {named}"
    return rows.failed(DAEMON_SETS, text, "\n".join(neighbours.command(each) for each in landing))


async def _node(kube: KubeClient, cluster: Cluster) -> Json:
    try:
        return neighbours.seen_node(cluster, await kube.get(paths.node(cluster.node_name)))
    except NotFound:
        return neighbours.seen_node(cluster, None)


async def _preemption(rows: Rows, kube: KubeClient) -> Check:
    try:
        found = neighbours.preempting((await kube.list(paths.priority_classes()))[0])
    except KubeError as error:
        return rows.skipped(PREEMPTION, str(error), "give a kubeconfig that may list PriorityClasses")
    if not found:
        return rows.ok(PREEMPTION, "no PriorityClass lets pods end others")
    text = f"pods of {', '.join(found)} may end running jobs, for a place in the queue"
    return rows.skipped(PREEMPTION, text, "give pods for clusters a PriorityClass with preemptionPolicy: Never")


async def _runs(kube: KubeClient, settings: Settings, now: float) -> str:
    """Why the agent is not taken to run; empty: it holds its Lease."""
    agent = settings.agent
    try:
        spec = (await kube.get(paths.lease(agent.namespace, agent.lease))).get("spec", {})
    except NotFound:
        return "the agent has never run"
    except KubeError as error:
        return f"the agent's Lease cannot be read: {error}"
    renewed = parse_rfc3339(spec.get("renewTime")) or 0.0
    alive = spec.get("holderIdentity") and now - renewed < 2 * agent.lease_duration
    return "" if alive else "the agent does not run"


async def _kubelet(rows: Rows, kube: KubeClient, node: str, not_running: str) -> Check:
    """A kubelet port exists only while the agent runs; nothing is bound in its place, which would prove little."""
    name = f"{KUBELET} of {node}"
    if not_running:
        return rows.skipped(name, not_running, "start it (hpc-bridge run), then run this again")
    try:
        answer = await kube.text(paths.node_proxy(node, "healthz"))
    except NotFound:
        return rows.skipped(name, f"there is no node {node} yet", "see `hpc-bridge status`, then run this again")
    except Forbidden as error:
        return rows.skipped(name, str(error), "give a kubeconfig that may get nodes/proxy, such as an administrator's")
    except KubeError as error:
        if error.status == 400 and "address not allowed" in str(error):
            found = "kubelet.address is a loopback address, to which the API server relays nothing but logs"
            return rows.skipped(
                name, found, "fine if the API server runs on this machine: try kubectl logs; else set it"
            )
        advice = "kubelet.address and kubeletPort must be what the API server can dial; is a firewall between them?"
        return rows.failed(name, str(error), advice)
    if answer.strip() != "ok":
        return rows.failed(name, f"answers {plain(answer, 80)!r}", "does another program listen on that port?")
    return rows.ok(name, "answers through the API server")
