"""Whatever a pod looks like, planning it answers; and a plan without refusals freezes or says what is missing."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from plancases import INSTANCE, NODE, cluster, config_map, container, inputs, pod, secret

from bridge.plan import MissingInput, freeze, plan, refresh

ODD: list[Any] = [
    None, 0, -1, 1.5, True, "", "x", "..", "/a", "\0", "\ud800", "$(A)", [], {}, [None], [[]], [{}], {"a": None},
    {"": 1}, {1: 2}, ["x"], "9" * 50, "1e99", float("nan"), float("inf"), "limits.memory", "metadata.name", 10**400,
]  # fmt: skip
FULL = pod(
    containers=[
        container(
            args=["$(A)"],
            env=[
                {"name": "A", "value": "x"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                {"name": "D", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
            envFrom=[{"prefix": "P_", "configMapRef": {"name": "cm"}}],
            resources={"limits": {"cpu": "1", "memory": "1Gi"}},
            volumeMounts=[{"name": "v", "mountPath": "/v", "subPathExpr": "$(A)"}, {"name": "h", "mountPath": "/h"}],
        )
    ],
    initContainers=[container("i", securityContext={"capabilities": {"drop": ["ALL"]}})],
    volumes=[
        {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "h", "hostPath": {"path": "/x"}},
        {"name": "cm", "configMap": {"name": "cm", "items": [{"key": "k", "path": "p", "mode": 256}]}},
        {"name": "own", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}}]}},
    ],
    activeDeadlineSeconds=60,
    terminationGracePeriodSeconds=5,
    securityContext={"runAsNonRoot": True},
    metadata={"labels": {"a": "b"}, "annotations": {"hpc-bridge.io/walltime": "1h"}},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path in a structure but the root."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutated(random_source: random.Random, paths: list[tuple[Any, ...]]) -> dict[str, Any]:
    """FULL with one place made odd or taken away."""
    given = copy.deepcopy(FULL)
    path = random_source.choice(paths)
    parent: Any = given
    for key in path[:-1]:
        parent = parent[key]
    if random_source.random() < 0.2:
        del parent[path[-1]]
    else:
        parent[path[-1]] = copy.deepcopy(random_source.choice(ODD))
    return given


def test_odd_pods() -> None:
    paths = [p for p in places(FULL) if p not in {("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid")}]
    random_source, where = random.Random(1), cluster(hostPaths=[{"path": "/x"}])
    outcomes = {"refused": 0, "frozen": 0, "missing": 0}
    for _ in range(400):
        given = mutated(random_source, paths)
        planned = plan(given, where)
        if planned.refusals:
            outcomes["refused"] += 1
            continue
        objects = inputs(config_map(data={"k": "v"}), secret(k=b"x"), token="t", refs=planned.inputs)
        try:
            freeze(given, planned, objects, node=NODE, instance=INSTANCE, cluster=where, account="a")
            outcomes["frozen"] += 1
        except MissingInput:
            outcomes["missing"] += 1
        refresh(given, planned, objects, node=NODE)
    assert min(outcomes.values()) > 0, outcomes
