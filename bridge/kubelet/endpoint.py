"""The agent's own plain HTTP endpoint: `hpc-bridge status`, the Deployment's probes, and Prometheus.

It shows no secret and changes nothing; it binds loopback unless the settings say otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from aiohttp import web

from bridge.kube import Json
from bridge.kubelet.server import METRICS_TYPE
from bridge.telemetry import Metrics


class StatusEndpoint:
    """`report` gives the document that /status answers; `ready` decides /readyz."""

    def __init__(self, report: Callable[[], Json], ready: Callable[[], bool], metrics: Metrics) -> None:
        self._report = report
        self._ready = ready
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def start(self, listen: str) -> None:
        """Listen on `address:port`."""
        app = web.Application()
        app.router.add_get("/status", self._status)
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

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, _request: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(status=200 if ready else 503, text="ok" if ready else "not ready: no API server yet")

    async def _prometheus(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": METRICS_TYPE})
