"""Jobs whose pod object is gone: deleted by force, or by somebody who did not wait. They are ended here.

As a kubelet does, with the grace that the pod's author asked for: whoever forces a deletion wants the object gone, not
the checkpoint lost. What cannot be ended within some minutes is left to the sweep, which looks with other eyes.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.pods import act as a
from bridge.pods.decide import LEAST_GRACE
from bridge.pods.outcome import Stage, outcome
from bridge.pods.record import Record
from pbs_adapter.models import JobRef, Json, Observation

LOOK_EVERY = 2.0
FORCE_AFTER = 15.0  # seconds after the grace, or after the cluster could not ask, until qdel
FORCE_EVERY = 10.0
GIVE_UP = 600.0  # seconds after the grace until the sweep may have it
DEFAULT_GRACE = 30
_OVER = (Stage.NONE, Stage.ENDED)


@dataclass(slots=True)
class _Orphan:
    ref: JobRef
    grace: int
    since: float
    record: Record


def may_live(seen: Observation | None, *, sure: bool) -> bool:
    """Whether a job of the pod may still be there."""
    stage = outcome(seen).stage
    return stage not in _OVER or (stage is Stage.NONE and not sure)


def spec_grace(pod: Json) -> int:
    """The grace that the pod's author asked for, never less than a kubelet gives."""
    asked = pod["spec"].get("terminationGracePeriodSeconds")
    return max(LEAST_GRACE, DEFAULT_GRACE if asked is None else int(asked))


class Orphans:
    """The pods of one node whose object is gone while their job may live; `uids` is a live view."""

    def __init__(self) -> None:
        self._orphans: dict[str, _Orphan] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._orphans

    def add(self, ref: JobRef, pod: Json, now: float) -> None:
        """The pod's object is gone. One that is known already keeps its clock."""
        self._orphans.setdefault(ref.uid, _Orphan(ref, spec_grace(pod), now, Record()))

    def uids(self) -> list[str]:
        """All of them."""
        return list(self._orphans)

    def owned(self, now: float) -> set[str]:
        """Those that the sweep must leave alone, since they are being ended here."""
        return {uid for uid, each in self._orphans.items() if now < each.since + each.grace + GIVE_UP}

    def account(self, uid: str) -> str | None:
        """The account of an orphan's job."""
        return self._orphans[uid].ref.account if uid in self._orphans else None

    async def end(self, scene: a.Scene, uid: str, seen: Observation | None, *, sure: bool) -> float:
        """Take the next step; when to look again (epoch seconds), 0: the job is over."""
        each = self._orphans[uid]
        if not may_live(seen, sure=sure):
            self._orphans.pop(uid, None)
            return 0.0
        now, record = scene.clock.time(), each.record
        if record.cancel_grace is None and not record.cancel_failed_at:
            await a.cancel(scene, each.ref, record, grace=each.grace, force=False)
            return now + LOOK_EVERY
        force_at = record.cancel_failed_at or each.since + each.grace
        if now >= force_at + FORCE_AFTER and now - record.forced_at >= FORCE_EVERY:
            await a.cancel(scene, each.ref, record, grace=LEAST_GRACE, force=True)
        elif record.cancel_grace is None:
            await a.cancel(scene, each.ref, record, grace=each.grace, force=False)
        return now + LOOK_EVERY
