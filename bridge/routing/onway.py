"""Pods that were sent to a cluster and that its census does not show yet: they count as load.

What is kept here is rebuilt from pods and jobs after a restart; an error makes an estimate worse for a minute, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from bridge.routing.load import NOTHING, Load, total
from pbs_adapter.models import Census, JobOptions

CENSUS_TAKES = 0.5  # s after which a job that is known is sure to be in a census that is asked for


@dataclass(slots=True)
class _Sent:
    cluster: str
    options: JobOptions
    job_since: float | None = None  # monotonic: when its job was first seen


class OnTheWay:
    """By pod UID. `has_job(cluster, uid)`: whether the pod's job is known."""

    def __init__(self, has_job: Callable[[str, str], bool]) -> None:
        self._has_job = has_job
        self._sent: dict[str, _Sent] = {}
        self._totals: dict[str, Load] = {}
        self._censuses: dict[str, tuple[Census, float]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._sent

    def of(self, cluster: str) -> Load:
        """What is on its way to the cluster."""
        return self._totals.get(cluster, NOTHING)

    def add(self, uid: str, cluster: str, options: JobOptions) -> None:
        """The pod has been sent there."""
        if uid not in self._sent:
            self._totals[cluster] = self.of(cluster).plus(options)
        self._sent[uid] = _Sent(cluster, options)

    def drop(self, uid: str) -> None:
        """It does not come after all."""
        if (sent := self._sent.pop(uid, None)) is not None:
            self._count([sent.cluster])

    def arrived(self, cluster: str, census: Census, asked: float) -> float:
        """Enter the newest census, which was asked for at `asked` (monotonic); return that."""
        known = self._censuses.get(cluster)
        if known is None or known[0] is not census:
            self._censuses[cluster] = known = census, asked
        return known[1]

    def settle(self, gone: Callable[[str, str], bool], now: float) -> None:
        """Forget what the census shows by now. gone(uid, cluster): the pod is not there, or not this cluster's."""
        done = [uid for uid, sent in self._sent.items() if self._is_over(uid, sent, gone, now)]
        for uid in done:
            del self._sent[uid]
        if done:
            self._count(self._totals)

    def _is_over(self, uid: str, sent: _Sent, gone: Callable[[str, str], bool], now: float) -> bool:
        if gone(uid, sent.cluster):
            return True
        if sent.job_since is None:
            if self._has_job(sent.cluster, uid):
                sent.job_since = now
            return False
        came = self._censuses.get(sent.cluster)
        return came is not None and came[1] > sent.job_since + CENSUS_TAKES

    def _count(self, clusters: Iterable[str]) -> None:
        wanted: Collection[str] = set(clusters)
        for name in wanted:
            self._totals[name] = total(sent.options for sent in self._sent.values() if sent.cluster == name)
