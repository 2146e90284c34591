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
    """The cluster's taint, and the default ones of lost nodes without their limit: adding others would not help."""
    own = {"key": names.CLUSTER_TAINT, "operator": "Equal", "value": cluster, "effect": "NoSchedule"}
    path = "/spec/tolerations"
    if have is None:
        return [{"op": "test", "path": path, "value": None}, {"op": "add", "path": path, "value": [own]}]
    changes: Patch = []
    for index, each in enumerate(have):
        if each.get("key") in NODE_GONE and each.get("effect") == "NoExecute" and "tolerationSeconds" in each:
            place = f"{path}/{index}"
            changes += [
                {"op": "test", "path": place, "value": each},
                {"op": "remove", "path": f"{place}/tolerationSeconds"},
            ]
    return changes if own in have else [*changes, {"op": "add", "path": f"{path}/-", "value": own}]
