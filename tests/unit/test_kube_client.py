"""The client against a small HTTP server that misbehaves in the ways API servers and proxies do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.kube import Json, errors
from bridge.kube.client import KubeClient, connect
from bridge.telemetry import Metrics


class Server:
    """Answers with the next of `answers` (callables); keeps what was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[object] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        self.asked.append((request.method, request.path_qs, dict(request.headers)))
        body = await request.read()
        self.bodies.append(json.loads(body) if body else None)
        answer = self.answers.pop(0)
        if callable(answer):
            return await answer(request)  # type: ignore[no-any-return]
        status, value, headers = answer  # type: ignore[misc]
        return web.json_response(value, status=status, headers=headers)


def ok(value: object) -> tuple[int, object, dict[str, str]]:
    """A JSON answer."""
    return 200, value, {}


def fail(status: int, reason: str, **headers: str) -> tuple[int, object, dict[str, str]]:
    """A Status answer."""
    return status, {"kind": "Status", "code": status, "reason": reason, "message": reason}, headers


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@asynccontextmanager
async def client(
    server: Server, tmp_path: Path, user: dict[str, str] | None = None, metrics: Metrics | None = None
) -> AsyncIterator[KubeClient]:
    """A client of `server`, by a kubeconfig with `user` as the user's entry."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    async with TestServer(app) as running:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": str(running.make_url("")).rstrip("/")}}],
            "users": [{"name": "u", "user": user or {}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump(config))
        async with connect(str(file), metrics=metrics) as kube:
            yield kube


async def collect(kube: KubeClient, events: list[tuple[str, Json]]) -> None:
    """Watch until the end, keeping what came before it."""
    async for event in kube.watch("/api/v1/pods", "5"):
        events.append(event)


async def test_a_broken_connection_is_tried_again_once_for_reads(tmp_path: Path) -> None:
    server = Server(hang_up, ok({"kind": "Pod"}))
    async with client(server, tmp_path) as kube:
        assert await kube.get("/api/v1/x") == {"kind": "Pod"}


async def test_a_broken_connection_is_not_tried_again_for_writes(tmp_path: Path) -> None:
    server, metrics = Server(hang_up), Metrics()
    async with client(server, tmp_path, metrics=metrics) as kube:
        with pytest.raises(errors.Unavailable) as caught:
            await kube.create("/api/v1/namespaces/a/pods", {})
    assert caught.value.status == 0
    assert len(server.asked) == 1
    assert b'hpc_bridge_api_writes_total{code="0",resource="pods",verb="create"} 1.0' in metrics.text()


async def test_an_overloaded_server_is_not_asked_again_at_once(tmp_path: Path) -> None:
    server = Server(fail(429, "TooManyRequests", **{"Retry-After": "4"}))
    async with client(server, tmp_path) as kube:
        with pytest.raises(errors.Unavailable) as caught:
            await kube.get("/api/v1/x")
    assert caught.value.retry_after == 4
    assert len(server.asked) == 1


async def test_a_list_is_read_in_pages(tmp_path: Path) -> None:
    server = Server(
        ok({"items": [{"n": 1}], "metadata": {"resourceVersion": "9", "continue": "more"}}),
        ok({"items": [{"n": 2}], "metadata": {"resourceVersion": "9"}}),
    )
    async with client(server, tmp_path) as kube:
        assert await kube.list("/api/v1/pods", field_selector="spec.nodeName=n") == ([{"n": 1}, {"n": 2}], "9")
    assert "fieldSelector=spec.nodeName" in server.asked[0][1]
    assert "continue=more" in server.asked[1][1]


async def test_a_list_whose_token_has_expired_is_read_in_one_piece(tmp_path: Path) -> None:
    server = Server(
        ok({"items": [{"n": 1}], "metadata": {"resourceVersion": "9", "continue": "more"}}),
        fail(410, "Expired"),
        ok({"items": [{"n": 1}, {"n": 2}], "metadata": {"resourceVersion": "12"}}),
    )
    async with client(server, tmp_path) as kube:
        assert await kube.list("/api/v1/pods") == ([{"n": 1}, {"n": 2}], "12")
    assert "limit" not in server.asked[2][1]


async def test_a_token_file_is_read_again_after_401(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    async def refuse(_: web.Request) -> web.StreamResponse:
        token.write_text("new\n")
        return web.Response(status=401)

    server = Server(ok({}), refuse, ok({"kind": "Pod"}))
    async with client(server, tmp_path, {"tokenFile": "token"}) as kube:
        await kube.get("/api/v1/x")
        assert await kube.patch("/api/v1/namespaces/a/pods/b", {"a": 1}) == {"kind": "Pod"}
    assert [headers["Authorization"] for _, _, headers in server.asked] == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_fixed_token_that_is_refused_is_an_error(tmp_path: Path) -> None:
    server = Server(fail(401, "Unauthorized"))
    async with client(server, tmp_path, {"token": "fixed"}) as kube:
        with pytest.raises(errors.KubeError) as caught:
            await kube.get("/api/v1/x")
    assert caught.value.status == 401


async def test_writes_say_what_kind_of_body_they_send(tmp_path: Path) -> None:
    server = Server(*[ok({})] * 4)
    async with client(server, tmp_path) as kube:
        await kube.patch("/p", {"a": 1})
        await kube.patch("/p", {"a": 1}, kind="merge")
        await kube.patch("/p", [{"op": "add"}], kind="json")
        await kube.delete("/p", uid="u1", grace=0)
    assert [headers["Content-Type"] for _, _, headers in server.asked] == [
        "application/strategic-merge-patch+json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/json",
    ]
    assert server.bodies[3] == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u1"},
    }


async def test_a_watch_event_of_any_size_arrives_whole(tmp_path: Path) -> None:
    big = {"type": "ADDED", "object": {"data": "é" * 3_000_000}}
    small = {"type": "BOOKMARK", "object": {"n": 1}}

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps(big).encode() + b"\n" + json.dumps(small).encode() + b"\n")
        return response

    async with client(Server(stream), tmp_path) as kube:
        got = [event async for event in kube.watch("/api/v1/pods", "5")]
    assert got == [("ADDED", big["object"]), ("BOOKMARK", {"n": 1})]


async def test_a_watch_that_breaks_off_or_expires_says_so(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"type":"ADDED","object":{}}\n{"type"')
        assert request.transport is not None
        request.transport.close()
        return response

    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    async with client(Server(cut, ok(gone), ok({"no": "event"})), tmp_path) as kube:
        got: list[tuple[str, Json]] = []
        with pytest.raises(errors.Unavailable):
            await collect(kube, got)
        assert got == [("ADDED", {})]
        with pytest.raises(errors.Gone):
            await collect(kube, got)
        with pytest.raises(errors.Unavailable, match="not a watch event"):
            await collect(kube, got)


async def test_an_answer_that_is_not_json_is_unavailable(tmp_path: Path) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>login</html>")

    async with client(Server(page), tmp_path) as kube:
        with pytest.raises(errors.Unavailable, match="not JSON"):
            await kube.create("/api/v1/namespaces/a/pods", {})


async def test_paths_are_sent_as_they_are(tmp_path: Path) -> None:
    """Dots in a path would lead to another object if anything on the way resolved them."""
    seen: list[str] = []

    async def tell(request: web.Request) -> web.StreamResponse:
        seen.append(request.raw_path)
        return web.json_response({})

    asked = ["/api/v1/namespaces/a/secrets/../../b/secrets/c", "/api/v1/namespaces/a/secrets/%2E%2E", "/api/v1/x%2Fy"]
    server = Server(*([tell] * (len(asked) + 1)))
    async with client(server, tmp_path) as kube:
        for path in asked:
            await kube.get(path)
        await kube.list("/api/v1/pods", field_selector="spec.nodeName=a,b!=c d")
    assert seen[:-1] == asked
    assert seen[-1] == "/api/v1/pods?fieldSelector=spec.nodeName%3Da,b!%3Dc+d&limit=500"
