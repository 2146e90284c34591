"""The connection to the API server: raw JSON over the session that kubernetes_asyncio configures.

Every request has a deadline. GET and LIST are repeated once after a broken connection; nothing else is, because a
write may have happened. A 401 is repeated once with a token read anew.
"""

from __future__ import annotations

import copy
import json
import random
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiClient
from yarl import URL

from bridge.kube import Items, Json, JsonPatch, PatchKind, errors, paths
from bridge.kube.credentials import Credentials, load
from bridge.telemetry import VERSION, Metrics

PAGE = 500
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
LIST_TIMEOUT = aiohttp.ClientTimeout(total=120, sock_connect=5)
WATCH_SECONDS = 300  # after which the server ends a watch in good order, so that none outlives a silent load balancer
WATCH_SILENCE = 90  # s without a byte, bookmarks come once a minute
MAX_LINE = 64 << 20  # bytes of one watch event; etcd's own limit is far below

_CONTENT_TYPES: dict[PatchKind, str] = {
    "strategic": "application/strategic-merge-patch+json",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}


@asynccontextmanager
async def connect(kubeconfig: str | None = None, *, metrics: Metrics | None = None) -> AsyncIterator[KubeClient]:
    """A client for the API server of `kubeconfig`; None: in the cluster, else KUBECONFIG, else ~/.kube/config."""
    configuration, credentials = await load(kubeconfig)
    async with ApiClient(configuration=configuration) as api:
        client = KubeClient(api, credentials, metrics)
        try:
            yield client
        finally:
            await client.aclose()


def _proxy(host: str) -> str | None:
    """The proxy that the environment names for this host."""
    parts = urllib.parse.urlsplit(host)
    if parts.hostname and urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)


