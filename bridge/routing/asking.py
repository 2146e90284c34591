"""From a pod to what it would be on each cluster, worked out once for all pods of one template."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from bridge.api import names
from bridge.api.settings import Cluster
from bridge.plan.affinity import refusal
from bridge.plan.plan import plan
from bridge.routing.judge import Asked

Json = dict[str, Any]
REMEMBERED = 2000
_TOKENS = re.compile(r"kube-api-access-[a-z0-9]{5}")
# What differs between pods of one template, or changes while they wait, and does not matter to a plan.
_APART = ("schedulingGates", "tolerations", "nodeSelector", "affinity", "hostname", "nodeName")


class Asking:
    """Remembers the answers. `account`: which account of a cluster serves a namespace."""

    def __init__(self, clusters: Mapping[str, Cluster]) -> None:
        self._clusters = clusters
        self._known: OrderedDict[tuple[str, str], Asked] = OrderedDict()

    def asked(self, pod: Json, key: str, cluster: str, account: str | None) -> Asked:
        """The pod on one cluster; `key` is `template(pod)`."""
        at = (key, cluster)
        if at not in self._known:
            self._known[at] = self._ask(pod, self._clusters[cluster], account)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[at]

    def _ask(self, pod: Json, cluster: Cluster, account: str | None) -> Asked:
        planned = plan(pod, cluster)
        refused = [str(each) for each in planned.refusals]
        if account is None:
            refused.append(f"no account of cluster {cluster.name} serves namespace {planned.namespace}")
        wished = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.QUEUE)
        return Asked(planned.options, account, tuple(refused), repr(planned.options), wished, planned.numa)


def template(pod: Json) -> str:
    """Equal for pods that ask the same of a cluster."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if str(k).startswith(names.PREFIX)}
    kept = {name: value for name, value in spec.items() if name not in _APART}
    owners = [owner.get("kind") for owner in metadata.get("ownerReferences") or []]
    whole = [metadata.get("namespace"), annotations, owners, kept]
    return _TOKENS.sub("", json.dumps(whole, sort_keys=True, default=str))


def placement_fields(pod: Json) -> str:
    """Equal for pods that nodes look at alike."""
    spec = pod.get("spec") or {}
    return json.dumps([spec.get(key) for key in ("tolerations", "nodeSelector", "affinity")], sort_keys=True)


def node_refusal(pod: Json, node: Json | None, cluster: str) -> tuple[str, str]:
    """(why the virtual node never takes the pod, why it takes none now); only the cluster's own taint is lifted."""
    if node is None:
        return "", f"the virtual node of {cluster} is not registered yet"
    if (node.get("spec") or {}).get("unschedulable"):
        return "", f"node {node['metadata']['name']} is cordoned"
    said = refusal(pod.get("spec") or {}, node, (names.CLUSTER_TAINT, names.UNREACHABLE_TAINT))
    return (f"{said} (node {node['metadata']['name']})" if said else ""), ""
