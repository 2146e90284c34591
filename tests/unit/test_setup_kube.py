"""`doctor` and the API server: what each of its answers means. A small HTTP server answers."""

from __future__ import annotations

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
from bridge.setup.checks import Check, State
from bridge.setup.kube_checks import API, KUBELET, RBAC, check_kubernetes

NOW = 1_796_030_800.0
SETTINGS = Settings(clusters=(cluster(),))
HEALTHZ = "/api/v1/nodes/pbs-alpha/proxy/healthz"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/hpc-bridge/leases/hpc-bridge"
VERSION = {"/version": (200, {"gitVersion": "v1.36.0"})}
HELD = {LEASE: (200, {"spec": {"holderIdentity": "me", "renewTime": rfc3339(NOW - 5)}})}
OLD = {LEASE: (200, {"spec": {"holderIdentity": "me", "renewTime": rfc3339(NOW - 500)}})}


def failing(status: int, reason: str, message: str = "no") -> tuple[int, Any]:
    return status, {"kind": "Status", "code": status, "reason": reason, "message": message}


async def checked(tmp_path: Path, answers: Mapping[str, tuple[int, Any]], forbidden: str = "") -> dict[str, Check]:
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
    rows = await checked(tmp_path, {**VERSION, **HELD}, forbidden="get secrets")
    assert (rows[RBAC].state, rows[RBAC].found) == (State.FAILED, "not allowed: get secrets (what pods refer to)")
    assert rows[RBAC].advice == "kubectl apply -k deploy"


async def test_an_api_server_that_refuses(tmp_path: Path) -> None:
    rows = await checked(tmp_path, {"/version": failing(401, "Unauthorized")})
    assert [row.state for row in rows.values()] == [State.FAILED, State.SKIPPED, State.SKIPPED]
    assert "Unauthorized" in rows[API].found
