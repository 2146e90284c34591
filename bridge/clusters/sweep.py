"""Ends jobs that no pod owns any more, and clears away what ended pods left on the cluster.

A pod may vanish while no agent runs (force delete, its node deleted), so its job is found only by comparing both sides.
An error here would kill other people's work: a job must be without a pod in two complete looks, and when many jobs
look like that at once, the sweep suspects itself and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from bridge.clusters.link import ClusterLink
from bridge.kube.clock import Clock, SystemClock
from bridge.telemetry import Metrics
from pbs_adapter.errors import AdapterError
from pbs_adapter.models import JobRef, Observation, Seen

GRACE = 30  # s between SIGTERM and SIGKILL of an orphan, as pods have by default
MANY = 20  # orphans that are never too many
SHARE = 0.2  # of all jobs; above it, and above MANY, something is wrong with us

log = structlog.get_logger(__name__)
KnownUids = Callable[[], Collection[str] | None]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A UID without a pod: monotonic times of the first look that found it, the last cancellation, its job's end."""

    since: float
    cancelled: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the job; `force` when it has been asked before and its grace is over."""

    uid: str
    force: bool


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the pod directory."""

    uid: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, what to remember for the next look, and whether the sweep refused to cancel."""

    actions: tuple[Cancel | Remove, ...]
    orphans: Mapping[str, Orphan]
    stopped: bool = False


def ended(seen: Observation) -> bool:
    """Whether nothing of the job can be alive: podrun said so, PBS gave an exit status, or PBS certainly has no job."""
    if seen.pbs.seen is Seen.ABSENT or seen.pbs.exit_status is not None:
        return True
    return seen.pbs.seen is not Seen.PRESENT and (seen.status or {}).get("phase") == "Ended"


def sweep(
    observed: Mapping[str, Observation],
    known: Collection[str],
    previous: Mapping[str, Orphan],
    now: float,
    *,
    apart: float,
    keep: float,
) -> Verdict:
    """One complete look at one account's pod directories.

    known: UIDs of pods that exist. previous: the orphans of the last complete look. now: monotonic. apart: seconds
    between two looks before a job is cancelled. keep: seconds an ended orphan's directory stays.
    """
    orphans: dict[str, Orphan] = {}
    actions: list[Cancel | Remove] = []
    for uid in sorted(observed.keys() - set(known)):
        was = previous.get(uid, Orphan(now))
        if ended(observed[uid]):
            over = was.ended if was.ended is not None else now
            orphans[uid] = Orphan(was.since, was.cancelled, over)
            if now - over >= keep and now - was.since >= apart:
                actions.append(Remove(uid))
        elif now - was.since >= apart and (was.cancelled is None or now - was.cancelled >= GRACE):
            orphans[uid] = Orphan(was.since, now)
            actions.append(Cancel(uid, force=was.cancelled is not None))
        else:
            orphans[uid] = was
    jobs = sum(not ended(seen) for seen in observed.values())
    living = sum(orphan.ended is None for orphan in orphans.values())
    if living > MANY and living > SHARE * jobs:
        return Verdict((), {uid: previous.get(uid, Orphan(now)) for uid in orphans}, stopped=True)
    return Verdict(tuple(actions), orphans)


class Sweeper:
    """Looks at one cluster every `interval` seconds.

    known: the UIDs of all pods that exist, on whatever node; None while that is not known. allowed: whether this
    process may act (it leads).
    """

    def __init__(
        self,
        link: ClusterLink,
        known: KnownUids,
        interval: float,
        *,
        allowed: Callable[[], bool] = lambda: True,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._link = link
        self._known = known
        self._interval = interval
        self._allowed = allowed
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._orphans: dict[str, Mapping[str, Orphan]] = {}

    def __repr__(self) -> str:
        return f"<Sweeper {self._link.settings.name} orphans={sum(map(len, self._orphans.values()))}>"

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self._clock.sleep(self._interval)
            await self.look()

    async def look(self) -> None:
        """One look at every account that is completely known now; the others keep what was found before."""
        stopped = False
        for account in self._link.settings.accounts:
            known = self._known()
            if known is None or not self._link.complete(account.name) or not self._allowed():
                continue
            verdict = sweep(
                self._link.of_account(account.name),
                known,
                self._orphans.get(account.name, {}),
                self._clock.monotonic(),
                apart=self._interval * 0.9,  # two looks, whatever the loop's own delay
                keep=self._link.settings.keep_directories,
            )
            self._orphans[account.name] = verdict.orphans
            stopped |= verdict.stopped
            if verdict.stopped:
                log.error(
                    "sweep.stopped",
                    cluster=self._link.settings.name,
                    account=account.name,
                    orphans=len(verdict.orphans),
                )
            for action in verdict.actions:
                if self._allowed():
                    await self._perform(action, JobRef(account.name, action.uid))
        if self._metrics is not None:
            self._metrics.sweep_stopped.labels(self._link.settings.name).set(stopped)

    async def _perform(self, action: Cancel | Remove, ref: JobRef) -> None:
        where = {"cluster": self._link.settings.name, "account": ref.account, "pod_uid": ref.uid}
        try:
            if isinstance(action, Remove):
                await self._link.remove(ref)
                log.info("sweep.removed", **where)
                return
            await self._link.cancel(ref, GRACE, force=action.force)
            log.warning("sweep.cancelled", force=action.force, **where)
            if self._metrics is not None and not action.force:
                self._metrics.swept.labels(self._link.settings.name).inc()
        except AdapterError as error:  # the next look finds it again
            log.warning("sweep.failed", error=str(error), **where)
