"""A node's heartbeat: its Lease in kube-node-lease. It says that the agent lives, not that the cluster does."""

from __future__ import annotations

import asyncio

import structlog

from bridge.kube import Json, Kubernetes, paths
from bridge.kube.clock import Clock, rfc3339_micro
from bridge.kube.errors import KubeError, NotFound

DURATION = 40  # s, as a kubelet's; the controller's own grace is a little longer
RENEW = 10.0

log = structlog.get_logger(__name__)


class NodeLease:
    """The Lease of node `name`."""

    def __init__(self, kube: Kubernetes, name: str, clock: Clock) -> None:
        self._kube = kube
        self._name = name
        self._clock = clock

    def __repr__(self) -> str:
        return f"<NodeLease {self._name}>"

    async def renew(self, node_uid: str) -> bool:
        """Renew it, or create it when it is missing; False when that did not work and is to be tried again soon.

        The owner reference is written each time, so that it follows a Node that was deleted and registered anew.
        """
        try:
            async with asyncio.timeout(RENEW):
                await self._renew(node_uid)
        except (KubeError, TimeoutError) as error:
            log.warning("node.lease_not_renewed", node=self._name, error=str(error) or "no answer in time")
            return False
        return True

    async def _renew(self, node_uid: str) -> None:
        body = self._body(node_uid)
        try:
            await self._kube.patch(paths.lease(paths.NODE_LEASES, self._name), body, kind="merge")
        except NotFound:
            await self._kube.create(paths.leases(paths.NODE_LEASES), body)

    def _body(self, node_uid: str) -> Json:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node_uid}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": paths.NODE_LEASES, "ownerReferences": [owner]},
            "spec": {
                "holderIdentity": self._name,
                "leaseDurationSeconds": DURATION,
                "renewTime": rfc3339_micro(self._clock.time()),
            },
        }
