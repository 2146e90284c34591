"""A local copy of a collection, kept true by list and watch.

kubernetes_asyncio's own Watch repeats a 410 with the same resourceVersion for ever and has no read deadline, so this
one is ours. Deletions that fell into a gap are found by the next list and reported as DELETED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import structlog

from bridge.kube import Json, Kubernetes
from bridge.kube.clock import BackOff, Clock, SystemClock
from bridge.kube.errors import Gone, KubeError

log = structlog.get_logger(__name__)
OnChange = Callable[[str, Json], None]
Prune = Callable[[Json], Json]


def drop_managed_fields(thing: Json) -> Json:
    """The object without `metadata.managedFields`, which is often half of it; the default of `prune`."""
    thing.get("metadata", {}).pop("managedFields", None)
    return thing


class Reflector:
    """`items` by UID, as far as the server has told; `synced` is set once the first list is in.

    `prune` makes stored objects small; it must keep metadata's uid and resourceVersion. `on_change(type, object)` is
    called with ADDED, MODIFIED or DELETED after `items` has changed, on the event loop, and must not raise or block.
    """

    def __init__(
        self,
        kube: Kubernetes,
        path: str,
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
        prune: Prune | None = None,
        on_change: OnChange | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.items: dict[str, Json] = {}
        self.synced = asyncio.Event()
        self._kube = kube
        self._path = path
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._prune = prune or drop_managed_fields
        self._on_change = on_change or (lambda _kind, _thing: None)
        self._clock = clock or SystemClock()
        self._back_off = BackOff()
        self._version = ""  # where the next watch goes on; empty: list first

    def __repr__(self) -> str:
        return f"<Reflector {self._path} items={len(self.items)} synced={self.synced.is_set()}>"

    async def run(self) -> None:
        """Keep `items` true until cancelled."""
        while True:
            try:
                if not self._version:
                    self._version = await self._list()
                if await self._watch():
                    self._back_off.reset()
                    continue
                pause = self._back_off.pause()  # ended without an event: not a reason to hammer
            except Gone:
                log.info("reflector.gone", path=self._path)
                self._version = ""
                pause = self._back_off.pause()
            except KubeError as error:
                pause = self._back_off.pause(error.retry_after)
                log.warning("reflector.retry", path=self._path, error=str(error), pause=round(pause, 2))
            await self._clock.sleep(pause)

    def offer(self, thing: Json) -> Json:
        """Enter what a write answered, unless something newer, or its deletion, is known; what is kept of the object.

        Not reported to `on_change`: whoever wrote knows. The answer may come long after the watch has told of it.
        """
        uid = thing["metadata"]["uid"]
        known = self.items.get(uid)
        if known is None or _older(thing, known):
            return known or thing
        self.items[uid] = kept = self._prune(thing)
        return kept

    async def _list(self) -> str:
        items, version = await self._kube.list(
            self._path, field_selector=self._field_selector, label_selector=self._label_selector
        )
        current = {thing["metadata"]["uid"]: thing for thing in items}
        for uid in self.items.keys() - current.keys():
            self._apply("DELETED", self.items[uid])
        for thing in current.values():
            self._apply("ADDED", thing)
        self.synced.set()
        return version

    async def _watch(self) -> bool:
        """Follow from `_version`, moving it on, until the server ends the watch; whether anything came."""
        stream = self._kube.watch(
            self._path, self._version, field_selector=self._field_selector, label_selector=self._label_selector
        )
        came = False
        async with aclosing(stream) as events:
            async for kind, thing in events:
                if not came:
                    came = True
                    self._back_off.reset()
                if kind != "BOOKMARK":
                    self._apply(kind, thing)
                self._version = str(thing["metadata"]["resourceVersion"])
        return came

    def _apply(self, kind: str, thing: Json) -> None:
        """Enter one object into the books; a repeat of what is known is not reported."""
        uid = thing["metadata"]["uid"]
        known = self.items.get(uid)
        if kind == "DELETED":
            thing = self._prune(thing)
            if self.items.pop(uid, None) is not None:
                self._on_change("DELETED", thing)
            return
        if known is not None and known["metadata"]["resourceVersion"] == thing["metadata"]["resourceVersion"]:
            return
        if kind == "MODIFIED" and known is not None and _older(thing, known):
            return  # the answer to a write came first; a list is believed whatever it says
        self.items[uid] = thing = self._prune(thing)
        self._on_change("ADDED" if known is None else "MODIFIED", thing)


def _older(thing: Json, known: Json) -> bool:
    """Whether `thing` is an older version of `known`. Versions are numbers that grow; any others are not compared."""
    new, old = thing["metadata"]["resourceVersion"], known["metadata"]["resourceVersion"]
    return new.isdecimal() and old.isdecimal() and int(new) < int(old)
