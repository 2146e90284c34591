"""The few manners of an API server that leases, events and node loops rest on, for tests in virtual time.

What the real one does is tested in tests/e2e; this one exists because a real control plane has no virtual clock.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator

from bridge.kube import Items, Json, JsonPatch, PatchKind
from bridge.kube.errors import Conflict, KubeError, NotFound, Unavailable


class MemoryKube:
    """Objects by path, resourceVersion as a precondition. `down`: answers nothing. `writes`: (verb, path)."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.writes: list[tuple[str, str]] = []
        self.down = False
        self._version = 0

    def _stored(self, path: str) -> Json:
        if self.down:
            raise Unavailable(0, "", "down")
        if path not in self.objects:
            raise NotFound(404, "NotFound", path)
        return self.objects[path]

    def touch(self, path: str, **spec: object) -> None:
        """Somebody else changes the object."""
        self._version += 1
        self.objects[path]["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path].setdefault("spec", {}).update(spec)

    async def get(self, path: str) -> Json:
        """A copy."""
        return copy.deepcopy(self._stored(path))

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[Items, str]:
        """Not needed by these tests."""
        raise KubeError(405, "", path)

    async def watch(
        self, path: str, resource_version: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Not needed by these tests."""
        raise KubeError(405, "", path)
        yield "", {}

    async def create(self, path: str, body: Json) -> Json:
        """AlreadyExists when it does."""
        if self.down:
            raise Unavailable(0, "", "down")
        name = f"{path}/{body['metadata']['name']}"
        if name in self.objects:
            raise Conflict(409, "AlreadyExists", name)
        self._version += 1
        self.writes.append(("create", name))
        stored = copy.deepcopy(body)
        stored["metadata"] |= {"uid": f"uid-{self._version}", "resourceVersion": str(self._version)}
        self.objects[name] = stored
        return copy.deepcopy(stored)

    async def patch(self, path: str, body: Json | JsonPatch, *, kind: PatchKind = "strategic") -> Json:
        """Merges dictionaries, whatever the kind; status is part of the object."""
        stored = self._stored(path.removesuffix("/status"))
        if not isinstance(body, dict):
            raise KubeError(400, "", "only merges")
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != stored["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", path)
        self.writes.append(("patch", path))
        _merge(stored, body)
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)
        return copy.deepcopy(stored)

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> Json:
        """Gone at once."""
        return self.objects.pop(path)


def _merge(target: Json, change: Json) -> None:
    for key, value in change.items():
        if key.startswith("$"):
            continue
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)