class KubeClient:
    """Implements `bridge.kube.Kubernetes`. Made by `connect`."""

    def __init__(self, api: ApiClient, credentials: Credentials, metrics: Metrics | None = None) -> None:
        rest = api.rest_client
        self._base = str(api.configuration.host).rstrip("/")
        # A session of our own on the same connector: theirs asks ~/.netrc and the environment for every single
        # request, in a thread each time, which doubles what a request costs.
        self._session = aiohttp.ClientSession(connector=rest.pool_manager.connector, connector_owner=False)
        self._extra: dict[str, Any] = {"proxy": rest.proxy or _proxy(self._base), "proxy_headers": rest.proxy_headers}
        if rest.server_hostname:
            self._extra["server_hostname"] = rest.server_hostname
        self._credentials = credentials
        self._metrics = metrics
        self._acting_as: list[tuple[str, str]] = []  # headers

    def __repr__(self) -> str:
        user = f" as {self._acting_as[0][1]}" if self._acting_as else ""
        return f"<KubeClient {self._base}{user}>"

    def acting_as(self, user: str, groups: Sequence[str]) -> KubeClient:
        """See `Impersonator`. Connections and credentials are shared; closing either client closes both."""
        other = copy.copy(self)
        other._acting_as = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]
        return other

    async def aclose(self) -> None:
        """Close the session; `connect` does."""
        await self._session.close()

    @property
    def host(self) -> str:
        """URL of the API server."""
        return self._base

    async def get(self, path: str) -> Json:
        """See `Kubernetes.get`."""
        return await self._read(path, {}, REQUEST_TIMEOUT)

    async def text(self, path: str) -> str:
        """The body of a GET that is no JSON: a kubelet's /healthz through the API server."""
        async with self._request("GET", path, timeout=REQUEST_TIMEOUT) as response:
            return (await response.read()).decode("utf-8", "replace")

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[Items, str]:
        """See `Kubernetes.list`. In pages; when a page's token has expired, once more in one piece."""
        params = _selectors(field_selector, label_selector)
        try:
            return await self._pages(path, params | {"limit": str(PAGE)})
        except errors.Gone:
            return await self._pages(path, params)

    async def _pages(self, path: str, params: dict[str, str]) -> tuple[Items, str]:
        items: Items = []
        while True:
            page = await self._read(path, params, LIST_TIMEOUT)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            params = params | {"continue": metadata["continue"]}

    async def watch(
        self,
        path: str,
        resource_version: str,
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """See `Kubernetes.watch`."""
        params = _selectors(field_selector, label_selector) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(WATCH_SECONDS * random.uniform(0.8, 1.2))),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=WATCH_SILENCE)
        async with self._request("GET", path, params=params, timeout=timeout) as response:
            async for line in _lines(response):
                kind, thing = _event(line)
                if kind == "ERROR":
                    raise errors.from_status(thing)
                yield kind, thing

    async def create(self, path: str, body: Json) -> Json:
        """See `Kubernetes.create`."""
        return await self._write("create", "POST", path, body, "application/json")

    async def patch(self, path: str, body: Json | JsonPatch, *, kind: PatchKind = "strategic") -> Json:
        """See `Kubernetes.patch`."""
        return await self._write("patch", "PATCH", path, body, _CONTENT_TYPES[kind])

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> Json:
        """See `Kubernetes.delete`."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        return await self._write("delete", "DELETE", path, body, "application/json")

    async def _read(self, path: str, params: dict[str, str], timeout: aiohttp.ClientTimeout) -> Json:
        try:
            return await self._exchange("GET", path, params=params, timeout=timeout)
        except errors.Unavailable as error:
            if error.status:  # an answer, not a broken connection
                raise
        return await self._exchange("GET", path, params=params, timeout=timeout)

    async def _write(self, verb: str, method: str, path: str, body: Json | JsonPatch, content_type: str) -> Json:
        code = 200
        try:
            return await self._exchange(
                method,
                path,
                data=json.dumps(body).encode(),
                headers={"Content-Type": content_type},
                timeout=REQUEST_TIMEOUT,
            )
        except errors.KubeError as error:
            code = error.status
            raise
        finally:
            if self._metrics is not None:
                self._metrics.api_writes.labels(paths.resource(path), verb, str(code)).inc()

    async def _exchange(self, method: str, path: str, **kwargs: Any) -> Json:
        async with self._request(method, path, **kwargs) as response:
            body = await response.read()
        try:
            value = json.loads(body)
        except ValueError as error:
            raise errors.Unavailable(0, "", f"the API server's answer is not JSON: {body[:80]!r}") from error
        return value if isinstance(value, dict) else {"items": value}

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **kwargs: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful response, or KubeError; also for what goes wrong while the caller reads the body."""
        try:
            response = await self._open(method, path, headers or {}, kwargs)
            async with response:
                if response.status >= 300:
                    body = await response.read()
                    raise errors.from_response(response.status, body, response.headers.get("Retry-After"))
                yield response
        except TimeoutError as error:
            raise errors.Unavailable(0, "Timeout", f"no answer in time from {self._base}") from error
        except (aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
            raise errors.Unavailable(0, "", f"connection to {self._base}: {text}") from error

    async def _open(
        self, method: str, path: str, headers: dict[str, str], kwargs: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        response = await self._send(method, path, headers, kwargs)
        if response.status == 401 and self._credentials.renewable:
            response.release()
            self._credentials.expire()
            response = await self._send(method, path, headers, kwargs)
        return response

    async def _send(
        self, method: str, path: str, headers: dict[str, str], kwargs: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": f"hpc-bridge/{VERSION}", **headers}
        if (authorization := await self._credentials.header()) is not None:
            headers["Authorization"] = authorization
        # As it stands: yarl would resolve dots in a path, and what `paths` has quoted.
        url = URL(self._base + path, encoded=True)
        every = [*headers.items(), *self._acting_as]
        return await self._session.request(method, url, headers=every, **self._extra, **kwargs)


def _selectors(field_selector: str | None, label_selector: str | None) -> dict[str, str]:
    pairs = {"fieldSelector": field_selector, "labelSelector": label_selector}
    return {key: value for key, value in pairs.items() if value}


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: aiohttp's own reader gives up at its buffer size."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            yield b"".join([*parts, piece])
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_LINE:
            raise errors.Unavailable(0, "", f"a watch event of more than {MAX_LINE} bytes")
    if size:
        yield b"".join(parts)


def _event(line: bytes) -> tuple[str, Json]:
    try:
        event = json.loads(line)
        return str(event["type"]), event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise errors.Unavailable(0, "", f"not a watch event: {line[:80]!r}") from error
