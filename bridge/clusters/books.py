"""The books of one account: what its job reports add up to. Synchronous, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from pbs_adapter.models import JobsReport, Observation


@dataclass(slots=True)
class Books:
    """`reported_at` is the monotonic time of the last report, `problem` why there is none newer (empty: all well).

    `noted` are submissions of ours by UID with their monotonic time: a report that was asked for before says nothing
    about them.
    """

    observations: dict[str, Observation] = field(default_factory=dict)
    noted: dict[str, float] = field(default_factory=dict)
    complete: bool = False
    reported_at: float | None = None
    problem: str = "not connected yet"
    cursor: str = ""

    def note(self, uid: str, job_id: str | None, now: float) -> bool:
        """A submission left: there is something on the cluster. False when a report has told more already."""
        known = self.observations.get(uid)
        if known is not None and (known.job_id or job_id is None):
            return False
        self.observations[uid] = Observation(uid, job_id=job_id, submitting=job_id is None)
        self.noted[uid] = now
        return True

    def apply(self, report: JobsReport, asked_at: float, now: float) -> set[str]:
        """Enter a report that was asked for at `asked_at`; the UIDs whose observation changed, came or went."""
        before = dict(self.observations) if report.full else {}
        changed = set()
        if report.full:
            kept = {uid: seen for uid, seen in self.observations.items() if self.noted.get(uid, -1.0) >= asked_at}
            self.observations.clear()
            self.observations.update(kept)
        for seen in report.observations:
            if report.full:
                if before.pop(seen.uid, None) != seen:
                    changed.add(seen.uid)
            elif self.observations.get(seen.uid) != seen:
                changed.add(seen.uid)
            self.observations[seen.uid] = seen
            self.noted.pop(seen.uid, None)
        changed |= before.keys() - self.observations.keys()
        for uid in report.gone:
            if self.observations.pop(uid, None) is not None:
                changed.add(uid)
        self.noted = {uid: at for uid, at in self.noted.items() if at >= asked_at and uid in self.observations}
        self.complete = report.complete
        self.reported_at = now
        self.cursor = report.cursor
        self.problem = "" if report.server_up else f"PBS does not answer: {report.server_message}"
        return changed

    def failed(self, problem: str) -> None:
        """A poll failed: what is known stays, but nothing new can be concluded from what is missing."""
        self.problem = problem
        self.complete = False
