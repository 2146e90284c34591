"""The agent's own plain HTTP endpoints, which ask nobody who calls.

On loopback alone: `hpc-bridge status`, `explain`, `clusters`, and Prometheus; they show no secret and change nothing.
For a kubelet's probes, at the pod's address: /healthz and /readyz, which say nothing but ok.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from bridge.kube import Json
from bridge.kube.errors import KubeError
from bridge.kubelet.server import METRICS_TYPE
from bridge.telemetry import Metrics


class Explains(Protocol):
    """Answers people's questions about routing. Raises LookupError for what is not there, ValueError for nonsense."""

    async def explain(self, asked: Json) -> Json: ...
    def clusters(self) -> Json: ...


class StatusEndpoint:
    """`report` gives the document that /status answers; `ready` decides /readyz; `routing` explains."""

    def __init__(
        self, report: Callable[[], Json], ready: Callable[[], bool], metrics: Metrics, routing: Explains
    ) -> None:
        self._report = report
        self._ready = ready
        self._metrics = metrics
        self._routing = routing
        self._runner: web.AppRunner | None = None

    async def start(self, listen: str) -> None:
        """Listen on `address:port`."""
        app = web.Application()
        app.router.add_get("/status", self._status)
        app.router.add_post("/explain", self._explain)
        app.router.add_get("/clusters", self._clusters)
        app.router.add_get("/metrics", self._prometheus)
        _add_probes(app, self._ready)
        address, _, port = listen.rpartition(":")
        self._runner = await _serving(app, address, int(port))

    async def aclose(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _status(self, _request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(self._report()), content_type="application/json")

    async def _explain(self, request: web.Request) -> web.Response:
        try:
            asked = await request.json()
            if not isinstance(asked, dict):
                raise ValueError("not a JSON object")
            return _answer(await self._routing.explain(asked))
        except LookupError as error:
            return _answer({"error": str(error)}, 404)
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # people may send anything as a pod
            return _answer({"error": f"this is no pod that can be judged: {error}"}, 400)
        except KubeError as error:
            return _answer({"error": str(error)}, 503)

    async def _clusters(self, _request: web.Request) -> web.Response:
        try:
            return _answer(self._routing.clusters())
        except LookupError as error:
            return _answer({"error": str(error)}, 404)

    async def _prometheus(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": METRICS_TYPE})


class ProbeEndpoint:
    """/healthz and /readyz, and nothing else; `ready` decides /readyz."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, port: int) -> None:
        """Listen."""
        app = web.Application()
        _add_probes(app, self._ready)
        self._runner = await _serving(app, address, port)

    async def aclose(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()


async def _serving(app: web.Application, address: str, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, address, port, reuse_address=True).start()
    return runner


def _add_probes(app: web.Application, ready: Callable[[], bool]) -> None:
    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_request: web.Request) -> web.Response:
        is_ready = ready()
        return web.Response(status=200 if is_ready else 503, text="ok" if is_ready else "not ready: no API server yet")

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)


def _answer(document: Json, status: int = 200) -> web.Response:
    return web.Response(status=status, text=json.dumps(document), content_type="application/json")
