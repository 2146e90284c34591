"""Requests with the agent's credentials, and what the API server must answer: as a kubelet's, and as a router's.

`python -m tests.bench` counts them too. Nothing here imports the other helpers of the end-to-end tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.api import names
from bridge.kube import JsonPatch, Kubernetes, PatchKind, paths
from bridge.kube.client import KubeClient, connect
from bridge.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from bridge.kube.identity import as_node
from bridge.testbed.agent import NAMESPACE, SERVICE_ACCOUNT
from bridge.testbed.control_plane import ControlPlane

Json = dict[str, Any]
OWN, OTHER = "pbs-alpha", "worker-1"
MINE, VICTIM = "identity-mine", "identity-victim"  # namespaces of the pods on OWN and on OTHER
GATE = {"name": names.GATE}
TOKENS = "/api/v1/namespaces/{}/serviceaccounts/{}/token"


@dataclass(frozen=True)
class Request:
    """One request of `who` ("node" or "router"). body: what is sent. allowed: whether it must be."""

    what: str
    who: str
    verb: str
    path: str
    allowed: bool
    body: Json | JsonPatch = field(default_factory=dict)
    kind: PatchKind = "strategic"
    select: str | None = None


def _pod(name: str, node: str | None, **spec: Any) -> Json:
    bound = {"nodeName": node} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "main", "image": "x:1"}], **bound, **spec},
    }


def _node(name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec}


def _lease(name: str, namespace: str = paths.NODE_LEASES) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"holderIdentity": name},
    }


def _eviction(name: str) -> Json:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


def _token(pod: str | None = None, uid: str = "", **spec: Any) -> Json:
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}} if pod else {}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {**bound, **spec}}


def _annotated(key: str, **more: Any) -> Json:
    return {"metadata": {"annotations": {key: "x"}, **more}}


def requests(uids: dict[str, str]) -> Iterator[Request]:
    """The table. uids: of the pods by name, as tokens are bound to them."""
    yield from _as_node(uids)
    yield from _as_router()


def _as_node(uids: dict[str, str]) -> Iterator[Request]:
    def ask(
        what: str, verb: str, path: str, allowed: bool, body: Json | JsonPatch | None = None, **more: Any
    ) -> Request:
        return Request(what, "node", verb, path, allowed, body if body is not None else {}, **more)

    mine, theirs = paths.pod(MINE, "own"), paths.pod(VICTIM, "foreign")
    yield ask("its own Node", "get", paths.node(OWN), True)
    yield ask("a label of its own", "patch", paths.node(OWN), True, {"metadata": {"labels": {"type": names.NODE_TYPE}}})
    yield ask("its own status", "patch", paths.node_status(OWN), True, {"status": {"capacity": {"cpu": "1"}}})
    yield ask(
        "a label of Kubernetes",
        "patch",
        paths.node(OWN),
        False,
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    )
    yield ask("its own taints", "patch", paths.node(OWN), False, {"spec": {"taints": []}}, kind="merge")
    yield ask("removal of its Node", "delete", paths.node(OWN), False)
    yield ask("another Node", "get", paths.node(OTHER), False)
    yield ask("another Node's label", "patch", paths.node(OTHER), False, {"metadata": {"labels": {"x": "y"}}})
    yield ask(
        "another Node's address",
        "patch",
        paths.node_status(OTHER),
        False,
        {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}},
    )
    yield ask("a Node of another name", "create", paths.nodes(), False, _node("worker-2"))
    yield ask("all Nodes", "list", paths.nodes(), False)
    yield ask("its own Lease", "create", paths.leases(paths.NODE_LEASES), True, _lease(OWN))
    yield ask("another's Lease", "create", paths.leases(paths.NODE_LEASES), False, _lease(OTHER))
    yield ask("the controllers' Lease", "create", paths.leases("kube-system"), False, _lease("x", "kube-system"))
    yield ask("its own pods", "list", paths.pods(), True, select=f"spec.nodeName={OWN}")
    yield ask("all pods", "list", paths.pods(), False)
    yield ask("another node's pods", "list", paths.pods(), False, select=f"spec.nodeName={OTHER}")
    yield ask("its own pod", "get", mine, True)
    yield ask("a foreign pod", "get", theirs, False)
    yield ask("its pod's status", "patch", f"{mine}/status", True, {"status": {"message": "x"}})
    yield ask("an annotation with it", "patch", f"{mine}/status", True, _annotated(names.JOB_ID))
    yield ask("a label with it", "patch", f"{mine}/status", False, {"metadata": {"labels": {"app": "y"}}})
    yield ask("a foreign pod's status", "patch", f"{theirs}/status", False, {"status": {"phase": "Failed"}})
    yield ask("its pod itself", "patch", mine, False, _annotated(names.JOB_ID))
    yield ask("its pod's image", "patch", mine, False, {"spec": {"containers": [{"name": "main", "image": "evil"}]}})
    yield ask(
        "a foreign pod's image", "patch", theirs, False, {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
    )
    yield ask("a pod for another node", "create", paths.pods(MINE), False, _pod("planted", OTHER))
    yield ask("a pod for itself", "create", paths.pods(MINE), False, _pod("planted", OWN))
    yield ask(
        "a binding",
        "create",
        f"{paths.pod(MINE, 'free')}/binding",
        False,
        {"metadata": {"name": "free"}, "target": {"kind": "Node", "name": OWN}},
    )
    yield ask("a foreign pod's eviction", "create", f"{theirs}/eviction", False, _eviction("foreign"))
    yield ask("a foreign pod's end", "delete", theirs, False)
    yield ask("a Secret that its pod names", "get", paths.secret(MINE, "named"), True)
    yield ask("a Secret beside it", "get", paths.secret(MINE, "unnamed"), False)
    yield ask("a foreign Secret", "get", paths.secret(VICTIM, "db"), False)
    yield ask("the bridge's own key", "get", paths.secret(NAMESPACE, "hpc-bridge-ssh"), False)
    yield ask("Secrets of a namespace", "list", f"/api/v1/namespaces/{MINE}/secrets", False)
    yield ask("all Secrets", "list", "/api/v1/secrets", False)
    yield ask("a ConfigMap that its pod names", "get", paths.config_map(MINE, "named"), True)
    yield ask("a foreign ConfigMap", "get", paths.config_map(VICTIM, "settings"), False)
    own = _token("own", uids["own"])
    yield ask("its pod's token", "create", TOKENS.format(MINE, "default"), True, own)
    yield ask("a token without a pod", "create", TOKENS.format(MINE, "default"), False, _token())
    yield ask("a token for its pod, of another account", "create", TOKENS.format(MINE, "strong"), False, own)
    yield ask(
        "a token for an audience of nobody",
        "create",
        TOKENS.format(MINE, "default"),
        False,
        _token("own", uids["own"], audiences=["vault"]),
    )
    yield ask(
        "a foreign pod's token", "create", TOKENS.format(VICTIM, "default"), False, _token("foreign", uids["foreign"])
    )
    yield ask("a controller's token", "create", TOKENS.format("kube-system", "namespace-controller"), False, _token())
    yield ask(
        "a caller's token to be judged",
        "create",
        paths.token_reviews(),
        True,
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}},
    )
    yield ask(
        "a caller's right to be judged",
        "create",
        paths.subject_access_reviews(),
        True,
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "x", "resourceAttributes": {"verb": "get", "resource": "nodes", "name": OWN}},
        },
    )
    yield ask(
        "an Event",
        "create",
        paths.events(MINE),
        True,
        {"metadata": {"name": "e1"}, "involvedObject": {"kind": "Pod", "namespace": MINE, "name": "own"}},
    )
    yield ask(
        "a role for itself",
        "create",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        False,
        {
            "metadata": {"name": "planted"},
            "subjects": [],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        },
    )
    yield ask("its pod's end", "delete", mine, True)  # last: what is bound to it goes with it


def _as_router() -> Iterator[Request]:
    def ask(
        what: str, verb: str, path: str, allowed: bool, body: Json | JsonPatch | None = None, **more: Any
    ) -> Request:
        return Request(what, "router", verb, path, allowed, body if body is not None else {}, **more)

    free, gated, theirs = paths.pod(MINE, "free"), paths.pod(MINE, "gated"), paths.pod(VICTIM, "foreign")
    toleration = {"key": names.CLUSTER_TAINT, "operator": "Equal", "value": "alpha", "effect": "NoSchedule"}
    selector = {"spec": {"nodeSelector": {names.CLUSTER_LABEL: "alpha", "type": names.NODE_TYPE}}}
    yield ask("all pods", "list", paths.pods(), True)
    yield ask("all Nodes", "list", paths.nodes(), True)
    yield ask("a selector of its own, gated", "patch", gated, True, selector)
    yield ask("a selector of another's, gated", "patch", gated, False, {"spec": {"nodeSelector": {"zone": "b"}}})
    yield ask(
        "a gate of another's",
        "patch",
        gated,
        False,
        [
            {"op": "test", "path": "/spec/schedulingGates/1/name", "value": "example.org/theirs"},
            {"op": "remove", "path": "/spec/schedulingGates/1"},
        ],
        kind="json",
    )
    yield ask(
        "its gate",
        "patch",
        gated,
        True,
        [
            {"op": "test", "path": "/spec/schedulingGates/0/name", "value": names.GATE},
            {"op": "remove", "path": "/spec/schedulingGates/0"},
            {"op": "add", "path": "/spec/tolerations/-", "value": toleration},
        ],
        kind="json",
    )
    yield ask("a selector without its gate", "patch", paths.pod(MINE, "waiting"), False, selector)
    yield ask("where a pod was sent", "patch", free, True, _annotated(names.ROUTED))
    yield ask("an annotation of others", "patch", free, False, _annotated("example.org/x"))
    yield ask("a label of others", "patch", free, False, {"metadata": {"labels": {"app": "y"}}})
    yield ask(
        "a label of others to be gone", "patch", free, False, {"metadata": {"labels": {"app": None}}}, kind="merge"
    )
    yield ask(
        "a toleration for all",
        "patch",
        free,
        False,
        [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
        kind="json",
    )
    yield ask("an image", "patch", free, False, {"spec": {"containers": [{"name": "main", "image": "evil"}]}})
    yield ask(
        "a foreign pod's image", "patch", theirs, False, {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
    )
    yield ask("a deadline", "patch", theirs, False, {"spec": {"activeDeadlineSeconds": 1}})
    yield ask("a finalizer", "patch", theirs, False, {"metadata": {"finalizers": ["example.org/x"]}}, kind="merge")
    yield ask(
        "an owner",
        "patch",
        theirs,
        False,
        {
            "metadata": {
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "name": "x",
                        "uid": "0d1f5e1c-0000-4000-8000-000000000000",
                    }
                ]
            }
        },
    )
    yield ask("a pod's status", "patch", f"{theirs}/status", False, {"status": {"phase": "Failed"}})
    yield ask("a pod's end", "delete", theirs, False)
    yield ask("a pod", "create", paths.pods(MINE), False, _pod("planted", None))
    yield ask("an eviction", "create", f"{theirs}/eviction", False, _eviction("foreign"))
    yield ask(
        "a binding",
        "create",
        f"{free}/binding",
        False,
        {"metadata": {"name": "free"}, "target": {"kind": "Node", "name": OWN}},
    )
    yield ask(
        "a debug container",
        "patch",
        f"{theirs}/ephemeralcontainers",
        False,
        {"spec": {"ephemeralContainers": [{"name": "d", "image": "evil"}]}},
    )
    tainted = {
        "spec": {
            "taints": [
                {"key": names.CLUSTER_TAINT, "value": "alpha", "effect": "NoSchedule"},
                {"key": names.UNREACHABLE_TAINT, "effect": "NoSchedule"},
            ]
        }
    }
    yield ask("its taint on a virtual node", "patch", paths.node(OWN), True, tainted, kind="merge")
    yield ask(
        "its taint gone again",
        "patch",
        paths.node(OWN),
        True,
        {"spec": {"taints": tainted["spec"]["taints"][:1]}},
        kind="merge",
    )
    evicting = [tainted["spec"]["taints"][0], {"key": names.UNREACHABLE_TAINT, "effect": "NoExecute"}]
    yield ask("a taint that evicts", "patch", paths.node(OWN), False, {"spec": {"taints": evicting}}, kind="merge")
    yield ask("all taints gone", "patch", paths.node(OWN), False, {"spec": {"taints": None}}, kind="merge")
    yield ask("a virtual node's label", "patch", paths.node(OWN), False, {"metadata": {"labels": {"x": "y"}}})
    yield ask("a cordon", "patch", paths.node(OWN), False, {"spec": {"unschedulable": True}})
    yield ask(
        "its taint on a real node",
        "patch",
        paths.node(OTHER),
        False,
        {"spec": {"taints": [{"key": names.UNREACHABLE_TAINT, "effect": "NoSchedule"}]}},
    )
    yield ask(
        "a label that makes a node ours",
        "patch",
        paths.node(OTHER),
        False,
        {"metadata": {"labels": {names.CLUSTER_LABEL: "alpha"}}},
    )
    yield ask("a node's status", "patch", paths.node_status(OWN), False, {"status": {"capacity": {"cpu": "1"}}})
    yield ask("a node", "create", paths.nodes(), False, _node("worker-3"))
    yield ask("a node's end", "delete", paths.node(OWN), False)
    yield ask("a Secret", "get", paths.secret(MINE, "named"), False)
    yield ask("all Secrets", "list", "/api/v1/secrets", False)
    yield ask("a ConfigMap", "get", paths.config_map(VICTIM, "settings"), False)
    yield ask("a token", "create", TOKENS.format(MINE, "default"), False, _token())
    yield ask("a controller's token", "create", TOKENS.format("kube-system", "namespace-controller"), False, _token())
    yield ask("a Lease of a node", "create", paths.leases(paths.NODE_LEASES), False, _lease("worker-4"))
    yield ask(
        "an Event",
        "create",
        paths.events(MINE),
        True,
        {"metadata": {"name": "e2"}, "involvedObject": {"kind": "Pod", "namespace": MINE, "name": "free"}},
    )
    yield ask(
        "a role for itself",
        "create",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        False,
        {
            "metadata": {"name": "planted"},
            "subjects": [],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        },
    )
    for user, groups in (
        ("system:node:worker-1", ["system:nodes"]), ("system:admin", ["system:masters"]),
        (f"system:node:{OWN}", ["system:masters"]),
        ("system:serviceaccount:kube-system:namespace-controller", ["system:serviceaccounts"]),
    ):  # fmt: skip
        yield ask(f"to be {user} of {groups[0]}", f"as {user} {groups[0]}", paths.node(OWN), False)


async def answered(kube: KubeClient, request: Request) -> tuple[bool, str]:
    """Whether the API server allowed it, and what it said. Raises for all that is neither."""
    client: Kubernetes = as_node(kube, OWN) if request.who == "node" else kube
    verb, path = request.verb, request.path
    try:
        if verb.startswith("as "):
            _, user, group = verb.split()
            await kube.acting_as(user, [group]).get(path)
        elif verb == "get":
            await client.get(path)
        elif verb == "list":
            await client.list(path, field_selector=request.select)
        elif verb == "delete":
            await client.delete(path, grace=0)
        elif verb == "patch":
            await client.patch(path, request.body, kind=request.kind)
        elif isinstance(request.body, dict):
            await client.create(path, request.body)
    except Forbidden as error:
        return False, str(error)
    return True, ""


async def prepare(plane: ControlPlane) -> dict[str, str]:
    """What the requests are about; `kubectl apply -k deploy` has been done. UIDs of pods by name."""
    gates = [GATE, {"name": "example.org/theirs"}]
    volumes = [{"name": "s", "secret": {"secretName": "named"}}, {"name": "c", "configMap": {"name": "named"}}]
    async with connect(str(plane.admin_kubeconfig)) as admin:
        await as_node(admin, OWN).create(
            paths.nodes(),
            {
                **_node(OWN, taints=[{"key": names.CLUSTER_TAINT, "value": "alpha", "effect": "NoSchedule"}]),
                "metadata": {"name": OWN, "labels": {names.CLUSTER_LABEL: "alpha"}},
            },
        )
        await admin.create(paths.nodes(), _node(OTHER))
        for namespace in (MINE, VICTIM):
            await admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
            await _once(lambda where=namespace: admin.get(f"/api/v1/namespaces/{where}/serviceaccounts/default"))  # type: ignore[misc]
        await admin.create(f"/api/v1/namespaces/{MINE}/serviceaccounts", {"metadata": {"name": "strong"}})
        secrets, maps = "/api/v1/namespaces/{}/secrets", "/api/v1/namespaces/{}/configmaps"
        for path, name in (
            (secrets.format(MINE), "named"), (secrets.format(MINE), "unnamed"), (secrets.format(VICTIM), "db"),
            (maps.format(MINE), "named"), (maps.format(VICTIM), "settings"),
        ):  # fmt: skip
            await admin.create(path, {"metadata": {"name": name}})
        uids = {}
        for namespace, thing in (
            (MINE, _pod("own", OWN, volumes=volumes)),
            (MINE, _pod("free", None, nodeSelector={"no": "node"})),
            (MINE, _pod("gated", None, schedulingGates=gates)),
            (MINE, _pod("waiting", None, schedulingGates=gates[1:])),
            (VICTIM, _pod("foreign", OTHER)),
        ):
            made = await admin.create(paths.pods(namespace), thing)
            uids[made["metadata"]["name"]] = made["metadata"]["uid"]
        node = as_node(admin, OWN)
        await _once(lambda: node.get(paths.secret(MINE, "named")))  # the authorizer hears of a pod a moment later
        # Policies are in force a moment after they were made.
        planted = _annotated("example.org/planted")
        router = admin.acting_as(f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}", ["system:authenticated"])
        await _refused(lambda: router.patch(f"{paths.pod(MINE, 'free')}?dryRun=All", planted))
        await _refused(lambda: router.patch(f"{paths.node(OTHER)}?dryRun=All", planted))
    return uids


async def _once(ask: Any) -> None:
    for _ in range(600):
        try:
            await ask()
            return
        except (Forbidden, NotFound):
            await asyncio.sleep(0.05)
    raise AssertionError("not there after half a minute")


async def _refused(ask: Any) -> None:
    for _ in range(600):
        try:
            await ask()
        except Forbidden:
            return
        except (Conflict, Invalid):
            pass
        await asyncio.sleep(0.05)
    raise AssertionError("still allowed after half a minute")


async def judged(plane: ControlPlane, folder: Path) -> list[tuple[Request, bool, str]]:
    """Every request with what became of it: (request, as expected, what the API server said)."""
    uids = await prepare(plane)
    account = await asyncio.to_thread(
        plane.service_account_kubeconfig, NAMESPACE, SERVICE_ACCOUNT, folder / "agent.kubeconfig"
    )
    found = []
    async with connect(str(account)) as kube:
        for request in requests(uids):
            try:
                allowed, said = await answered(kube, request)
                found.append((request, allowed == request.allowed, said or "allowed"))
            except KubeError as error:
                found.append((request, False, f"neither allowed nor refused: {error}"))
    return found
