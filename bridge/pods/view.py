"""What a node's kubelet port and the status report show of its pods: read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from bridge.kube.reflector import Reflector
from bridge.plan.model import Json
from bridge.pods.status import shown_state
from pbs_adapter.errors import Permanent
from pbs_adapter.models import JobRef, LogQuery


class LogSource(Protocol):
    """What of a cluster's connection is used here."""

    def logs(self, ref: JobRef, query: LogQuery) -> AsyncIterator[bytes]: ...


class NodePods:
    """The pods of one virtual node."""

    def __init__(self, pods: Reflector, link: LogSource, account_of: Callable[[Json], str | None]) -> None:
        self._pods = pods
        self._link = link
        self._account_of = account_of

    def pod(self, namespace: str, name: str) -> Json | None:
        """The pod of this name, when it is bound to this node."""
        for pod in self._pods.items.values():
            if pod["metadata"]["name"] == name and pod["metadata"]["namespace"] == namespace:
                return pod
        return None

    def all(self) -> list[Json]:
        """Every pod of this node."""
        return list(self._pods.items.values())

    def states(self) -> Counter[str]:
        """Pods by what `kubectl get pods` shows as their status."""
        return Counter(shown_state(pod) for pod in self._pods.items.values())

    def logs(self, pod: Json, query: LogQuery) -> AsyncIterator[bytes]:
        """The container's log; `Permanent` when no account serves the pod's namespace."""
        account = self._account_of(pod)
        if account is None:
            raise Permanent(f"no account serves namespace {pod['metadata']['namespace']}")
        return self._link.logs(JobRef(account, pod["metadata"]["uid"]), query)
