"""`doctor` and the API server: what each of its answers means. A small HTTP server answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from censuses import cluster

from bridge.api.settings import Settings
from bridge.kube.client import connect
from bridge.kube.clock import rfc3339
from bridge.setup import neighbours
from bridge.setup.checks import Check, State
from bridge.setup.kube_checks import API, DAEMON_SETS, KUBELET, NODE, PREEMPTION, RBAC, check_kubernetes
from bridge.setup.neighbours import REAL_NODE, REQUIRED

NOW = 1_796_030_800.0
SETTINGS = Settings(clusters=(cluster(),))
HEALTHZ = "/api/v1/nodes/pbs-alpha/proxy/healthz"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/hpc-bridge/leases/hpc-bridge"
VERSION = {"/version": (200, {"gitVersion": "v1.36.0"})}
HELD = {LEASE: (200, {"spec": {"holderIdentity": "me", "renewTime": rfc3339(NOW - 5)}})}
OLD = {LEASE: (200, {"spec": {"holderIdentity": "me", "renewTime": rfc3339(NOW - 500)}})}


def failing(status: int, reason: str, message: str = "no") -> tuple[int, Any]:
    return status, {"kind": "Status", "code": status, "reason": reason, "message": message}


async def checked(
    tmp_path: Path, answers: Mapping[str, tuple[int, Any]], forbidden: str = "list secrets"
) -> dict[str, Check]:
    """The rows for an API server that answers so, and 404 to all else; verb on resource `forbidden` is not allowed."""

    async def handle(request: web.Request) -> web.Response:
        if request.path.endswith("selfsubjectaccessreviews"):
            wanted = json.loads(await request.read())["spec"]["resourceAttributes"]
            allowed = f"{wanted['verb']} {wanted['resource']}" != forbidden
            return web.json_response({"status": {"allowed": allowed}}, status=201)
        status, body = answers.get(request.path, failing(404, "NotFound"))
        return (
            web.Response(text=body, status=status) if isinstance(body, str) else web.json_response(body, status=status)
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as running:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": str(running.make_url("")).rstrip("/")}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        async with connect(str(tmp_path / "kubeconfig")) as kube:
            return {check.name: check async for check in check_kubernetes(kube, SETTINGS, NOW)}


@pytest.mark.parametrize(
    ("answers", "state", "text"),
    [
        ({HEALTHZ: (200, "ok")} | HELD, State.OK, "answers through the API server"),
        ({HEALTHZ: (200, "hello")} | HELD, State.FAILED, "another program"),
        ({HEALTHZ: failing(503, "ServiceUnavailable", "connection refused")} | HELD, State.FAILED, "firewall"),
        ({HEALTHZ: failing(403, "Forbidden")} | HELD, State.SKIPPED, "nodes/proxy"),
        ({HEALTHZ: failing(400, "BadRequest", "address not allowed")} | HELD, State.SKIPPED, "loopback"),
        ({} | HELD, State.SKIPPED, "there is no node pbs-alpha yet"),
        ({HEALTHZ: (200, "ok")}, State.SKIPPED, "has never run"),
        ({HEALTHZ: (200, "ok")} | OLD, State.SKIPPED, "the agent does not run"),
        ({HEALTHZ: (200, "ok"), LEASE: failing(403, "Forbidden")}, State.SKIPPED, "Lease cannot be read"),
    ],
)
async def test_the_kubelet_port(
    tmp_path: Path, answers: Mapping[str, tuple[int, Any]], state: State, text: str
) -> None:
    rows = await checked(tmp_path, {**VERSION, **answers})
    row = rows[f"{KUBELET} of pbs-alpha"]
    assert row.state is state
    assert text in f"{row.found} {row.advice}"
    assert (rows[API].state, rows[RBAC].state) == (State.OK, State.OK)


async def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    rows = await checked(tmp_path, {**VERSION, **HELD}, forbidden="impersonate groups")
    assert (rows[RBAC].state, rows[RBAC].found) == (
        State.FAILED,
        "not allowed: impersonate groups system:nodes (to act as a virtual node)",
    )
    assert "hpc-bridge manifests" in rows[RBAC].advice


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@pytest.mark.parametrize(
    ("answer", "forbidden", "state", "text"),
    [
        (
            failing(403, "Forbidden", "can only access node lease with the same name"),
            "list secrets",
            State.OK,
            "kubelet",
        ),
        ((201, {"kind": "Lease"}), "list secrets", State.FAILED, "NodeRestriction"),
        (failing(403, "Forbidden"), "get nodes", State.FAILED, "authorization-mode=Node"),
        (failing(403, "Forbidden"), "", State.FAILED, "ClusterRoleBinding"),
        (failing(403, "Forbidden", 'cannot impersonate resource "users"'), "list secrets", State.SKIPPED, "agent's"),
        (failing(500, "InternalError"), "list secrets", State.FAILED, "cannot be asked"),
    ],
)
async def test_whether_the_api_server_treats_the_agent_as_a_kubelet(
    tmp_path: Path, answer: tuple[int, Any], forbidden: str, state: State, text: str
) -> None:
    row = (await checked(tmp_path, {**VERSION, **HELD, LEASES: answer}, forbidden))[f"{NODE} of pbs-alpha"]
    assert row.state is state, row
    assert text in f"{row.found} {row.advice}"


DAEMONS = "/apis/apps/v1/daemonsets"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def daemon_set(name: str, affinity: Any = None, labels: Any = None, **spec: Any) -> dict[str, Any]:
    template = {"tolerations": [{"operator": "Exists"}], "containers": [], **spec}
    if affinity is not None:
        template["affinity"] = affinity
    return {
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels or {}},
        "spec": {"template": {"spec": template}},
    }


def required(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [*terms]}}}


GPU = {"key": "gpu", "operator": "Exists"}
NOT_Y = {"key": "x", "operator": "NotIn", "values": ["y"]}
N1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (daemon_set("proxy", nodeSelector={"kubernetes.io/os": "linux"}), True),
        (daemon_set("exporter", tolerations=[{"effect": "NoSchedule", "operator": "Exists"}]), True),
        (daemon_set("ordinary", tolerations=[]), False),
        (daemon_set("gpus", nodeSelector={"nvidia.com/gpu": "true"}), False),
        (daemon_set("off", required({"matchExpressions": [REAL_NODE]})), False),
        (daemon_set("old", required({"matchExpressions": [REAL_NODE]}, {"matchExpressions": [NOT_Y]})), True),
        (daemon_set("wanted", labels={"hpc-bridge.io/daemonset": "allowed"}), False),
    ],
)  # fmt: skip
async def test_daemon_sets_that_come_to_virtual_nodes_are_named_with_what_to_do(
    tmp_path: Path, thing: dict[str, Any], expected: bool
) -> None:
    answers = {DAEMONS: (200, {"items": [thing], "metadata": {"resourceVersion": "1"}})}
    row = (await checked(tmp_path, {**VERSION, **HELD, **answers}))[DAEMON_SETS]
    assert row.state is (State.FAILED if expected else State.OK), row
    name = thing["metadata"]["name"]
    assert (f"kubectl -n kube-system patch daemonset {name} --type=json -p '[" in row.advice) == expected


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {},
        {"nodeAffinity": {}},
        {"podAntiAffinity": {}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        required({"matchExpressions": [GPU]}),
        required({"matchExpressions": [GPU]}, {"matchFields": [N1]}, {"matchExpressions": [GPU], "matchFields": [N1]}),
    ],
)
def test_the_patch_keeps_what_a_daemon_set_asks_for(affinity: Any) -> None:
    """It lands nowhere that it did not before, and on no virtual node; done once, it is done."""
    before = daemon_set("d", affinity)
    after = jsonpatched(before, neighbours.patch(before))
    assert neighbours.patch(after) == []
    for gpu in (False, True):
        for virtual in (False, True):
            labels = {"gpu": "1"} if gpu else {}
            labels |= {"hpc-bridge.io/cluster": "alpha"} if virtual else {}
            node = {"metadata": {"name": "n1" if gpu else "n2", "labels": labels}, "spec": {}}
            assert neighbours.lands(after, node) == (neighbours.lands(before, node) and not virtual)


def jsonpatched(thing: dict[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
    done = copy.deepcopy(thing)
    for change in changes:
        *way, last = change["path"].strip("/").split("/")
        place: Any = done
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if last == "-":
            place.append(change["value"])
        elif isinstance(place, list):
            place[int(last)] = change["value"]
        else:
            place[last] = change["value"]
    return done


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ([{"metadata": {"name": "system-node-critical"}, "value": 2000001000}], State.OK),
        ([{"metadata": {"name": "hpc-bridge"}, "value": 1000000000}], State.OK),
        ([{"metadata": {"name": "calm"}, "value": 10, "preemptionPolicy": "Never"}], State.OK),
        ([{"metadata": {"name": "high"}, "value": 10, "preemptionPolicy": "PreemptLowerPriority"}], State.SKIPPED),
    ],
)
async def test_priority_classes_that_end_others_are_named(tmp_path: Path, found: list[Any], state: State) -> None:
    answers = {CLASSES: (200, {"items": found, "metadata": {"resourceVersion": "1"}})}
    row = (await checked(tmp_path, {**VERSION, **HELD, **answers}))[PREEMPTION]
    assert row.state is state
    assert ("high" in row.found) == (state is State.SKIPPED)


async def test_an_api_server_that_refuses(tmp_path: Path) -> None:
    rows = await checked(tmp_path, {"/version": failing(401, "Unauthorized")})
    assert [row.state for row in rows.values()] == [State.FAILED, *[State.SKIPPED] * 5]
    assert "Unauthorized" in rows[API].found
