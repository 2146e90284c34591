"""The Node object and the decisions about writing it."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
from censuses import HOST, census, cluster

from bridge.api import names
from bridge.kube import Json
from bridge.nodes.capacity import capacity
from bridge.nodes.loop import provider_id
from bridge.nodes.node import (
    KUBERNETES,
    NEVER_SEEN,
    View,
    is_foreign,
    metadata_patch,
    must_write,
    new_node,
    own_resources,
    status,
    status_patch,
    taints_patch,
)

NOW = 1_796_030_800.0
SEMVER = r"v\d+\.\d+\.\d+(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
CLUSTER = cluster()
OFFER = capacity(census(), CLUSTER)
UP = View("10.0.0.1", 10250, census(), OFFER.capacity, OFFER.allocatable, reachable=True)
DOWN = replace(UP, reachable=False, message="login node does not answer")
JUST_STARTED = View("10.0.0.1", 10250)
CLUSTER_TAINT = {"key": "hpc-bridge.io/cluster", "value": "alpha", "effect": "NoSchedule"}
UNREACHABLE = {"key": "hpc-bridge.io/unreachable", "effect": "NoSchedule"}


def stored(view: View = UP, now: float = NOW) -> Json:
    """A Node as it is after registration with this view."""
    node = copy.deepcopy(new_node(CLUSTER, view, now))
    node["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    return node


def conditions(state: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in state["conditions"]}


def test_a_new_node_looks_like_a_kubelets() -> None:
    node = new_node(CLUSTER, UP, NOW)
    assert node["metadata"]["name"] == "pbs-alpha"
    assert node["metadata"]["labels"] == {
        "kubernetes.io/hostname": "pbs-alpha",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "virtual-kubelet",
        "hpc-bridge.io/cluster": "alpha",
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
    }
    assert node["metadata"]["annotations"] == {
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        "status.hpc-bridge.io/labels": "",
        "status.hpc-bridge.io/resources": "cpu,ephemeral-storage,memory,pods",
    }
    assert node["spec"] == {"taints": [CLUSTER_TAINT]}
    state = node["status"]
    assert [c["type"] for c in state["conditions"]] == [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "ClusterReachable",
        "Ready",
    ]
    assert [(c["status"], c["reason"], c["message"]) for c in state["conditions"]] == [
        ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("True", "ClusterReachable", "login node and PBS server answer"),
        ("True", "KubeletReady", "kubelet is posting ready status"),
    ]
    assert state["addresses"] == [
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "Hostname", "address": "10.0.0.1"},
    ]
    assert state["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}


def test_node_info() -> None:
    info = stored()["status"]["nodeInfo"]
    assert re.fullmatch(SEMVER, info["kubeletVersion"])
    assert info["containerRuntimeVersion"] == "pbs://23.06.06"
    assert (info["osImage"], info["kernelVersion"]) == (HOST["os"], HOST["kernel"])
    assert (info["operatingSystem"], info["architecture"]) == ("linux", "amd64")
    again = stored(replace(UP, census=census(at=NOW + 900), port=1))["status"]["nodeInfo"]
    other = new_node(cluster(name="beta"), UP, NOW)["status"]["nodeInfo"]
    for key in ("machineID", "systemUUID", "bootID"):
        assert info[key] == again[key] != other[key]


def test_a_cluster_that_was_never_seen_is_not_ready_and_offers_nothing() -> None:
    state = stored(JUST_STARTED)["status"]
    assert conditions(state)["Ready"] == ("False", NEVER_SEEN)
    assert conditions(state)["ClusterReachable"] == ("Unknown", "Connecting")
    assert state["capacity"] == state["allocatable"] == {}


@pytest.mark.parametrize("view", [DOWN, JUST_STARTED, replace(JUST_STARTED, reachable=False, message="no")])
def test_a_node_that_was_seen_once_stays_ready_whatever_happens_to_the_cluster(view: View) -> None:
    before = stored()["status"]
    state = status(CLUSTER, view, before, NOW + 60)
    assert conditions(state)["Ready"] == ("True", "KubeletReady")
    for part in ("capacity", "allocatable", "nodeInfo"):
        assert state[part] == before[part]


def test_only_a_flipped_status_moves_the_transition_time() -> None:
    before = stored()["status"]
    after = status(CLUSTER, DOWN, before, NOW + 60)
    moved = {c["type"]: c["lastTransitionTime"] != c2["lastTransitionTime"]
             for c, c2 in zip(after["conditions"], before["conditions"], strict=True)}  # fmt: skip
    assert moved == {
        "MemoryPressure": False,
        "DiskPressure": False,
        "PIDPressure": False,
        "ClusterReachable": True,
        "Ready": False,
    }
    assert {c["lastHeartbeatTime"] for c in after["conditions"]} == {"2026-11-30T09:27:40Z"}


def unknown(state: Json) -> None:
    """What the node-lifecycle controller does to a node that was silent."""
    for condition in state["conditions"]:
        if condition["type"] != names.CLUSTER_REACHABLE:
            condition |= {"status": "Unknown", "reason": "NodeStatusUnknown"}


def fewer_cores(state: Json) -> None:
    state["capacity"]["cpu"] = "1"


def other_port(state: Json) -> None:
    state["daemonEndpoints"] = {"kubeletEndpoint": {"Port": 1}}


def no_conditions(state: Json) -> None:
    del state["conditions"]


def foreign(state: Json) -> None:
    """Things that are none of our business."""
    state["conditions"].append({"type": "NetworkUnavailable", "status": "False"})
    state["capacity"]["example.com/dongle"] = "4"
    state["volumesInUse"] = ["x"]


@pytest.mark.parametrize(
    ("change", "after", "expected"),
    [
        (None, 10, False),
        (None, 299, False),
        (None, 300, True),
        (foreign, 10, False),
        (unknown, 10, True),
        (fewer_cores, 10, True),
        (other_port, 10, True),
        (no_conditions, 10, True),
    ],
)
def test_the_status_is_written_when_it_changed_or_five_minutes_have_passed(
    change: Any, after: float, expected: bool
) -> None:
    old = stored()["status"]
    if change is not None:
        change(old)
    assert must_write(old, status(CLUSTER, UP, old, NOW + after), NOW + after) is expected


@pytest.mark.parametrize(("after", "expected"), [(10, False), (61, True)])
def test_another_text_of_the_same_outage_is_written_once_a_minute(after: float, expected: bool) -> None:
    old = stored(DOWN)["status"]
    new = status(CLUSTER, replace(DOWN, message="connection refused"), old, NOW + after)
    assert must_write(old, new, NOW + after) is expected


def test_the_patch_takes_back_only_what_we_offered() -> None:
    old = stored()["status"]
    old["capacity"] |= {"nvidia.com/gpu": "4", "example.com/dongle": "4"}
    patch = status_patch(old, status(CLUSTER, UP, old, NOW), ours=["cpu", "nvidia.com/gpu"])["status"]
    assert patch["capacity"]["nvidia.com/gpu"] is None
    assert "example.com/dongle" not in patch["capacity"]
    assert patch["$setElementOrder/conditions"][-1] == {"type": "Ready"}


@pytest.mark.parametrize(
    ("taints", "reachable", "expected"),
    [
        ([CLUSTER_TAINT], True, None),
        ([CLUSTER_TAINT], False, [CLUSTER_TAINT, UNREACHABLE]),
        ([CLUSTER_TAINT], None, None),
        ([CLUSTER_TAINT, UNREACHABLE], None, None),
        ([CLUSTER_TAINT, UNREACHABLE], False, None),
        ([UNREACHABLE, {"key": "mine", "effect": "NoExecute"}], True, [{"key": "mine", "effect": "NoExecute"}]),
        ([], True, None),  # an operator removed the cluster's taint: not set again
    ],
)
def test_the_unreachable_taint_comes_and_goes_and_no_other_is_touched(
    taints: list[Json], reachable: bool | None, expected: list[Json] | None
) -> None:
    node = stored()
    node["spec"]["taints"] = taints
    patch = taints_patch(replace(UP, reachable=reachable), node)
    assert (patch and patch["spec"]["taints"]) == expected
    assert patch is None or patch["metadata"] == {"resourceVersion": "7"}


def test_labels_of_ours_are_restored_and_an_operators_stay() -> None:
    node = stored()
    assert metadata_patch(CLUSTER, UP, node) is None
    node["metadata"]["labels"] |= {"team": "x", "type": "wrong", "topology.kubernetes.io/zone": "row-7"}
    del node["metadata"]["labels"]["kubernetes.io/hostname"]
    assert metadata_patch(CLUSTER, UP, node) == {
        "metadata": {"labels": {"kubernetes.io/hostname": "pbs-alpha", "type": "virtual-kubelet"}}
    }


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [("containerd://2.1", True), ("pbs://23.06.06", False), ("pbs://unknown", False), ("", False)],
)
def test_a_node_of_a_real_kubelet_is_recognised(runtime: str, expected: bool) -> None:
    node = stored()
    node["status"]["nodeInfo"]["containerRuntimeVersion"] = runtime
    assert is_foreign(node) is expected


def seen_from(view: View, node: Json, **settings: Any) -> Json:
    """The Node after one look: metadata first, then the status, as the API server merges them."""
    made = cluster(**settings)
    node = copy.deepcopy(node)
    for key, change in (metadata_patch(made, view, node) or {}).items():
        for part, entries in change.items() if key == "metadata" else ():
            node["metadata"][part] = {k: v for k, v in (node["metadata"][part] | entries).items() if v is not None}
        if key == "spec":
            node["spec"] |= change
    ours, old = own_resources(node), node["status"]
    new = status(made, view, old, NOW + 1)
    if must_write(old, new, NOW + 1, ours):
        patch = status_patch(old, new, ours)["status"]
        for part in ("capacity", "allocatable"):
            merged = old[part] | patch[part]
            node["status"][part] = {k: v for k, v in merged.items() if v is not None}
    return node


def test_the_zone_of_an_earlier_version_is_taken_away_once() -> None:
    """It kept other people's pods Pending. What an operator sets stays, also of the same name afterwards."""
    zone = "topology.kubernetes.io/zone"
    node = stored()
    del node["metadata"]["annotations"][names.OWN_LABELS]
    node["metadata"]["labels"][zone] = "pbs-alpha"
    node = seen_from(UP, node)
    assert zone not in node["metadata"]["labels"]
    node["metadata"]["labels"][zone] = "pbs-alpha"
    assert seen_from(UP, node)["metadata"]["labels"][zone] == "pbs-alpha"
    del node["metadata"]["annotations"][names.OWN_LABELS]
    node["metadata"]["labels"][zone] = "row-7"
    assert seen_from(UP, node)["metadata"]["labels"][zone] == "row-7"


