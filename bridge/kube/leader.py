"""One agent acts at a time: the holder of a Lease. Its epoch fences a former leader on the clusters.

The epoch is `leaseTransitions + 1` and rises with every acquisition, also by the same process. A Lease that does not
exist is created with the seconds since 2020 as leaseTransitions, so that the epoch still rises when somebody deletes
the Lease (a redeployment does) while the clusters remember the last one.

A leader counts itself deposed two thirds of the duration after the last renewal it has *sent*; another takes over
only when it has seen no renewal for the whole duration. The rest is the time it has to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from bridge.kube import Json, Kubernetes, paths
from bridge.kube.clock import BackOff, Clock, SystemClock, rfc3339_micro
from bridge.kube.errors import Conflict, KubeError, NotFound

RELEASE_TIMEOUT = 5.0  # s; giving the Lease back must not hold up the end of the process
_YEAR_2020 = 1577836800

log = structlog.get_logger(__name__)


class Leader:
    """Holds Lease `namespace/name` as `identity`, which must be unique to the process. `duration` in seconds."""

    def __init__(
        self,
        kube: Kubernetes,
        namespace: str,
        name: str,
        identity: str,
        duration: float,
        clock: Clock | None = None,
    ) -> None:
        self._kube = kube
        self._collection = paths.leases(namespace)
        self._path = paths.lease(namespace, name)
        self._metadata = {"name": name, "namespace": namespace}
        self._identity = identity
        self._duration = duration
        self._clock = clock or SystemClock()
        self._valid_until = float("-inf")
        self._version = ""
        self._seen: tuple[str, float] | None = None  # resourceVersion of another's Lease, and since when it stands
        self.epoch = 0  # of the last acquisition; 0: never

    def __repr__(self) -> str:
        return f"<Leader {self._path} epoch={self.epoch} valid={self.valid()}>"

    def valid(self) -> bool:
        """Whether this process may act now, by the monotonic clock: ask before every write."""
        return self._clock.monotonic() < self._valid_until

    async def run(self, lead: Callable[[int], Awaitable[None]]) -> None:
        """Acquire, then `await lead(epoch)`; cancel it when the Lease is lost and start over.

        Returns when `lead` returns, raises what it raises. However it ends, the Lease is given back if it is ours.
        """
        try:
            while True:
                await self._acquire()
                log.info("leader.acquired", epoch=self.epoch, identity=self._identity)
                if await self._hold(lead):
                    return
                log.error("leader.lost", epoch=self.epoch, identity=self._identity)
        finally:
            await self._release()

    async def _hold(self, lead: Callable[[int], Awaitable[None]]) -> bool:
        """True when `lead` has returned, False when the Lease is lost (and `lead` has ended)."""
        leading = asyncio.ensure_future(lead(self.epoch))
        renewing = asyncio.ensure_future(self._renew_until_lost())
        try:
            await asyncio.wait([leading, renewing], return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
                return True
            renewing.result()
            return False
        finally:
            for task in (leading, renewing):
                task.cancel()
            await asyncio.gather(leading, renewing, return_exceptions=True)

    async def _acquire(self) -> None:
        back_off = BackOff(0.2, self._duration / 5)
        self._seen = None
        while True:
            pause = self._duration / 5
            try:
                async with asyncio.timeout(self._duration):
                    if await self._try_acquire():
                        return
                    pause = min(pause, self._remaining())
            except (KubeError, TimeoutError) as error:
                pause = back_off.pause(getattr(error, "retry_after", None))
                log.warning("leader.retry", error=str(error), pause=round(pause, 2))
            await self._clock.sleep(max(pause, 0.05))

    async def _try_acquire(self) -> bool:
        sent = self._clock.monotonic()
        try:
            lease = await self._kube.get(self._path)
        except NotFound:
            transitions = int(self._clock.time()) - _YEAR_2020
            spec = self._spec(transitions) | {"acquireTime": rfc3339_micro(self._clock.time())}
            return await self._attempt(sent, self._kube.create(self._collection, self._lease(spec)))
        if not self._free(lease):
            return False
        transitions = int(lease["spec"].get("leaseTransitions") or 0) + 1
        spec = self._spec(transitions) | {"acquireTime": rfc3339_micro(self._clock.time())}
        body = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
        return await self._attempt(sent, self._kube.patch(self._path, body, kind="merge"))

    async def _attempt(self, sent: float, write: Awaitable[Json]) -> bool:
        try:
            lease = await write
        except Conflict:  # another was faster
            return False
        self._won(lease, sent)
        self.epoch = int(lease["spec"].get("leaseTransitions") or 0) + 1
        return True

    def _free(self, lease: Json) -> bool:
        """Whether the Lease may be taken: given back, ours, or not renewed for its duration while we watched."""
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        version = str(lease["metadata"]["resourceVersion"])
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        self._expiry = self._seen[1] + float(spec.get("leaseDurationSeconds") or self._duration)
        return now >= self._expiry

    def _remaining(self) -> float:
        """Seconds until the Lease we wait for runs out."""
        return self._expiry - self._clock.monotonic() if self._seen else self._duration

    async def _renew_until_lost(self) -> None:
        while True:
            await self._clock.sleep(min(self._duration / 5, max(0.0, self._valid_until - self._clock.monotonic())))
            remaining = self._valid_until - self._clock.monotonic()
            if remaining <= 0:
                return
            try:
                async with asyncio.timeout(remaining):
                    if not await self._renew():
                        self._valid_until = float("-inf")
                        return
            except (KubeError, TimeoutError) as error:
                log.warning("leader.renew_failed", error=str(error), remaining=round(remaining, 1))

    async def _renew(self) -> bool:
        """False when the Lease is another's."""
        sent = self._clock.monotonic()
        body = {"metadata": {"resourceVersion": self._version}, "spec": self._spec(self.epoch - 1)}
        try:
            self._won(await self._kube.patch(self._path, body, kind="merge"), sent)
        except NotFound:
            return False
        except Conflict:
            lease = await self._kube.get(self._path)
            if lease["spec"].get("holderIdentity") != self._identity:
                return False
            self._version = str(lease["metadata"]["resourceVersion"])  # somebody labelled it: renew at the next turn
        return True

    async def _release(self) -> None:
        if not self.valid():
            return
        self._valid_until = float("-inf")
        body = {
            "metadata": {"resourceVersion": self._version},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": rfc3339_micro(self._clock.time())},
        }
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await self._kube.patch(self._path, body, kind="merge")
            log.info("leader.released", epoch=self.epoch)
        except (KubeError, TimeoutError) as error:
            log.warning("leader.not_released", error=str(error))

    def _won(self, lease: Json, sent: float) -> None:
        self._version = str(lease["metadata"]["resourceVersion"])
        self._valid_until = sent + self._duration * 2 / 3

    def _spec(self, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "leaseTransitions": transitions,
            "renewTime": rfc3339_micro(self._clock.time()),
        }

    def _lease(self, spec: Json) -> Json:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": self._metadata,
            "spec": spec,
        }
