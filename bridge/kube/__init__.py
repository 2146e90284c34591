"""The Kubernetes API as this program uses it: raw dictionaries and REST paths, nothing typed, nothing lost.

Typed models drop fields that they do not know and cost an order of magnitude more time. Only `client` and
`credentials` import kubernetes_asyncio, for kubeconfig, authentication and TLS. Errors are those of `errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol

Json = dict[str, Any]
JsonPatch = list[Json]
Items = list[Json]
PatchKind = Literal["strategic", "merge", "json"]


class Kubernetes(Protocol):
    """One API server. `path` is a REST path as `paths` builds it. Every method may raise `errors.KubeError`."""

    async def get(self, path: str) -> Json:
        """The object."""

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[Items, str]:
        """All items of the collection, and the resourceVersion from which a watch continues."""

    def watch(
        self,
        path: str,
        resource_version: str,
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """(type, object) with type ADDED, MODIFIED, DELETED or BOOKMARK; ends when the server ends the watch.

        Raises Gone when `resource_version` is too old, Unavailable when the stream breaks or stays silent.
        """

    async def create(self, path: str, body: Json) -> Json:
        """POST to a collection (or subresource); the object as stored."""

    async def patch(self, path: str, body: Json | JsonPatch, *, kind: PatchKind = "strategic") -> Json:
        """PATCH; the object as stored. `metadata.resourceVersion` and `metadata.uid` in `body` are preconditions."""

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> Json:
        """DELETE, only if the object still has this UID; `grace` in seconds, None: the object's own."""


class Impersonator(Kubernetes, Protocol):
    """An API server reached with credentials that may stand for others, too."""

    def acting_as(self, user: str, groups: Sequence[str]) -> Kubernetes:
        """The same API server; each request is judged as one of `user`, who is in `groups`.

        The right is `impersonate` on users and groups. What is missing of it is Forbidden at the first request.
        """