def test_labels_of_the_settings_come_and_go_with_them() -> None:
    zone = "topology.kubernetes.io/zone"
    node = seen_from(UP, stored(), labels={zone: "hall-2", "team": "chemistry"})
    assert node["metadata"]["labels"][zone] == "hall-2"
    node["metadata"]["labels"]["mine"] = "yes"
    node = seen_from(UP, node, labels={"team": "physics"})
    have = node["metadata"]["labels"]
    assert (zone in have, have["team"], have["mine"]) == (False, "physics", "yes")
    assert metadata_patch(cluster(labels={"team": "physics"}), UP, node) is None


def test_resources_that_the_settings_dropped_are_taken_back_by_the_next_process() -> None:
    """A node that still offers GPUs is given pods that then fail."""
    gpus = replace(
        UP, capacity={**UP.capacity, "nvidia.com/gpu": "4"}, allocatable={**UP.capacity, "nvidia.com/gpu": "4"}
    )
    node = seen_from(gpus, stored(gpus))
    node["status"]["capacity"]["example.com/dongle"] = node["status"]["allocatable"]["example.com/dongle"] = "1"
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "4"
    assert seen_from(JUST_STARTED, node)["status"]["capacity"]["nvidia.com/gpu"] == "4"  # nothing is known yet
    node = seen_from(UP, node)
    for part in ("capacity", "allocatable"):
        assert set(node["status"][part]) == {*UP.capacity, "example.com/dongle"}
    node = seen_from(UP, node)
    assert node["metadata"]["annotations"][names.OWN_RESOURCES] == "cpu,ephemeral-storage,memory,pods"
    assert metadata_patch(CLUSTER, UP, node) is None


