"""Where the API server is and how this process proves who it is; tokens that rotate are read again.

kubernetes_asyncio refreshes only the in-cluster token; a kubeconfig's `tokenFile` and the token of an exec plugin
are taken once. Here all three are renewed, at most once a minute, and at once after a 401.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import structlog
from kubernetes_asyncio import config as kubernetes_config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config.incluster_config import SERVICE_TOKEN_FILENAME

REREAD = 60.0  # seconds a token is used before its source is asked again
_HOME_KUBECONFIG = Path("~/.kube/config").expanduser()

log = structlog.get_logger(__name__)


class Credentials:
    """The Authorization header, renewed from its source. `token_file` and `exec_loader` exclude each other."""

    def __init__(
        self, header: str | None, *, token_file: Path | None = None, exec_loader: Any = None, reread: float = REREAD
    ) -> None:
        self._header = header
        self._token_file = token_file
        self._exec_loader = exec_loader
        self._reread = reread
        self._read_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Credentials token_file={self._token_file} exec={self._exec_loader is not None}>"

    @property
    def renewable(self) -> bool:
        """Whether asking again may give another token."""
        return self._token_file is not None or self._exec_loader is not None

    def expire(self) -> None:
        """The server refused the token: ask the source before the next request."""
        self._read_at = float("-inf")

    async def header(self) -> str | None:
        """Value of the Authorization header; None when a client certificate does it."""
        if self.renewable and time.monotonic() - self._read_at >= self._reread:
            self._read_at = time.monotonic()
            try:
                await self._renew()
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises: the old token may still be good
                log.warning("kube.credentials.not_renewed", error=str(error))
        return self._header

    async def _renew(self) -> None:
        if self._token_file is not None:
            if token := self._token_file.read_text().strip():
                self._header = f"Bearer {token}"
        else:
            await self._exec_loader.load_from_exec_plugin()
            self._header = getattr(self._exec_loader, "token", self._header)


async def load(kubeconfig: str | None) -> tuple[Configuration, Credentials]:
    """Configuration and credentials: of the named kubeconfig; of the pod we run in; of KUBECONFIG or ~/.kube/config.

    Raises kubernetes_asyncio's ConfigException with a text for the admin.
    """
    configuration = Configuration()
    if kubeconfig is None and _in_cluster():
        kubernetes_config.load_incluster_config(configuration, try_refresh_token=False)  # type: ignore[no-untyped-call]
        return configuration, Credentials(None, token_file=Path(SERVICE_TOKEN_FILENAME))
    file = kubeconfig or os.environ.get("KUBECONFIG") or str(_HOME_KUBECONFIG)
    loader = await kubernetes_config.load_kube_config(
        config_file=file, client_configuration=configuration, persist_config=False
    )
    return configuration, _from_user(loader, configuration.api_key.get("BearerToken"), file)


def _in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and Path(SERVICE_TOKEN_FILENAME).exists()


def _from_user(loader: Any, header: str | None, file: str) -> Credentials:
    """Credentials of a kubeconfig's user entry; `file` is what a relative `tokenFile` is relative to."""
    # The loader has no public way to that entry; kubernetes_asyncio.config.refresh_token reads it the same way.
    user = loader._user
    if user is not None and "exec" in user:
        return Credentials(header, exec_loader=loader)
    if user is not None and "tokenFile" in user and "token" not in user:
        base = Path(file.split(os.pathsep)[0]).resolve().parent
        return Credentials(header, token_file=base / str(user["tokenFile"]))
    return Credentials(header)
