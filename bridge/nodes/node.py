"""The Node object and its status, as a kubelet writes them. Pure.

Nothing on the node side kills running work: a node whose cluster cannot be reached stays Ready, with the condition
ClusterReachable=False and a NoSchedule taint. Ready=False is only ever posted by a node whose cluster has never been
seen, which therefore has no pods.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bridge.api import names
from bridge.api.settings import Cluster
from bridge.kube import Json
from bridge.kube.clock import parse_rfc3339, rfc3339
from bridge.telemetry import VERSION
from pbs_adapter.models import Census

KUBERNETES = "v1.36.0"  # the kubelet whose manners these are
REPORT_EVERY = 300.0  # s between two writes of an unchanged status, as a kubelet does
REACHABLE_MESSAGE = "login node and PBS server answer"
ATTACH_DETACH = "volumes.kubernetes.io/controller-managed-attach-detach"
NEVER_SEEN = "ClusterNotYetSeen"

_IDENTITY = uuid.UUID("6a4c1d0e-5b0f-4d0c-9a57-5a1f2d3b7c11")  # namespace of the nodes' made-up machine ids
_GOARCH = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "ppc64le": "ppc64le"}
_PRESSURE = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


@dataclass(frozen=True, slots=True)
class View:
    """All that a node's status follows from.

    capacity, allocatable: as of `capacity.Capacity`, empty before the first census. reachable: None while it is not
    known yet. message: why it is not reachable, or what is wrong although it is. provider_id: what to give a Node that
    has none; empty: nothing. kubernetes: the version of the API server, empty where it did not say.
    """

    address: str
    port: int
    census: Census | None = None
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    reachable: bool | None = None
    message: str = ""
    provider_id: str = ""
    kubernetes: str = ""


def cluster_taint(cluster: Cluster) -> Json:
    """Keeps pods away that were not sent here; set at creation only, as a kubelet's --register-with-taints."""
    return {"key": names.CLUSTER_TAINT, "value": cluster.name, "effect": "NoSchedule"}


