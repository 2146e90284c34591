"""Does a pod fit local nodes: room, selectors, taints; and what they say when not."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.plan.affinity import refusal, tolerates
from bridge.routing.local import LocalFit, Locals, asks, prune_bound

Json = dict[str, Any]
READY = [{"type": "Ready", "status": "True"}]


def node(name: str, cpu: str = "4", memory: str = "8Gi", *, ready: bool = True, **fields: Any) -> Json:
    labels = {"kubernetes.io/hostname": name} | fields.pop("labels", {})
    more = fields.pop("more", {})
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": fields,
        "status": {"allocatable": {"cpu": cpu, "memory": memory, **more}, "conditions": READY if ready else []},
    }


def pod(cpu: str = "1", memory: str = "1Gi", where: str = "", **spec: Any) -> Json:
    requests = {"cpu": cpu, "memory": memory} | spec.pop("more", {})
    containers = [{"name": "main", "resources": {"requests": requests}}]
    metadata = {"uid": f"{cpu}-{where}", "name": "p", "namespace": "n", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"containers": containers, "nodeName": where, **spec}}


def local(*nodes: Json, bound: tuple[Json, ...] = ()) -> Locals:
    return Locals(nodes, [prune_bound(each) for each in bound])


VIRTUAL = node("pbs-alpha", "999", labels={"type": "virtual-kubelet"})
TAINT = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
ON_B = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}}  # fmt: skip


@pytest.mark.parametrize(
    ("room", "asked", "now", "ever", "why"),
    [
        (local(), pod(), "", False, "there are no local nodes"),
        (local(VIRTUAL), pod(), "", False, "there are no local nodes"),
        (local(node("a")), pod(), "a", True, ""),
        (local(node("b"), node("a")), pod(), "a", True, ""),
        (local(node("a", "2"), node("b", "4")), pod("3"), "b", True, ""),
        (local(node("a")), pod("5"), "", False, "it is too large for local nodes: asks cpu 5, there is 4"),
        (local(node("a")), pod("1", "9Gi"), "", False, "too large for local nodes: asks memory 9Gi, there is 8Gi"),
        (local(node("a"), bound=(pod("3.5", where="a"),)), pod(), "", True,
         "no local node has room now: asks cpu 1, there is 0.5"),
        (local(node("a"), bound=(pod("3", where="a"), pod("3", where="gone"))), pod(), "a", True, ""),
        (local(node("a", ready=False)), pod(), "", False, "the node is not ready (a)"),
        (local(node("a", unschedulable=True)), pod(), "", False, "the node is cordoned (a)"),
        (local(node("a", taints=[TAINT])), pod(), "", False, "does not tolerate the node's taint dedicated (a)"),
        (local(node("a", taints=[TAINT])), pod(tolerations=[{"operator": "Exists"}]), "a", True, ""),
        (local(node("a", taints=[{**TAINT, "effect": "PreferNoSchedule"}])), pod(), "a", True, ""),
        (local(node("a")), pod(nodeSelector={"disk": "ssd"}), "", False, "its nodeSelector asks for disk=ssd (a)"),
        (local(node("a"), node("b")), pod(affinity=ON_B), "b", True, ""),
        (local(node("a")), pod(more={"nvidia.com/gpu": 1}), "", False, "asks nvidia.com/gpu 1, there is 0"),
        (local(node("a", more={"nvidia.com/gpu": "2"})), pod(more={"nvidia.com/gpu": 1}), "a", True, ""),
        (local(node("a", more={"pods": "1"}), bound=(pod("0", "0", where="a"),)), pod(), "", True, "asks pods 1"),
    ],
)  # fmt: skip
def test_fit(room: Locals, asked: Json, now: str, ever: bool, why: str) -> None:
    found = room.fit(asked)
    assert (found.now, found.ever) == (now, ever)
    assert why in found.why
    assert bool(found.why) == (not now)


def test_room_that_was_set_aside_is_gone() -> None:
    room = local(node("a"))
    for _ in range(4):
        room.take(room.fit(pod()).now, asks(pod()))
    assert room.fit(pod()).now == ""


@pytest.mark.parametrize(
    ("asked", "share"), [(pod("3"), 0.75), (pod("1", "6Gi"), 0.75), (pod("8"), 2.0), (pod("0", "0"), 0.0)]
)
def test_share_of_the_biggest_node(asked: Json, share: float) -> None:
    assert local(node("small", "1"), node("a")).fit(asked).share == share


def test_no_nodes_no_share() -> None:
    assert local().fit(pod()) == LocalFit()


@pytest.mark.parametrize(
    ("toleration", "holds"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"key": "dedicated", "value": "gpu"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "cpu"}, False),
        ({"key": "dedicated", "value": "gpu", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({}, False),
    ],
)
def test_tolerations(toleration: Json, holds: bool) -> None:
    assert tolerates([toleration], TAINT) is holds


@pytest.mark.parametrize(
    ("operator", "values", "holds"),
    [
        ("In", ["fast", "slow"], True),
        ("In", ["slow"], False),
        ("NotIn", ["slow"], True),
        ("NotIn", ["fast"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["7"], False),
        ("Whatever", ["fast"], False),
    ],
)
def test_node_affinity(operator: str, values: list[str], holds: bool) -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": operator, "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = {"affinity": {"nodeAffinity": required}}
    assert (refusal(spec, node("a", labels={"disk": "fast"})) == "") is holds


@pytest.mark.parametrize(("operator", "bound", "holds"), [("Gt", "7", True), ("Gt", "8", False), ("Lt", "9", True)])
def test_node_affinity_by_number(operator: str, bound: str, holds: bool) -> None:
    terms = [{"matchExpressions": []}, {"matchExpressions": [{"key": "n", "operator": operator, "values": [bound]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = {"affinity": {"nodeAffinity": required}}
    assert (refusal(spec, node("a", labels={"n": "8"})) == "") is holds
