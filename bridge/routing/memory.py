"""Feeds the wait model from censuses and the bridge's own pods, and keeps what it has learnt in a ConfigMap.

The ConfigMap may be lost or old without harm: the model then starts from its prior.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping

import structlog

from bridge.kube import Kubernetes, paths
from bridge.kube.clock import Clock
from bridge.kube.errors import KubeError
from bridge.routing.evaluate import WAITING, Link
from bridge.routing.waits import Shape, WaitModel
from pbs_adapter.models import Census, Observation

log = structlog.get_logger(__name__)

CONFIG_MAP = "hpc-bridge-waits"
KEY = "waits"
SAVE_EVERY = 300.0  # s


class Memory:
    """`model` and all that it is told."""

    def __init__(
        self, kube: Kubernetes, namespace: str, links: Mapping[str, Link], model: WaitModel, clock: Clock
    ) -> None:
        self.model = model
        self._kube, self._path = kube, paths.config_map(namespace, CONFIG_MAP)
        self._links, self._clock = links, clock
        self._censuses: dict[str, Census] = {}
        self._sent: dict[str, tuple[str, Shape]] = {}  # by pod UID: cluster, shape
        self._submitted: dict[str, float] = {}
        self._saved = b""

    def sent(self, uid: str, cluster: str, shape: Shape) -> None:
        """A pod was routed: its job's shape, with whether it fitted then."""
        self._sent[uid] = cluster, shape

    def learn(self) -> None:
        """Take in each cluster's census if it is new. One that makes no sense is left out."""
        for name, link in self._links.items():
            if link.census is not None and self._censuses.get(name) is not link.census:
                self._censuses[name] = link.census
                try:
                    self.model.learn(name, link.census, self._clock.time())
                except Exception:  # what one cluster says of itself must not end the work for the others
                    log.exception("routing.learn_failed", cluster=name)

    def follow(self, alive: Callable[[str, str], bool]) -> None:
        """Look at the jobs of routed pods. alive(uid, cluster): the pod waits for a node, or is on this cluster's."""
        for uid, (cluster, shape) in list(self._sent.items()):
            seen = self._links[cluster].found(uid)
            if seen is not None and seen.job_id is not None:
                if self._observe(uid, cluster, shape, seen, seen.job_id):
                    self._forget(uid)
            elif not alive(uid, cluster):
                self._forget(uid)

    def _observe(self, uid: str, cluster: str, shape: Shape, seen: Observation, job_id: str) -> bool:
        """Whether the job's wait is over."""
        now = self._clock.time()
        since = self._submitted.setdefault(uid, now)
        started = seen.claimed or seen.pbs.state in ("R", "E")
        census = self._links[cluster].census
        if not started and seen.pbs.state not in WAITING and seen.pbs.state:
            self.model.forget(cluster, job_id, now)
            return True
        queue, user = seen.pbs.queue, census.account if census is not None else ""
        began, expected = now if started else None, seen.pbs.estimated
        self.model.observe(cluster, job_id, queue, user, shape, since, began, now, estimated=expected)
        return started

    def _forget(self, uid: str) -> None:
        self._sent.pop(uid, None)
        self._submitted.pop(uid, None)

    async def load(self) -> None:
        """Read what an agent has learnt before."""
        try:
            stored = await self._kube.get(self._path)
            content = base64.b64decode((stored.get("binaryData") or {}).get(KEY) or "")
        except (KubeError, ValueError) as error:
            log.info("routing.waits_unread", error=str(error))
            return
        if content and not self.model.load(content):
            log.warning("routing.waits_unreadable", bytes=len(content))

    async def save(self) -> None:
        """Write what has been learnt, if it is something new."""
        content = self.model.dump()
        if content == self._saved:
            return
        try:
            body = {"binaryData": {KEY: base64.b64encode(content).decode()}}
            await self._kube.patch(self._path, body, kind="merge")
            self._saved = content
        except KubeError as error:
            log.info("routing.waits_unsaved", error=str(error))

    async def save_quickly(self) -> None:
        """Save at the end, if that takes no longer than it may."""
        try:
            async with asyncio.timeout(3):
                await self.save()
        except TimeoutError:
            log.info("routing.waits_unsaved", error="no answer in time")

    async def run(self) -> None:
        """Save from time to time until cancelled."""
        while True:
            await self._clock.sleep(SAVE_EVERY)
            await self.save()
