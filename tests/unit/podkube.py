"""Pods of one node with list and watch, for loops in virtual time; what a test refuses, is refused."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator

from memorykube import MemoryKube

from bridge.kube import Items, Json, JsonPatch, PatchKind, paths
from bridge.kube.clock import Clock
from bridge.kube.errors import KubeError


class PodKube(MemoryKube):
    """`refuse(verb, path, body)` may give the error that a write gets. `held`: the watch tells nothing while it is set.

    `answers_take`: seconds from a patch to its answer, during which the watch goes on.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.refuse = lambda verb, path, body: None
        self.answers_take = 0.0
        self.statuses: list[tuple[float, str, Json]] = []
        self._events: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()

    async def add(self, thing: Json) -> Json:
        """Somebody creates a pod that is bound to the node."""
        meta = thing["metadata"]
        uid = meta.get("uid")
        made = await self.create(paths.pods(meta["namespace"]), thing)
        stored = self.objects[paths.pod(meta["namespace"], meta["name"])]
        stored["metadata"]["uid"] = uid or made["metadata"]["uid"]
        self._events.put_nowait(("ADDED", copy.deepcopy(stored)))
        return stored

    def change(self, thing: Json, **metadata: object) -> None:
        """Somebody changes the pod."""
        meta = thing["metadata"]
        self.touch(paths.pod(meta["namespace"], meta["name"]))
        thing["metadata"] |= metadata
        self._events.put_nowait(("MODIFIED", copy.deepcopy(thing)))

    def remove(self, thing: Json) -> None:
        """Somebody deletes the pod by force."""
        meta = thing["metadata"]
        self._version += 1
        gone = self.objects.pop(paths.pod(meta["namespace"], meta["name"]))
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._events.put_nowait(("DELETED", gone))

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[Items, str]:
        """All pods; what the watch had to tell of them is old."""
        while not self._events.empty():
            self._events.get_nowait()
        return [copy.deepcopy(thing) for name, thing in self.objects.items() if "/pods/" in name], str(self._version)

    async def watch(
        self, path: str, resource_version: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Without end."""
        while True:
            yield await self._events.get()

    async def patch(self, path: str, body: Json | JsonPatch, *, kind: PatchKind = "strategic") -> Json:
        """As `MemoryKube`, told to the watch at once, answered later."""
        error: KubeError | None = self.refuse("patch", path, body)
        if error is not None:
            raise error
        changed = await super().patch(path, body, kind=kind)
        if isinstance(body, dict) and "status" in body:
            self.statuses.append((self.clock.monotonic(), path.split("/")[-2], body["status"]))
        self._events.put_nowait(("MODIFIED", copy.deepcopy(changed)))
        if self.answers_take:
            await self.clock.sleep(self.answers_take)
        return changed

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> Json:
        """Gone at once, told to the watch."""
        gone = await super().delete(path, uid=uid, grace=grace)
        self.writes.append(("delete", path))
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._events.put_nowait(("DELETED", gone))
        return gone
