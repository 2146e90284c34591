"""What `doctor` sees of others' work that virtual nodes would disturb: DaemonSets and preemption. Pure.

`patch` does what deploy/admission/daemonsets.yaml does to DaemonSets that are made or changed; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from bridge.api import names
from bridge.api.settings import Cluster
from bridge.nodes.node import cluster_taint, labels
from bridge.plan.affinity import refusal

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
REAL_NODE = {"key": names.CLUSTER_LABEL, "operator": "DoesNotExist"}
AGENT = "hpc-bridge"  # its own class, for no pod of others
_PATH = "/spec/template/spec/affinity"


def seen_node(cluster: Cluster, node: Json | None) -> Json:
    """The cluster's node as DaemonSets see it, which mind neither a cordon nor what comes and goes by itself.

    node: as it is there; None: as it will be when the agent registers it.
    """
    if node is None:
        kept, once = labels(cluster, {"arch": "amd64"})
        node = {"metadata": {"name": cluster.node_name, "labels": kept | once}, "spec": {}}
        return node | {"spec": {"taints": [cluster_taint(cluster)]}}
    taints = [
        t
        for t in node["spec"].get("taints") or []
        if t["key"] != names.UNREACHABLE_TAINT and not t["key"].startswith("node.kubernetes.io/")
    ]
    return {"metadata": node["metadata"], "spec": {"taints": taints}}


def lands(daemon_set: Json, node: Json) -> bool:
    """Would a pod of the DaemonSet be bound to the node (as of `seen_node`)?"""
    if (daemon_set["metadata"].get("labels") or {}).get(names.DAEMON_SET_LABEL) == names.DAEMON_SET_ALLOWED:
        return False
    return not refusal(daemon_set["spec"]["template"]["spec"], node)


def patch(daemon_set: Json) -> list[Json]:
    """JSON patch by which the DaemonSet asks for real nodes, besides what it asks for already; empty: it does."""
    affinity = daemon_set["spec"]["template"]["spec"].get("affinity")
    required: Json = {"nodeSelectorTerms": [{"matchExpressions": [REAL_NODE]}]}
    if affinity is None:
        return [{"op": "add", "path": _PATH, "value": {"nodeAffinity": {REQUIRED: required}}}]
    if affinity.get("nodeAffinity") is None:
        return [{"op": "add", "path": f"{_PATH}/nodeAffinity", "value": {REQUIRED: required}}]
    path = f"{_PATH}/nodeAffinity/{REQUIRED}"
    terms = (affinity["nodeAffinity"].get(REQUIRED) or {}).get("nodeSelectorTerms")
    if not terms:
        return [{"op": "add", "path": path, "value": required}]
    changes: list[Json] = []
    for index, term in enumerate(terms):
        place, expressions = f"{path}/nodeSelectorTerms/{index}", term.get("matchExpressions")
        if expressions and REAL_NODE not in [{k: e[k] for k in ("key", "operator")} for e in expressions]:
            changes.append({"op": "add", "path": f"{place}/matchExpressions/-", "value": REAL_NODE})
        elif not expressions and term.get("matchFields"):  # one that says nothing selects nothing
            changes.append({"op": "replace", "path": place, "value": term | {"matchExpressions": [REAL_NODE]}})
    return changes


def command(daemon_set: Json) -> str:
    """The kubectl command that applies `patch`."""
    meta = daemon_set["metadata"]
    change = json.dumps(patch(daemon_set), separators=(",", ":"))
    return f"kubectl -n {meta['namespace']} patch daemonset {meta['name']} --type=json -p '{change}'"


def preempting(classes: Iterable[Json]) -> list[str]:
    """Names of the PriorityClasses whose pods may end others, but for Kubernetes' own and the agent's."""
    return sorted(
        each["metadata"]["name"]
        for each in classes
        if not each["metadata"]["name"].startswith("system-")
        and each["metadata"]["name"] != AGENT
        and each.get("preemptionPolicy", "PreemptLowerPriority") != "Never"
        and each.get("value", 0) > 0
    )
