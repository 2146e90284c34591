"""What `doctor` checks of the Kubernetes side: the API server, the agent's rights, and the kubelet ports.

The rights are what the agent's own requests need; deploy/ grants exactly these (tests compare).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from bridge.api.settings import Cluster, Settings
from bridge.kube import Json, paths
from bridge.kube.client import KubeClient
from bridge.kube.clock import parse_rfc3339
from bridge.kube.errors import Forbidden, KubeError, NotFound
from bridge.kube.identity import NODES, as_node, node_user
from bridge.kube.rights import Need, missing
from bridge.routing import rights as routing
from bridge.setup import neighbours
from bridge.setup.checks import Check, Rows
from bridge.setup.shell import plain

API, RBAC, NODE, KUBELET = "API server", "RBAC", "identity", "kubelet port"
DAEMON_SETS, PREEMPTION = "DaemonSets", "preemption"
NODE_LEASES, AUTHENTICATION = paths.NODE_LEASES, "extension-apiserver-authentication"


def needs(settings: Settings) -> tuple[Need, ...]:
    """All that the agent's own identity may have to do."""
    leases, agent = "coordination.k8s.io", settings.agent
    nodes = [
        Need("", "users", ("impersonate",), "to act as a virtual node", name=node_user(cluster.node_name))
        for cluster in settings.clusters
    ]
    return (
        *nodes,
        Need("", "groups", ("impersonate",), "to act as a virtual node", name=NODES),
        Need("", "namespaces", ("get",), "its UID names this Kubernetes cluster", name="kube-system"),
        Need(leases, "leases", ("create",), "the leader's Lease", agent.namespace),
        Need(leases, "leases", ("get", "patch"), "the leader's Lease", agent.namespace, agent.lease),
        Need("", "configmaps", ("get",), "the CA of kubelet clients", "kube-system", AUTHENTICATION),
        *(routing.needs(agent.namespace) if settings.routing.enabled else ()),
    )


async def check_kubernetes(kube: KubeClient, settings: Settings, now: float) -> AsyncIterator[Check]:
    """The rows of the Kubernetes side. `now`: epoch seconds."""
    rows = Rows("kubernetes")
    try:
        version = await kube.get("/version")
    except KubeError as error:
        yield rows.failed(API, str(error), "is the --kubeconfig right, and can this machine reach the API server?")
        nodes = [cluster.node_name for cluster in settings.clusters]
        each = (f"{what} of {node}" for what in (NODE, KUBELET) for node in nodes)
        for row in rows.unseen((RBAC, DAEMON_SETS, PREEMPTION, *each), API):
            yield row
        return
    yield rows.ok(API, f"{kube.host}, {plain(str(version.get('gitVersion', '')), 40)}")
    yield await _rights(rows, kube, settings)
    for cluster in settings.clusters:
        yield await _as_node(rows, kube, cluster.node_name)
    yield await _daemon_sets(rows, kube, settings)
    yield await _preemption(rows, kube)
    running = await _runs(kube, settings, now)
    for cluster in settings.clusters:
        yield await _kubelet(rows, kube, cluster.node_name, running)


async def _rights(rows: Rows, kube: KubeClient, settings: Settings) -> Check:
    wanted = needs(settings)
    try:
        lacking = await missing(kube, wanted)
    except KubeError as error:
        return rows.failed(RBAC, f"cannot be asked: {error}", "give the agent's kubeconfig")
    if lacking:
        advice = "hpc-bridge manifests -c bridge.yaml | kubectl apply -f -; kubectl apply -k deploy/routing"
        return rows.failed(RBAC, f"not allowed: {'; '.join(lacking)}", advice)
    return rows.ok(RBAC, f"all {sum(len(need.verbs) for need in wanted)} rights that the agent needs")


async def _as_node(rows: Rows, kube: KubeClient, node: str) -> Check:
    """What a kubelet may and may not do, asked as the node: two questions, and a write that changes nothing."""
    name = f"{NODE} of {node}"
    acting = as_node(kube, node)
    try:
        lacking = await missing(acting, (Need("", "nodes", ("get",), "its own Node", name=node),))
        if lacking:
            advice = "kube-apiserver needs --authorization-mode=Node,RBAC, as kubeadm and k3s set it"
            return rows.failed(name, "the API server does not know nodes by their user name", advice)
        if not await missing(acting, (Need("", "secrets", ("list",), "all Secrets"),)):
            return rows.failed(
                name,
                f"{node_user(node)} may list all Secrets",
                "which ClusterRoleBinding gives so much to system:nodes?",
            )
        await acting.create(f"{paths.leases(NODE_LEASES)}?dryRun=All", _lease_of_another(node))
    except Forbidden as error:
        if "impersonate" in str(error):
            return rows.skipped(name, str(error), "give the agent's kubeconfig")
        return rows.ok(name, "judged as a kubelet: its own Node and pods, and no other's")
    except KubeError as error:
        return rows.failed(name, f"cannot be asked: {error}", "give the agent's kubeconfig")
    advice = "start kube-apiserver with --enable-admission-plugins=NodeRestriction, as kubeadm does"
    return rows.failed(name, "a node may write what belongs to another: admission NodeRestriction is off", advice)


def _lease_of_another(node: str) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": f"not-{node}"[:63], "namespace": NODE_LEASES},
        "spec": {},
    }


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
