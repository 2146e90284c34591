"""The TLS side of a kubelet port while it is served: certificates that are renewed are taken without a restart.

What changes is the certificate and its key (files, or self-signed ones that run out) and the CA that client
certificates must come from. What cannot be used is told, and the old goes on.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from bridge.kube.clock import Clock
from bridge.kube.errors import KubeError
from bridge.kubelet.certificate import server_context

LOOK_EVERY = 60.0  # s

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Material:
    """PEM. client_ca: None: no client certificate is asked for."""

    certificate: bytes
    key: bytes
    client_ca: str | None


class ServingTls:
    """`read` gives the material as it is now. `context` is what a server is started with, and stays the same object."""

    def __init__(self, node: str, first: Material, read: Callable[[], Awaitable[Material]], clock: Clock) -> None:
        self._node, self._read, self._clock = node, read, clock
        self._used = first
        self._current = server_context(first.certificate, first.key, first.client_ca)
        self.context = server_context(first.certificate, first.key, first.client_ca)
        self.context.sni_callback = self._choose  # called for each connection, also without a server name

    def __repr__(self) -> str:
        return f"<ServingTls {self._node}>"

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Take what has changed."""
        try:
            found = await self._read()
            if found == self._used:
                return
            self._current = server_context(found.certificate, found.key, found.client_ca)
        except (OSError, ValueError, KubeError) as error:  # ssl.SSLError is an OSError: half of a new pair, perhaps
            log.warning("kubelet.certificate_unread", node=self._node, error=str(error))
            return
        self._used = found
        log.info("kubelet.certificate_renewed", node=self._node)
