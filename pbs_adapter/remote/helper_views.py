"""What PBS's answers mean for one job: pure functions from an old view and an answer to the next view.

A job is PRESENT, ABSENT (certainly gone) or UNKNOWN (nothing can be said); absence is never concluded from an error,
nor from one missing line. `at` is when PBS last spoke of the job, UTC epoch seconds.
"""

from typing import Any, Dict, NamedTuple, Optional

from .helper_dirs import Marks
from .parse import Job, TableRow

PRESENT, ABSENT, UNKNOWN = "present", "absent", "unknown"
#: A job that the history shows as finished is given this long for its last status.json to become visible, s.
FINISHED_SETTLE = 10.0
COMMENT_AGE = 60.0


class View(NamedTuple):
    """`models.PbsView`, field by field."""

    seen: str = UNKNOWN
    at: float = 0.0
    state: str = ""
    substate: Optional[int] = None
    comment: str = ""
    queue: str = ""
    exec_vnode: str = ""
    exit_status: Optional[int] = None
    estimated: Optional[float] = None  # PBS's own estimate of the start, where the site has it made


class Missing(NamedTuple):
    """A job that the table does not show: when it was first and last asked for by its id (monotonic seconds)."""

    first: float
    last: float
    finished: bool  # the history showed it


def submitted(now: float) -> View:
    """qsub has just answered with the id."""
    return View(PRESENT, now, "Q")


def without_job(marks: Marks, now: float) -> View:
    """A pod directory without a job id: a lock or a claim may stand for a job, nothing stands for none."""
    return View(UNKNOWN if marks.locked or marks.claimed else ABSENT, now)


def from_row(old: View, row: TableRow, now: float) -> View:
    """The job is in the table; what the table does not say stays as long as the state is the same."""
    queue = row.queue if not row.queue.endswith("*") else old.queue
    if old.seen == PRESENT and old.state == row.state:
        return old._replace(at=now, queue=queue)
    return View(PRESENT, now, row.state, None, "", queue, old.exec_vnode if row.state in "RSUE" else "")


def from_job(job: Job, now: float) -> View:
    """The job as `qstat -f` shows it. In state F its exit status counts, otherwise it may be from an earlier run."""
    exit_status = job.exit_status if job.state in ("F", "X") else None
    comment = job.comment[:4096]
    vnodes = job.exec_vnode[:8192]
    return View(PRESENT, now, job.state, job.substate, comment, job.queue, vnodes, exit_status, job.estimated_start)


def needs_detail(view: View, detail_at: Optional[float], now: float) -> bool:
    """Whether `qstat -f` has something to add: the comment of a job that waits, the vnodes of one that runs."""
    if view.seen != PRESENT or view.state == "F":
        return False
    if detail_at is None or view.substate is None:
        return True
    return view.state not in "RSUE" and now - detail_at >= COMMENT_AGE


def is_over(marks: Marks, deleted: bool) -> bool:
    """Whether a job that the table does not show is certainly gone, without asking further.

    Its podrun has said so; or we have deleted it before it claimed the pod directory.
    """
    return marks.ended or (deleted and not marks.claimed)


def check_due(missing: Optional[Missing], now: float, lost_after: float) -> bool:
    """Whether to ask for a missing job by its id: at once, and once more after a while."""
    return missing is None or now - missing.last >= _interval(missing, lost_after)


def after_check(
    old: View, missing: Optional[Missing], job: Optional[Job], now: float, clock: float, lost_after: float
) -> "tuple[View, Optional[Missing]]":
    """One answer about a missing job by its id; `job` None: PBS knows none. `clock` is monotonic, `now` UTC."""
    if job is not None and job.state not in ("F", "X"):
        return from_job(job, now), None
    finished = job is not None
    view = from_job(job, now) if job is not None else old._replace(seen=UNKNOWN, at=now)
    if missing is None or (finished and not missing.finished):
        return view, Missing(clock, clock, finished)
    if clock - missing.first >= _interval(missing, lost_after):
        view = view._replace(seen=ABSENT)
    return view, missing._replace(last=clock)


def _interval(missing: Missing, lost_after: float) -> float:
    return min(FINISHED_SETTLE, lost_after) if missing.finished else lost_after


def observation(uid: str, marks: Marks, view: View) -> Dict[str, Any]:
    """`models.Observation` as JSON."""
    return {
        "uid": uid,
        "job_id": marks.job_id,
        "submitting": marks.locked and marks.job_id is None,
        "claimed": marks.claimed,
        "stopping": marks.stopping,
        "pbs": dict(view._asdict()),
        "status": marks.status,
        "status_problem": marks.problem,
    }
