"""The agent's own plain HTTP endpoint: `hpc-bridge status`, `explain`, `clusters`, probes, and Prometheus.

It shows no secret and changes nothing; it binds loopback unless the settings say otherwise.
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
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._prometheus)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        address, _, port = listen.rpartition(":")
        await web.TCPSite(self._runner, address, int(port), reuse_address=True).start()

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

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, _request: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(status=200 if ready else 503, text="ok" if ready else "not ready: no API server yet")

    async def _prometheus(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": METRICS_TYPE})


def _answer(document: Json, status: int = 200) -> web.Response:
    return web.Response(status=status, text=json.dumps(document), content_type="application/json")
