"""The books of one account: what its job reports add up to. Synchronous, no I/O.

Reports come from a helper that could be anybody's: what they add up to is bounded, pages that go on for ever end, and
nothing is concluded from what is missing before the last page of a whole report is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pbs_adapter.models import JobsReport, Observation

MOST = 64 << 20  # bytes of observations that an account may cost: about 40,000 pods
PAGES = 500  # of one report
HUNG = 90.0  # s after which files that have not been read hang: the helper looks at them every two seconds
IDLE = 300.0  # s after which a PBS that has not been asked, whatever it answered, is not being asked


@dataclass(slots=True)
class _Telling:
    """Everything is being told: since when it was asked for (monotonic), the UIDs so far, and the pages."""

    asked_at: float
    told: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Books:
    """`reported_at` is the monotonic time of the last report, `problem` why there is none newer (empty: all well).

    `noted` are submissions of ours by UID with their monotonic time: a report that was asked for before says nothing
    about them. `foreign(uid)`: whether the UID is served by another account, so that what this one says of it is a lie.
    """

    observations: dict[str, Observation] = field(default_factory=dict)
    noted: dict[str, float] = field(default_factory=dict)
    complete: bool = False
    reported_at: float | None = None
    problem: str = "not connected yet"
    cursor: str = ""
    most: int = MOST
    foreign: Callable[[str], bool] = lambda uid: False
    lies: int = 0  # observations that were dropped
    _telling: _Telling | None = None
    _pages: int = 0
    _weight: int = 0

    def note(self, uid: str, job_id: str | None, now: float) -> bool:
        """A submission left: there is something on the cluster. False when a report has told more already."""
        known = self.observations.get(uid)
        if known is not None and (known.job_id or job_id is None):
            return False
        self._put(Observation(uid, job_id=job_id, submitting=job_id is None))
        self.noted[uid] = now
        return True

    def apply(self, report: JobsReport, asked_at: float, now: float) -> set[str]:
        """Enter a report that was asked for at `asked_at`; the UIDs whose observation changed, came or went."""
        if report.full:
            self._telling, self._pages = _Telling(asked_at), 0
        changed = {seen.uid for seen in report.observations if self._enter(seen)}
        changed |= {uid for uid in report.gone if self._drop(uid)}
        if self._telling is not None:
            self._telling.told.difference_update(report.gone)
        if self._telling is not None and report.complete and not report.more:
            changed |= self._conclude(self._telling)
        since = asked_at if self._telling is None else self._telling.asked_at
        self.noted = {uid: at for uid, at in self.noted.items() if at >= since and uid in self.observations}
        self._pages = self._pages + 1 if report.more else 0
        self.reported_at = now
        self.cursor = report.cursor
        self.complete = report.complete and not report.more and self._telling is None
        self.problem = self._problem(report)
        return changed

    def _enter(self, seen: Observation) -> bool:
        if self.foreign(seen.uid):
            self.lies += 1
            return self._drop(seen.uid)
        if self._telling is not None:
            self._telling.told.add(seen.uid)
        self.noted.pop(seen.uid, None)
        if self.observations.get(seen.uid) == seen or self._weight > self.most:
            return False
        self._put(seen)
        return True

    def _put(self, seen: Observation) -> None:
        self._drop(seen.uid)
        self.observations[seen.uid] = seen
        self._weight += weight(seen)

    def _drop(self, uid: str) -> bool:
        old = self.observations.pop(uid, None)
        self._weight -= weight(old) if old is not None else 0
        return old is not None

    def _conclude(self, telling: _Telling) -> set[str]:
        """Everything has been told: what has not is gone, unless it was submitted after that was asked for."""
        self._telling = None
        kept = {uid for uid, at in self.noted.items() if at >= telling.asked_at}
        missing = self.observations.keys() - telling.told - kept
        return {uid for uid in missing if self._drop(uid)}

    def _problem(self, report: JobsReport) -> str:
        """Why the account cannot be used as this report has it. What is spoilt is asked for anew from the start."""
        if report.spoilt or self._pages > PAGES or self._weight > self.most:
            self.complete, self.cursor, self._telling = False, "", None
            if self._weight > self.most:
                return f"it has more pods than an agent keeps in mind ({self.most >> 20} MiB): {len(self.observations)}"
            return report.spoilt or "the helper's report goes on for ever"
        if not report.server_up:
            return f"PBS does not answer: {report.server_message}"
        if report.read_age is not None and report.read_age > HUNG:
            return f"files hang on the login node: no pod directory could be read for more than {HUNG:.0f} s"
        if report.poll_age is not None and report.poll_age > IDLE:
            return f"the helper hangs: it has not asked PBS for more than {IDLE:.0f} s"
        return ""

    def failed(self, problem: str) -> None:
        """A poll failed: what is known stays, but nothing new can be concluded from what is missing."""
        self.problem = problem
        self.complete = False


def weight(seen: Observation) -> int:
    """About the bytes that an observation takes. What cannot be many is counted as if it were large."""
    status = seen.status or {}
    containers = status.get("containers") or {}
    texts = len(seen.pbs.comment) + len(seen.pbs.exec_vnode) + len(seen.status_problem)
    for container in containers.values():
        texts += 700 + len(container.get("message") or "") + len((container.get("last") or {}).get("message") or "")
    return 1000 + 2 * texts + 2 * len(status.get("message") or "")
