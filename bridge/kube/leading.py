"""Writes of a leader only: what is decided while leading may not be sent when the Lease has run out meanwhile.

A process that was paused between a decision and its write would otherwise overwrite what its successor has done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from bridge.kube import Items, Json, JsonPatch, Kubernetes, PatchKind
from bridge.kube.errors import Unavailable


class LeaderOnly(Kubernetes):
    """`kube`, whose writes raise Unavailable while `allowed` is false (by the monotonic clock: see `leader`)."""

    def __init__(self, kube: Kubernetes, allowed: Callable[[], bool]) -> None:
        self._kube = kube
        self._allowed = allowed

    def _check(self) -> None:
        if not self._allowed():
            raise Unavailable(0, "NotLeading", "the Lease has run out: another process may lead")

    async def get(self, path: str) -> Json:
        """See Kubernetes."""
        return await self._kube.get(path)

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[Items, str]:
        """See Kubernetes."""
        return await self._kube.list(path, field_selector=field_selector, label_selector=label_selector)

    def watch(
        self,
        path: str,
        resource_version: str,
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """See Kubernetes."""
        return self._kube.watch(path, resource_version, field_selector=field_selector, label_selector=label_selector)

    async def create(self, path: str, body: Json) -> Json:
        """See Kubernetes."""
        self._check()
        return await self._kube.create(path, body)

    async def patch(self, path: str, body: Json | JsonPatch, *, kind: PatchKind = "strategic") -> Json:
        """See Kubernetes."""
        self._check()
        return await self._kube.patch(path, body, kind=kind)

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> Json:
        """See Kubernetes."""
        self._check()
        return await self._kube.delete(path, uid=uid, grace=grace)