def test_the_provider_id_is_given_once() -> None:
    """By it a cloud provider's controller sees that the node is none of its machines."""
    named = replace(UP, provider_id="hpc-bridge://1-2-3/alpha")
    assert new_node(CLUSTER, named, NOW)["spec"]["providerID"] == "hpc-bridge://1-2-3/alpha"
    assert seen_from(named, stored())["spec"]["providerID"] == "hpc-bridge://1-2-3/alpha"
    other = stored(replace(UP, provider_id="aws://x"))
    assert metadata_patch(CLUSTER, named, other) is None  # it may never change
    assert "providerID" not in new_node(CLUSTER, UP, NOW)["spec"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, "hpc-bridge://1-2-3/alpha"), ({"providerID": "x://y"}, "x://y"), ({"providerID": ""}, "")],
)
def test_which_provider_id(settings: dict[str, Any], expected: str) -> None:
    assert provider_id(cluster(**settings), "1-2-3") == expected


@pytest.mark.parametrize(
    ("server", "expected"),
    [("v1.34.7", "v1.34.7"), ("v1.36.3", KUBERNETES), ("v1.9.0+k3s1", "v1.9.0"), ("odd", KUBERNETES), ("", KUBERNETES)],
)
def test_the_kubelet_is_never_newer_than_the_api_server(server: str, expected: str) -> None:
    shown = new_node(CLUSTER, replace(UP, kubernetes=server), NOW)["status"]["nodeInfo"]["kubeletVersion"]
    assert shown.startswith(f"{expected}-hpcbridge.")
    assert re.fullmatch(SEMVER, shown)
