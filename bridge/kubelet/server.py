"""One virtual node's kubelet port: logs, health, pods and metrics over HTTPS.

exec, attach and port-forward answer with a clear text until they exist. Only this package imports aiohttp.web.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import structlog
from aiohttp import web

from bridge.kube import Json
from bridge.kube.clock import Clock
from bridge.kubelet.auth import Denied, Gate
from bridge.kubelet.options import BadOption, log_query
from pbs_adapter.errors import AdapterError, Permanent
from pbs_adapter.models import LogQuery

log = structlog.get_logger(__name__)

FIRST_CHUNK = 0.5  # seconds to wait for an error before the answer begins
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NOT_YET = "{what} is not available on hpc-bridge nodes yet (the pod is a PBS job on a cluster); `kubectl logs` is."
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pods(Protocol):
    """What the port shows of a node's pods."""

    def pod(self, namespace: str, name: str) -> Json | None:
        """The pod, when it is bound to this node."""

    def all(self) -> list[Json]:
        """Every pod of this node."""

    def logs(self, pod: Json, query: LogQuery) -> AsyncIterator[bytes]:
        """The container's log as kubectl prints it."""


class KubeletServer:
    """Serves one node from `start` until `aclose`."""

    def __init__(
        self, node: str, pods: Pods, gate: Gate, tls: ssl.SSLContext, metrics: Callable[[], bytes], clock: Clock
    ) -> None:
        self._node = node
        self._pods = pods
        self._gate = gate
        self._tls = tls
        self._metrics_of = metrics
        self._clock = clock
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, port: int) -> int:
        """Listen; return the port."""
        app = web.Application(middlewares=[self._authorise])
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/pods", self._list)
        app.router.add_get("/runningpods/", self._list)
        app.router.add_get("/metrics", self._metrics)
        for verb in ("exec", "attach", "portForward", "run"):
            app.router.add_route("*", f"/{verb}/{{rest:.*}}", self._not_yet)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        await web.SockSite(self._runner, listener, ssl_context=self._tls).start()
        return int(listener.getsockname()[1])

    async def aclose(self) -> None:
        """Stop listening and end open answers."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authorise(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        peer = request.transport.get_extra_info("peercert") if request.transport is not None else None
        try:
            await self._gate.check(request.method, request.path, peer, request.headers.get("Authorization", ""))
        except Denied as denied:
            return web.Response(status=denied.status, text=str(denied))
        return await handler(request)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _list(self, _request: web.Request) -> web.Response:
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._pods.all()}
        return web.Response(text=json.dumps(body), content_type="application/json")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics_of(), headers={"Content-Type": METRICS_TYPE})

    async def _not_yet(self, request: web.Request) -> web.Response:
        what = {"exec": "exec", "attach": "attach", "portForward": "port-forward", "run": "run"}
        return web.Response(status=501, text=NOT_YET.format(what=what[request.path.strip("/").split("/")[0]]))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        info = request.match_info
        pod = self._pods.pod(info["namespace"], info["pod"])
        if pod is None:
            return web.Response(status=404, text=f"pod {info['pod']!r} does not exist on node {self._node}")
        names = [c["name"] for key in ("initContainers", "containers") for c in pod["spec"].get(key, [])]
        if info["container"] not in names:
            text = f'container "{info["container"]}" not found in pod "{info["pod"]}"'
            return web.Response(status=404, text=text)
        try:
            query = log_query(info["container"], request.query, self._clock.time())
        except BadOption as bad:
            return web.Response(status=bad.status, text=str(bad))
        try:
            chunks = self._pods.logs(pod, query)
        except AdapterError as error:
            return _error_response(error)
        return await self._stream(request, chunks)

    async def _stream(self, request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        """Send `chunks`; an error that comes before anything was sent becomes a status of its own."""
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        async with aclosing(chunks) as source:  # type: ignore[type-var]  # every implementation is a generator
            first = asyncio.ensure_future(anext(source, None))
            try:
                await asyncio.wait({first}, timeout=FIRST_CHUNK)
                if first.done() and (error := first.exception()) is not None:
                    return _error_response(error)
                await response.prepare(request)
                chunk = await first
                while chunk is not None:
                    await response.write(chunk)
                    chunk = await anext(source, None)
            except AdapterError as error:
                await response.write(f"\nhpc-bridge: the log ends here: {error}\n".encode())
            finally:
                if not first.done():
                    first.cancel()
                    await asyncio.wait({first})
        await response.write_eof()
        return response


def _error_response(error: BaseException) -> web.Response:
    if isinstance(error, Permanent):
        return web.Response(status=400, text=str(error))
    if isinstance(error, AdapterError):
        return web.Response(status=503, text=f"the cluster cannot give the log now: {error}")
    raise error
