"""The JSON patch that opens a pod's gate, or lets a cluster take an open pod too. Pure.

It tests what it rests on (the pod's UID, the gate's and the tolerations' places), so that a change by somebody else
makes it fail as a whole instead of doing something else.
"""

from __future__ import annotations

from typing import Any

from bridge.api import names

Json = dict[str, Any]
Patch = list[Json]
NODE_GONE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
DEFAULTS = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300} for key in NODE_GONE]
"""What the API server gives to pods that say nothing of lost nodes; anything else was written by somebody."""


def patch(
    pod: Json,
    cluster: str | None,
    annotation: str,
    *,
    selector: bool = False,
    queue: str | None = None,
    one_domain: bool = False,
) -> Patch:
    """Open the gate if it is there. cluster: who may take the pod besides local nodes; selector: nobody else may.

    annotation: what is written of the choice. queue: the PBS queue that the rule names. one_domain: the rule
    requires a single NUMA domain.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    changes: Patch = [{"op": "test", "path": "/metadata/uid", "value": metadata["uid"]}]
    for index, gate in enumerate(spec.get("schedulingGates") or []):
        if gate.get("name") == names.GATE:
            path = f"/spec/schedulingGates/{index}"
            changes += [{"op": "test", "path": f"{path}/name", "value": names.GATE}, {"op": "remove", "path": path}]
    written = {names.ROUTED: annotation}
    if queue is not None:
        written[names.QUEUE] = queue
    if one_domain:
        written[names.NUMA] = "require"
    changes += _entries("/metadata/annotations", metadata.get("annotations"), written)
    if cluster is not None:
        changes += _tolerations(spec.get("tolerations"), cluster)
        if selector:
            wanted = {names.NODE_TYPE_LABEL: names.NODE_TYPE, names.CLUSTER_LABEL: cluster}
            changes += _entries("/spec/nodeSelector", spec.get("nodeSelector"), wanted)
    return changes


def tolerated(pod: Json) -> set[str]:
    """The clusters that the pod names in tolerations."""
    found = pod["spec"].get("tolerations") or []
    return {str(t.get("value")) for t in found if t.get("key") == names.CLUSTER_TAINT and t.get("value")}


def _entries(path: str, have: Json | None, wanted: dict[str, str]) -> Patch:
    """Set entries of a map that may not be there yet."""
    if have is None:
        return [{"op": "test", "path": path, "value": None}, {"op": "add", "path": path, "value": wanted}]
    return [
        {"op": "add", "path": f"{path}/{key.replace('~', '~0').replace('/', '~1')}", "value": value}
        for key, value in wanted.items()
        if have.get(key) != value
    ]


def _tolerations(have: list[Json] | None, cluster: str) -> Patch:
    """The cluster's taints, and the default ones of lost nodes without their limit: adding others would not help.

    That of an unreachable cluster is among them: pods that run there go on, and tools that look for pods on nodes whose
    taints they do not tolerate (descheduler) shall not end them. A limit that an author wrote stays.
    """
    own = [
        {"key": names.CLUSTER_TAINT, "operator": "Equal", "value": cluster, "effect": "NoSchedule"},
        {"key": names.UNREACHABLE_TAINT, "operator": "Exists", "effect": "NoSchedule"},
    ]
    path = "/spec/tolerations"
    if have is None:
        return [{"op": "test", "path": path, "value": None}, {"op": "add", "path": path, "value": own}]
    changes: Patch = []
    for index, each in enumerate(have):
        if each in DEFAULTS:
            place = f"{path}/{index}"
            changes += [
                {"op": "test", "path": place, "value": each},
                {"op": "remove", "path": f"{place}/tolerationSeconds"},
            ]
    return changes + [{"op": "add", "path": f"{path}/-", "value": each} for each in own if each not in have]
