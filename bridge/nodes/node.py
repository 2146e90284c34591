"""The Node object and its status, as a kubelet writes them. Pure.

Nothing on the node side kills running work: a node whose cluster cannot be reached stays Ready, with the condition
ClusterReachable=False and a NoSchedule taint. Ready=False is only ever posted by a node whose cluster has never been
seen, which therefore has no pods.
"""

from __future__ import annotations

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

    offered: as `capacity.Capacity`, None before the first census. reachable: None while it is not known yet. message:
    why it is not reachable.
    """

    address: str
    port: int
    census: Census | None = None
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    reachable: bool | None = None
    message: str = ""


def cluster_taint(cluster: Cluster) -> Json:
    """Keeps pods away that were not sent here; set at creation only, as a kubelet's --register-with-taints."""
    return {"key": names.CLUSTER_TAINT, "value": cluster.name, "effect": "NoSchedule"}


def labels(cluster: Cluster, host: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(labels that are kept so, labels that are only set where there is none: an operator may change them)."""
    kept = {
        names.HOSTNAME_LABEL: cluster.node_name,
        names.OS_LABEL: "linux",
        names.NODE_TYPE_LABEL: names.NODE_TYPE,
        names.CLUSTER_LABEL: cluster.name,
    }
    if machine := host.get("arch"):
        kept[names.ARCH_LABEL] = _GOARCH.get(machine, machine)
    once = {names.ZONE_LABEL: cluster.node_name, names.EXCLUDE_BALANCERS_LABEL: "true"}
    return kept, once


def new_node(cluster: Cluster, view: View, now: float) -> Json:
    """The Node to register."""
    kept, once = labels(cluster, view.census.host if view.census else {})
    taints = [cluster_taint(cluster)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": cluster.node_name, "labels": kept | once, "annotations": {ATTACH_DETACH: "true"}},
        "spec": {"taints": with_reachability(taints, view.reachable)},
        "status": status(cluster, view, {}, now),
    }


def metadata_patch(cluster: Cluster, view: View, node: Json) -> Json | None:
    """Merge patch that restores the labels and the annotation of ours; None when they are as they should be."""
    kept, once = labels(cluster, view.census.host if view.census else {})
    metadata = node["metadata"]
    have = metadata.get("labels") or {}
    wrong = {key: value for key, value in kept.items() if have.get(key) != value}
    wrong |= {key: value for key, value in once.items() if key not in have}
    patch: Json = {"labels": wrong} if wrong else {}
    if (metadata.get("annotations") or {}).get(ATTACH_DETACH) != "true":
        patch["annotations"] = {ATTACH_DETACH: "true"}
    return {"metadata": patch} if patch else None


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
            {"type": "Hostname", "address": cluster.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": view.port}},
        "nodeInfo": node_info(cluster, view.census, old.get("nodeInfo") or {}),
    }


def _conditions(view: View, old: Mapping[str, Json], seen: bool) -> list[tuple[str, str, str, str]]:
    """(type, status, reason, message) in the kubelet's order: Ready last."""
    rows = [(type_, "False", reason, message) for type_, reason, message in _PRESSURE]
    if view.reachable:
        rows.append((names.CLUSTER_REACHABLE, "True", "ClusterReachable", REACHABLE_MESSAGE))
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


def node_info(cluster: Cluster, census: Census | None, old: Json) -> Json:
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
        "kubeletVersion": f"{KUBERNETES}-hpcbridge.{VERSION}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": _GOARCH.get(machine, machine) or old.get("architecture", ""),
    }


def _pbs_version(census: Census | None) -> str:
    return str(census.server.version) if census is not None else ""


def _after(runtime: str) -> str:
    return runtime.partition("://")[2] or "unknown"


def must_write(old: Json, new: Json, now: float) -> bool:
    """Whether the status is to be written: something changed, or the last write is `REPORT_EVERY` seconds old.

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
    return any((old.get(part) or None) != new[part] for part in ("addresses", "daemonEndpoints"))


def status_patch(old: Json, new: Json, ours: Iterable[str]) -> Json:
    """Strategic merge patch of the status. `ours`: resources that this process has offered; those gone are taken back.

    Resources and conditions of others (device plugins by hand, node-problem-detector) stay.
    """
    body = dict(new)
    for part in ("capacity", "allocatable"):
        gone = {name: None for name in ours if name in (old.get(part) or {}) and name not in new[part]}
        body[part] = {**new[part], **gone}
    body["$setElementOrder/conditions"] = [{"type": c["type"]} for c in new["conditions"]]
    return {"status": body}