def labels(cluster: Cluster, host: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(labels that are kept so, labels that are only set where there is none: an operator may change them).

    No zone: it would be one that only this node is in, and others' pods that spread over zones wait for room in it.
    """
    kept = {
        names.HOSTNAME_LABEL: cluster.node_name,
        names.OS_LABEL: "linux",
        names.NODE_TYPE_LABEL: names.NODE_TYPE,
        names.CLUSTER_LABEL: cluster.name,
    }
    if machine := host.get("arch"):
        kept[names.ARCH_LABEL] = _GOARCH.get(machine, machine)
    return kept | cluster.labels, {names.EXCLUDE_BALANCERS_LABEL: "true"}


def new_node(cluster: Cluster, view: View, now: float) -> Json:
    """The Node to register. A node may set taints now and never again: others write the unreachable one afterwards."""
    kept, once = labels(cluster, view.census.host if view.census else {})
    spec: Json = {"taints": [cluster_taint(cluster)]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": cluster.node_name,
            "labels": kept | once,
            "annotations": {ATTACH_DETACH: "true", **_own(cluster, view.capacity)},
        },
        "spec": spec | ({"providerID": view.provider_id} if view.provider_id else {}),
        "status": status(cluster, view, {}, now),
    }


def metadata_patch(cluster: Cluster, view: View, node: Json) -> Json | None:
    """Merge patch that restores the labels and annotations of ours; None when they are as they should be.

    To be sent before the status: the names of resources are written down before the Node offers them. A providerID is
    given to a Node that has none; one that is there can never be changed.
    """
    kept, once = labels(cluster, view.census.host if view.census else {})
    metadata = node["metadata"]
    have, noted = metadata.get("labels") or {}, metadata.get("annotations") or {}
    changed: dict[str, str | None] = {key: value for key, value in kept.items() if have.get(key) != value}
    changed |= {key: value for key, value in once.items() if key not in have}
    changed |= {key: None for key in _once_ours(cluster, have, noted) if key not in kept}
    wanted = {ATTACH_DETACH: "true", **_own(cluster, [*view.capacity, *_still_offered(node)])}
    annotations = {key: value for key, value in wanted.items() if noted.get(key) != value}
    patch: Json = {"metadata": {k: v for k, v in (("labels", changed), ("annotations", annotations)) if v}}
    if view.provider_id and not node["spec"].get("providerID"):
        patch["spec"] = {"providerID": view.provider_id}
    return patch if patch != {"metadata": {}} else None


def own_resources(node: Json) -> set[str]:
    """Names of the resources that this agent, or the one before it, offered."""
    return _listed(node["metadata"].get("annotations") or {}, names.OWN_RESOURCES)


def _still_offered(node: Json) -> set[str]:
    """They are forgotten only when the status has them no more."""
    state = node.get("status") or {}
    return own_resources(node) & {*(state.get("capacity") or {}), *(state.get("allocatable") or {})}


def _own(cluster: Cluster, resources: Iterable[str]) -> dict[str, str]:
    listed = {names.OWN_LABELS: sorted(cluster.labels), names.OWN_RESOURCES: sorted(set(resources))}
    return {key: ",".join(found) for key, found in listed.items()}


def _listed(annotations: Mapping[str, str], key: str) -> set[str]:
    return {name for name in annotations.get(key, "").split(",") if name}


def _once_ours(cluster: Cluster, have: Mapping[str, str], noted: Mapping[str, str]) -> set[str]:
    """Labels that the settings gave and give no more.

    Versions that kept no list gave each node a zone of its own name. That one goes once, and is anybody's afterwards.
    """
    zone = names.ZONE_LABEL
    if names.OWN_LABELS not in noted:
        return {zone} if have.get(zone) == cluster.node_name else set()
    return {key for key in _listed(noted, names.OWN_LABELS) if key in have}


def taints_patch(view: View, node: Json) -> Json | None:
    """Merge patch for the unreachable taint; None when it is as it should be. All other taints stay.

    Taints are an atomic list, and controllers write it too: the patch holds only for this version of the Node.
    """
    taints = node["spec"].get("taints") or []
    wanted = with_reachability(taints, view.reachable)
    if wanted == taints:
        return None
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": wanted}}


def with_reachability(taints: Iterable[Json], reachable: bool | None) -> list[Json]:
    """`taints` with or without the unreachable one; as they are while nothing is known."""
    have = list(taints)
    mine = [t for t in have if t["key"] == names.UNREACHABLE_TAINT and t["effect"] == "NoSchedule"]
    if reachable is False and not mine:
        return [*have, {"key": names.UNREACHABLE_TAINT, "effect": "NoSchedule"}]
    if reachable and mine:
        return [t for t in have if t not in mine]
    return have


def is_foreign(node: Json) -> bool:
    """Whether a node of this name belongs to a real kubelet: it must not be touched."""
    runtime = node.get("status", {}).get("nodeInfo", {}).get("containerRuntimeVersion", "")
    return bool(runtime) and not runtime.startswith("pbs://")


def status(cluster: Cluster, view: View, old: Json, now: float) -> Json:
    """The whole status to post. `old` is the status as stored, `{}` for none.

    Without a census (the agent has just started) what the Node said before stays: its pods still run.
    """
    old_conditions = {c["type"]: c for c in old.get("conditions") or []}
    remembered = bool(old.get("capacity"))
    stamp = rfc3339(now)
    conditions = []
    for type_, value, reason, message in _conditions(view, old_conditions, view.census is not None or remembered):
        before = old_conditions.get(type_, {})
        flipped = before.get("status") != value
        conditions.append(
            {
                "type": type_,
                "status": value,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": stamp,
                "lastTransitionTime": stamp if flipped else before.get("lastTransitionTime") or stamp,
            }
        )
    return {
        "capacity": dict(view.capacity) or old.get("capacity") or {},
        "allocatable": dict(view.allocatable) or old.get("allocatable") or {},
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": view.address},
            {"type": "Hostname", "address": view.address},  # an API server may prefer it; the node's name is in no DNS
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": view.port}},
        "nodeInfo": node_info(cluster, view.census, old.get("nodeInfo") or {}, view.kubernetes),
    }


def _conditions(view: View, old: Mapping[str, Json], seen: bool) -> list[tuple[str, str, str, str]]:
    """(type, status, reason, message) in the kubelet's order: Ready last."""
    rows = [(type_, "False", reason, message) for type_, reason, message in _PRESSURE]
    if view.reachable:
        said = f"{REACHABLE_MESSAGE}; {view.message}" if view.message else REACHABLE_MESSAGE
        rows.append((names.CLUSTER_REACHABLE, "True", "ClusterReachable", said))
    elif view.reachable is False:
        rows.append((names.CLUSTER_REACHABLE, "False", "ClusterUnreachable", view.message or "not connected"))
    else:
        last = old.get(names.CLUSTER_REACHABLE, {"status": "Unknown", "reason": "Connecting", "message": "connecting"})
        rows.append((names.CLUSTER_REACHABLE, last["status"], last["reason"], last["message"]))
    if seen:
        rows.append(("Ready", "True", "KubeletReady", "kubelet is posting ready status"))
    else:
        text = f"the cluster has not been seen yet: {view.message or 'connecting'}"
        rows.append(("Ready", "False", NEVER_SEEN, text))
    return rows


def node_info(cluster: Cluster, census: Census | None, old: Json, server: str = "") -> Json:
    """The systemInfo of the node. Ids are made up, and never change: a new bootID would mean a reboot."""

    def made_up(what: str) -> str:
        return str(uuid.uuid5(_IDENTITY, f"{cluster.name}/{cluster.node_name}/{what}"))

    host = census.host if census is not None else {}
    machine = host.get("arch", "")
    return {
        "machineID": made_up("machine").replace("-", ""),
        "systemUUID": made_up("system"),
        "bootID": made_up("boot"),
        "kernelVersion": host.get("kernel") or old.get("kernelVersion", ""),
        "osImage": host.get("os") or old.get("osImage", ""),
        "containerRuntimeVersion": f"pbs://{_pbs_version(census) or _after(old.get('containerRuntimeVersion', ''))}",
        "kubeletVersion": f"{kubelet_version(server)}-hpcbridge.{VERSION}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": _GOARCH.get(machine, machine) or old.get("architecture", ""),
    }


def kubelet_version(server: str) -> str:
    """The version to show: never newer than the API server's, as no kubelet may be.

    >>> kubelet_version("v1.34.2+k3s1"), kubelet_version("v1.37.0"), kubelet_version("")
    ('v1.34.2', 'v1.36.0', 'v1.36.0')
    """
    found = re.match(r"v\d+\.\d+\.\d+", server)
    return min(KUBERNETES, found[0] if found else KUBERNETES, key=lambda v: [int(n) for n in v[1:].split(".")])


def _pbs_version(census: Census | None) -> str:
    return str(census.server.version) if census is not None else ""


def _after(runtime: str) -> str:
    return runtime.partition("://")[2] or "unknown"


def must_write(old: Json, new: Json, now: float, ours: Iterable[str] = ()) -> bool:
    """Whether the status is to be written: something changed, or the last write is `REPORT_EVERY` seconds old.

    ours: as for `status_patch`.

    The text of ClusterReachable alone (each attempt may fail differently) is no reason before a minute has passed.
    """
    before = {c["type"]: c for c in old.get("conditions") or []}
    age = now - min((parse_rfc3339(before.get(c["type"], {}).get("lastHeartbeatTime")) or 0) for c in new["conditions"])
    if age >= REPORT_EVERY:
        return True
    for condition in new["conditions"]:
        keys = ["status", "reason"]
        if condition["type"] != names.CLUSTER_REACHABLE or age >= 60:
            keys.append("message")
        if any(before[condition["type"]].get(key) != condition[key] for key in keys):
            return True
    parts = ("capacity", "allocatable", "nodeInfo")
    if any((old.get(part) or {}).get(key) != value for part in parts for key, value in new[part].items()):
        return True
    if any(name in (old.get(part) or {}) and name not in new[part] for part in parts[:2] for name in ours):
        return True
    return any((old.get(part) or None) != new[part] for part in ("addresses", "daemonEndpoints"))


def status_patch(old: Json, new: Json, ours: Iterable[str]) -> Json:
    """Strategic merge patch of the status. `ours`: resources that the bridge has offered; those gone are taken back.

    Resources and conditions of others (device plugins by hand, node-problem-detector) stay.
    """
    body = dict(new)
    for part in ("capacity", "allocatable"):
        gone = {name: None for name in ours if name in (old.get(part) or {}) and name not in new[part]}
        body[part] = {**new[part], **gone}
    body["$setElementOrder/conditions"] = [{"type": c["type"]} for c in new["conditions"]]
    return {"status": body}
