"""Fetches what a pod's files and variables are made from: ConfigMaps, Secrets and ServiceAccount tokens, by name.

Secrets are never listed. Objects are kept for a few seconds, so that five hundred pods of one Job cost one request
each; tokens are kept for their pod and asked for anew at 80 % of their life. What one pod may have read, and what is
kept altogether, is bounded: a few lines of a manifest can name a hundred objects of a megabyte each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from bridge.kube import Kubernetes, paths
from bridge.kube.clock import Clock, parse_rfc3339
from bridge.kube.errors import Invalid, NotFound
from bridge.plan.model import Allowance, InputRef, Json, TooLarge, token_request

KEEP = 5.0  # seconds that a fetched ConfigMap or Secret, or its absence, is believed
REFRESH_EVERY = 60.0  # seconds between looks at ConfigMaps and Secrets of submitted pods
OLDEST_TOKEN = 86400.0  # seconds, whatever its life: as a kubelet
TOKEN_LIFE = 0.8  # share of a token's life after which it is replaced
_MOST_KEPT = 1000
MOST_READ = 6 << 20  # bytes of all objects of one pod, as the API server writes them
LIGHT = 512 << 10  # bytes that a pod may hold in memory while it is prepared and sent, as any number of pods may
MOST_REFERENCES = 200  # objects and tokens of one pod: each is a request to the API server, every minute
HEAVY = 4  # pods of a node that may hold more at once
_MOST_BYTES = 8 << 20  # of all objects that are kept


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept:
    thing: Json | None
    until: float
    size: int = 0


class Slot:
    """One pod's leave to hold more than `LIGHT` bytes; only a few pods have it at once, the others wait their turn."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots, self._held = slots, False

    async def take(self, size: int) -> None:
        """Wait for leave if `size` is more than anybody may hold."""
        if size > LIGHT and not self._held:
            await self._slots.acquire()
            self._held = True

    def give_back(self) -> None:
        """The pod holds nothing any more."""
        if self._held:
            self._held = False
            self._slots.release()

    async def within(self, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """What `make` makes; thrown away and made again where leave has to be waited for."""
        if (weight := size(made := make())) <= LIGHT or self._held:
            return made
        del made
        await self.take(weight)
        return make()


class InputSource:
    """Reads inputs for pods; errors of the API server other than "not found" pass through."""

    def __init__(self, kube: Kubernetes, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._objects: dict[str, _Kept] = {}
        self._size = 0  # of `_objects`
        self._tokens: dict[tuple[str, InputRef], _Kept] = {}
        self._slots = asyncio.Semaphore(HEAVY)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """For all that is done with one pod's inputs, until they are sent."""
        slot = Slot(self._slots)
        try:
            yield slot
        finally:
            slot.give_back()

    async def gather(
        self, pod: Json, refs: Iterable[InputRef], slot: Slot | None = None
    ) -> dict[InputRef, Json | None]:
        """Return each reference's object, None where there is none. Raises TooLarge before it has read too much."""
        found: dict[InputRef, Json | None] = {}
        read = 0
        allowance = Allowance("ConfigMaps, Secrets and tokens", MOST_READ)
        if len(refs := tuple(refs)) > MOST_REFERENCES:
            text = f"the pod refers to {len(refs)} ConfigMaps, Secrets and tokens; at most {MOST_REFERENCES} are read"
            raise TooLarge(text)
        for ref in refs:
            if ref.kind == "Token":
                found[ref] = await self._token(pod, ref)
                allowance.spend(len(((found[ref] or {}).get("status") or {}).get("token") or ""))
            else:
                kept = await self._object(pod["metadata"]["namespace"], ref)
                allowance.spend(kept.size)
                read += kept.size
                if slot is not None:
                    await slot.take(read)
                found[ref] = kept.thing
        return found

    def refresh_at(self, pod: Json, refs: Iterable[InputRef]) -> float:
        """Epoch seconds of the next look that is worth it."""
        now = self._clock.time()
        tokens = [k.until for r in refs if (k := self._tokens.get((pod["metadata"]["uid"], r))) is not None]
        return min([now + REFRESH_EVERY, *tokens])

    def forget(self, uid: str) -> None:
        """Drop the tokens of a pod that is gone."""
        for key in [k for k in self._tokens if k[0] == uid]:
            del self._tokens[key]

    async def _object(self, namespace: str, ref: InputRef) -> _Kept:
        path = (paths.config_map if ref.kind == "ConfigMap" else paths.secret)(namespace, ref.name)
        now = self._clock.time()
        kept = self._objects.get(path)
        if kept is None or kept.until <= now:
            thing = await self._read(path)
            kept = _Kept(thing, now + KEEP, 0 if thing is None else _size(thing))
            self._keep(path, kept, now)
        return kept

    def _keep(self, path: str, kept: _Kept, now: float) -> None:
        for old in [each for each, thing in self._objects.items() if thing.until <= now or each == path]:
            self._size -= self._objects.pop(old).size
        if len(self._objects) >= _MOST_KEPT or self._size + kept.size > _MOST_BYTES:
            self._objects.clear()
            self._size = 0
        self._objects[path] = kept
        self._size += kept.size

    async def _read(self, path: str) -> Json | None:
        try:
            thing = await self._kube.get(path)
        except NotFound:
            return None
        content = {key: thing[key] for key in ("data", "binaryData") if thing.get(key)}
        name = (thing.get("metadata") or {}).get("name")
        return {"metadata": {"name": name}} | content if name else content  # the rest is nobody's concern, and large

    async def _token(self, pod: Json, ref: InputRef) -> Json | None:
        key, now = (pod["metadata"]["uid"], ref), self._clock.time()
        kept = self._tokens.get(key)
        if kept is not None and kept.until > now:
            return kept.thing
        path = paths.service_account_token(pod["metadata"]["namespace"], ref.name)
        try:
            answer = await self._kube.create(path, token_request(pod, ref))
        except (NotFound, Invalid):
            return None
        expires = parse_rfc3339(answer.get("status", {}).get("expirationTimestamp")) or now + ref.expiration
        lasts = TOKEN_LIFE * min(expires - now, float(ref.expiration or 3600))
        self._tokens[key] = _Kept(answer, now + min(lasts, OLDEST_TOKEN))
        return answer


def _size(thing: Json) -> int:
    """Bytes of an object's content, with what each key costs besides."""
    parts = [thing.get("data") or {}, thing.get("binaryData") or {}]
    return sum(len(key) + len(str(value)) + 128 for part in parts for key, value in part.items())
