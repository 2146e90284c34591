"""What an observation of a job means for its pod: one word, and for ended jobs the reason. Pure.

PBS's states and podrun's own status are turned into a `Stage` by literal tables. Absence is never read as success:
without podrun's final status a job that is gone is a failure, and a job that cannot be seen is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bridge.api import reasons
from pbs_adapter.models import Json, Observation, PbsView, Seen


class Stage(StrEnum):
    """Where a pod's job is."""

    NONE = "none"  # nothing on the cluster
    SUBMITTING = "submitting"  # a directory or lock, no job id yet
    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"
    UNKNOWN = "unknown"  # cannot be seen now


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason` and `message` explain waiting stages and failures; `disruption`: the cluster ended it, not the pod."""

    stage: Stage
    succeeded: bool = False
    reason: str = ""
    message: str = ""
    disruption: bool = False


# PBS job state letter → stage while podrun has written nothing. E: podrun is starting or has just ended.
STAGE_OF_STATE: dict[str, Stage] = {
    "Q": Stage.QUEUED,
    "T": Stage.QUEUED,
    "W": Stage.QUEUED,
    "M": Stage.UNKNOWN,
    "H": Stage.HELD,
    "R": Stage.QUEUED,
    "E": Stage.QUEUED,
    "S": Stage.SUSPENDED,
    "U": Stage.SUSPENDED,
    "B": Stage.QUEUED,
}

SECOND_START = 75  # podrun's exit status when its pod has been run before
_LOST_WITH_NODE = "the compute node was lost while the job ran (PBS exit status -20)"

# Negative exit statuses of PBS (facts: job.h) → reason, message, disruption.
PBS_EXIT: dict[int, tuple[str, str, bool]] = {
    -1: (reasons.PBS_START_FAILED, "PBS could not start the job, before files were staged", False),
    -2: (reasons.PBS_START_FAILED, "PBS could not start the job, after files were staged", False),
    -3: (reasons.PBS_START_FAILED, "PBS could not start the job and gave up", False),
    -4: (reasons.PBS_VANISHED, "the job was aborted when its compute node's PBS restarted", True),
    -10: (reasons.PBS_START_FAILED, "PBS does not accept this user or group on the compute node", False),
    -11: (reasons.PBS_DELETED, "the job was to be rerun, which its pod cannot", True),
    -16: (reasons.PBS_START_FAILED, "a hook of the site rejected the job (requeue)", True),
    -17: (reasons.PBS_START_FAILED, "a hook of the site rejected the job", False),
    -19: (reasons.PBS_DELETED, "a hook of the site deleted the job", True),
    -20: (reasons.PBS_VANISHED, _LOST_WITH_NODE, True),
    -24: (reasons.PBS_DELETED, "PBS ended the job: it used more CPUs than it asked for", False),
    -25: (reasons.PBS_DELETED, "PBS ended the job: it used more CPUs than it asked for", False),
    -26: ("OOMKilled", "PBS ended the job: it used more virtual memory than it asked for", False),
    -27: ("OOMKilled", "PBS ended the job: it used more memory than it asked for", False),
    -28: (reasons.PBS_WALLTIME, "PBS ended the job: its CPU time was used up", False),
    -29: (reasons.PBS_WALLTIME, "PBS ended the job: its walltime was used up", False),
}

# podrun's own reasons for ending a pod → is it a disruption (the cluster's doing)?
PODRUN_REASONS: dict[str, bool] = {
    reasons.DEADLINE: False,
    reasons.PBS_WALLTIME: False,
    reasons.PBS_DELETED: True,
    reasons.PBS_START_FAILED: False,
    reasons.NUMA_SPLIT: True,  # nothing of the pod ran: a Job may try again without counting it
    reasons.SPOOL_FULL: False,
    "Stopped": False,
}


def outcome(observation: Observation | None) -> Outcome:
    """Return where the job is. `None` (nothing seen) is `Stage.NONE`; whether that is sure, the caller knows."""
    if observation is None:
        return Outcome(Stage.NONE)
    status, pbs = observation.status, observation.pbs
    if status is not None and status.get("phase") == "Ended":
        return _ended(status)
    if observation.job_id is None and not observation.claimed and status is None:
        # Nothing was submitted (a qsub that was refused leaves the directory), or it was cancelled before that.
        cancelled = observation.stopping and (not observation.submitting or pbs.seen is Seen.ABSENT)
        return Outcome(Stage.ENDED if cancelled else Stage.SUBMITTING)
    if pbs.seen is Seen.ABSENT:
        return _gone(observation)
    if status is not None:
        if pbs.seen is Seen.PRESENT and pbs.state in ("S", "U"):
            return Outcome(Stage.SUSPENDED, reason=reasons.PBS_SUSPENDED, message=pbs.comment)
        if status.get("phase") == "Starting" and not _any_container_started(status):
            return _queued(observation)
        return Outcome(Stage.RUNNING)
    return _queued(observation)


def _any_container_started(status: Json) -> bool:
    containers = status.get("containers")
    return isinstance(containers, dict) and any(
        isinstance(c, dict) and c.get("state") in ("running", "terminated") for c in containers.values()
    )


def _queued(observation: Observation) -> Outcome:
    pbs = observation.pbs
    stage = STAGE_OF_STATE.get(pbs.state, Stage.QUEUED)
    job = f"job {observation.job_id}" if observation.job_id else "the job"
    if pbs.state in ("R", "E"):  # the comment says where it runs; podrun will say that it does
        return Outcome(stage, reason=reasons.PBS_QUEUED, message=f"{job} is starting")
    text = pbs.comment or f"{job} waits in PBS"
    if stage is Stage.HELD:
        told = f" ({pbs.comment})" if pbs.comment else ""  # perhaps from before it was held
        return Outcome(stage, reason=reasons.PBS_HELD, message=f"{job} is held in PBS{told}")
    if stage is Stage.SUSPENDED:
        return Outcome(stage, reason=reasons.PBS_SUSPENDED, message=text)
    return Outcome(stage, reason=reasons.PBS_QUEUED, message=text)


def _ended(status: Json) -> Outcome:
    reason = status.get("reason")
    reason = reason if isinstance(reason, str) and reason in PODRUN_REASONS else ""
    message = status.get("message")
    message = message[:1024] if isinstance(message, str) else ""
    succeeded = status.get("result") == "Succeeded" and reason in ("", "Stopped")
    shown = "" if reason == "Stopped" else reason
    return Outcome(Stage.ENDED, succeeded, shown, message if shown else "", PODRUN_REASONS.get(reason, False))


def _gone(observation: Observation) -> Outcome:
    pbs, job = observation.pbs, observation.job_id or "the job"
    if pbs.exit_status is not None and pbs.exit_status < 0:
        reason, message, disruption = PBS_EXIT.get(
            pbs.exit_status, (reasons.PBS_VANISHED, f"PBS ended the job with exit status {pbs.exit_status}", False)
        )
        return Outcome(Stage.ENDED, reason=reason, message=f"{job}: {message}", disruption=disruption)
    if observation.stopping and not observation.claimed:
        return Outcome(Stage.ENDED, reason="", message="", disruption=False)
    if pbs.exit_status == SECOND_START and observation.claimed:
        text = f"PBS queued {job} again after it had run, and started it once more; a pod runs at most once"
        return Outcome(Stage.ENDED, reason=reasons.PBS_REQUEUED, message=text, disruption=True)
    if pbs.substate == 91 or (pbs.exit_status is not None and pbs.exit_status >= 256):
        return Outcome(Stage.ENDED, reason=reasons.PBS_DELETED, message=_deleted_text(job, pbs), disruption=True)
    return Outcome(
        Stage.ENDED,
        reason=reasons.PBS_VANISHED,
        message=f"PBS no longer knows {job}, and it left no final status; it was killed with its node, or purged",
        disruption=True,
    )


def _deleted_text(job: str, pbs: PbsView) -> str:
    return f"{job} was ended in PBS from outside (qdel, operator or preemption)" + (
        f": {pbs.comment}" if pbs.comment else ""
    )
