"""What is rejected before it is accepted: only pods that no scheduler saw, and only when they do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from podcases import pod

from bridge.pods.admission import admit, requests

NODE = {"cpu": "64", "memory": "256Gi", "pods": "3", "nvidia.com/gpu": "4", "ephemeral-storage": "0"}


def asks(cpu: str = "1", *, init: str = "", accepted: bool = False, **more: str) -> dict[str, Any]:
    """A pod with these requests; `accepted`: the node has begun with it."""
    thing = pod()
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, **more}}
    thing["spec"]["tolerations"] = [{"operator": "Exists"}]
    if init:
        resources = {"requests": {"cpu": init}}
        thing["spec"]["initContainers"] = [{"name": "i", "image": "x", "resources": resources}]
    if accepted:
        thing["status"]["startTime"] = "2026-11-30T09:26:40Z"
    return thing


LABELLED: dict[str, Any] = {
    "metadata": {"name": "pbs-alpha", "labels": {"kubernetes.io/os": "linux", "disk": "ssd"}},
    "spec": {
        "unschedulable": True,
        "taints": [
            {"key": "hpc-bridge.io/cluster", "value": "alpha", "effect": "NoSchedule"},
            {"key": "drain", "effect": "NoExecute"},
        ],
    },
}
EXISTS = [{"operator": "Exists"}]


def meant(**spec: Any) -> dict[str, Any]:
    """A pod that tolerates everything, unless told otherwise."""
    thing = asks()
    thing["spec"] |= {"tolerations": EXISTS} | spec
    return thing


def on(key: str, value: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        (meant(), ""),
        (meant(nodeSelector={"disk": "ssd"}), ""),
        (meant(nodeSelector={"disk": "tape"}), "NodeAffinity"),
        (meant(affinity=on("disk", "ssd")), ""),
        (meant(affinity=on("disk", "tape")), "NodeAffinity"),
        (meant(nodeSelector={"kubernetes.io/os": "windows"}), "PodOSSelectorNodeLabelDoesNotMatch"),
        (meant(os={"name": "windows"}), "PodOSNotSupported"),
        (meant(tolerations=[]), "TaintToleration"),
        (meant(tolerations=[{"key": "drain", "operator": "Exists"}]), ""),  # NoSchedule is the scheduler's affair
        (meant(overhead={"cpu": "64"}), "OutOfcpu"),
        (meant(overhead={"cpu": "63"}), ""),
    ],
)
def test_a_pod_that_names_the_node_is_checked_as_by_a_kubelet(thing: dict[str, Any], reason: str) -> None:
    failure = admit(thing, [], NODE, LABELLED)
    assert (failure.reason if failure else "") == reason
    assert failure is None or failure.rejected
    assert admit(thing | {"status": {"conditions": SCHEDULED}}, [], NODE, LABELLED) is None


SCHEDULED = [{"type": "PodScheduled", "status": "True"}]

CASES: list[tuple[str, dict[str, Any], list[dict[str, Any]], str]] = [
    ("fits", asks("64"), [], ""),
    ("too much", asks("64001m"), [], "OutOfcpu"),
    ("beside another", asks("40"), [asks("30", accepted=True)], "OutOfcpu"),
    ("beside one that ended", asks("40"), [asks("30") | {"status": {"phase": "Succeeded"}}], ""),
    ("memory", asks("1", memory="257Gi"), [], "OutOfmemory"),
    ("gpu", asks("1", **{"nvidia.com/gpu": "5"}), [], "OutOfnvidia.com/gpu"),
    ("a resource the node lacks", asks("1", **{"example.com/x": "1"}), [], "OutOfexample.com/x"),
    ("storage is not counted where it is not mapped", asks("1", **{"ephemeral-storage": "0"}), [], ""),
    ("an init container asks most", asks("1", init="65"), [], "OutOfcpu"),
    ("too many pods", asks(), [asks(accepted=True)] * 3, "OutOfpods"),
    ("accepted before", asks("65", accepted=True), [], ""),
    ("the scheduler placed it", asks("65") | {"status": {"conditions": SCHEDULED}}, [], ""),
]


@pytest.mark.parametrize(("thing", "others", "reason"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_admit(thing: dict[str, Any], others: list[dict[str, Any]], reason: str) -> None:
    failure = admit(thing, others, NODE, LABELLED)
    assert (failure.reason if failure else "") == reason


def test_the_api_server_writes_a_thousand_pods_as_1k() -> None:
    assert admit(asks(), [asks(accepted=True)] * 4, NODE | {"pods": "1k"}, LABELLED) is None


def test_the_message_is_the_kubelets() -> None:
    failure = admit(asks("40"), [asks("30", accepted=True)], NODE, LABELLED)
    assert failure is not None
    assert failure.message == "Node didn't have enough resource: cpu, requested: 40000, used: 30000, capacity: 64000"
    assert failure.rejected


def test_requests_are_limits_where_only_these_are_given() -> None:
    thing = pod()
    thing["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1500m", "memory": "1Gi"}}
    assert requests(thing) == {"cpu": 1500, "memory": 1 << 30}
