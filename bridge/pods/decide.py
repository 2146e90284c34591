"""What to do next for one pod. Pure: a situation goes in, frozen actions come out; `bridge.pods.act` performs them.

Actions are ordered. `Submit` and `Annotate` change what the next decision sees, so they come last and the pod is
decided again after them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bridge.api import names, reasons
from bridge.kube.clock import parse_rfc3339
from bridge.pods import live
from bridge.pods.admission import scheduled
from bridge.pods.containers import Waiting
from bridge.pods.outcome import Outcome, Stage
from bridge.pods.record import Failure, Situation
from bridge.pods.status import differs, made, reduced, status
from pbs_adapter.models import Json, Seen

FORCE_AFTER = 15.0  # seconds after the grace period until qdel
FORCE_EVERY = 30.0
LEAST_GRACE = 2  # a kubelet never gives less
ENOUGH_REFUSALS = 2  # of a status, whole and reduced, after which a pod that is to go goes without it
RESEND_AFTER = 10.0  # seconds until a status that somebody else changed is sent again
FIRST_LOOK = 5.0  # seconds after a submission in which PBS has told why the job waits; the helper asks after two
MESSAGE_EVERY = 300.0  # seconds between status writes that change a message only
TERMINAL = ("Succeeded", "Failed")
_JOB_ID = re.compile(r"\d{1,18}\.[A-Za-z0-9_.-]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Patch the pod's status with `fields`."""

    fields: Json
    message_only: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Gather the inputs, freeze the plan, and have PBS take the job (at most once for this UID).

    shown: the status to write if that takes long; else the pod's first status is what came of it.
    """

    shown: Json | None = None


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write job id and cluster: annotations that go with the status."""

    job_id: str


@dataclass(frozen=True, slots=True)
class AnnotateSpan:
    """Write on how many NUMA domains the job came to be: known only now that it runs."""

    text: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """Look again at what the pod's volumes are made from, and write what changed."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the job within `grace` seconds; `force`: qdel."""

    grace: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the Pod object: grace 0, only this UID."""


@dataclass(frozen=True, slots=True)
class Announce:
    """An Event on the pod; `once` is a key that is announced a single time, or every so many seconds."""

    kind: str
    reason: str
    message: str
    once: str
    every: float = 0.0


Action = WriteStatus | Submit | Annotate | AnnotateSpan | Refresh | Cancel | Delete | Announce


@dataclass(frozen=True, slots=True)
class Decision:
    """Actions in order, and when to look again even if nothing happens (epoch seconds, 0: no need)."""

    actions: tuple[Action, ...] = ()
    wake_at: float = 0.0


def decide(s: Situation) -> Decision:
    """Return the next actions for the pod."""
    if s.phase in TERMINAL:
        return _ended(s)
    if is_daemon(s.pod) and s.seen is None:
        return _daemon(s)
    if s.deleting:
        return _stop(s)
    if s.record.failure is not None:
        return _refuse(s, s.record.failure)
    if s.result.stage in (Stage.NONE, Stage.SUBMITTING):
        return _start(s)
    return _follow(s)


def is_daemon(pod: Json) -> bool:
    """Does a DaemonSet own the pod? Such pods are never submitted: they serve a node, and there is none."""
    return any(o.get("kind") == "DaemonSet" and o.get("controller") for o in pod["metadata"].get("ownerReferences", []))


def replaced_at_once(pod: Json) -> bool:
    """Does a controller put another pod in this one's place as soon as it ends, without a pause?

    ReplicaSets, StatefulSets and their like do, and know no other restartPolicy than Always; Jobs and workflows, which
    count what failed, have another one. A failure tells those nothing, and makes thousands of pods.
    """
    owned = any(o.get("controller") for o in pod["metadata"].get("ownerReferences", []))
    return owned and pod["spec"].get("restartPolicy", "Always") == "Always"


def _daemon(s: Situation) -> Decision:
    if s.deleting:
        return Decision((Delete(),))
    message = "DaemonSet pods are not run on virtual nodes; `hpc-bridge doctor` gives the patch that keeps them off"
    return _show(s, Waiting(reasons.DAEMON, message))


def _ended(s: Situation) -> Decision:
    """A terminal status is final. What is left: a job that outlived it, and the object when its deletion is asked."""
    alive = s.result.stage not in (Stage.NONE, Stage.ENDED)
    actions: list[Action] = []
    if alive and s.now - s.record.forced_at >= FORCE_EVERY:
        actions.append(Cancel(0, force=True))
    if s.deleting and not alive:
        actions.append(Delete())
    return Decision(tuple(actions), s.now + FORCE_EVERY if alive else 0.0)


def _stop(s: Situation) -> Decision:
    stage = s.result.stage
    if stage is Stage.ENDED or (stage is Stage.NONE and s.sure):
        result = s.result if stage is Stage.ENDED else Outcome(Stage.ENDED)
        told = _write(s, status(s, result=result))
        if told.actions and s.record.refusals < ENOUGH_REFUSALS:
            return Decision(told.actions, s.now + RESEND_AFTER)
        if s.now < s.record.refused_until and s.record.refusals < ENOUGH_REFUSALS:
            return Decision(wake_at=s.record.refused_until)
        return Decision((Delete(),), s.now + RESEND_AFTER)
    grace = max(LEAST_GRACE, int(s.pod["metadata"].get("deletionGracePeriodSeconds") or 0))
    force_at = (parse_rfc3339(s.pod["metadata"]["deletionTimestamp"]) or s.now) + FORCE_AFTER
    actions: list[Action] = []
    failed_at = s.record.cancel_failed_at if s.record.cancel_grace is None else 0.0
    if failed_at:
        force_at = max(force_at, failed_at + FORCE_AFTER)
    asked = s.record.cancel_grace is not None and grace >= s.record.cancel_grace
    if s.reachable and not asked and not (failed_at and s.now >= force_at):
        actions += [Announce("Normal", reasons.KILLING, "Stopping the pod's job", "killing"), Cancel(grace)]
    elif s.reachable and s.now >= force_at and s.now - s.record.forced_at >= FORCE_EVERY:
        actions.append(Cancel(0, force=True))
    shown = _show(s, None)
    return Decision((*actions, *shown.actions), max(force_at, s.now + 1.0) if s.now < force_at else s.now + FORCE_EVERY)


def _refuse(s: Situation, failure: Failure) -> Decision:
    """The pod cannot be run: it ends, or waits with the reason where its successor would fare no better.

    What a kubelet's own admission rejects ends in any case, as there: the scheduler was not asked.
    """
    if failure.rejected or s.began or not replaced_at_once(s.pod):
        return _fail(s, failure)
    event = Announce("Warning", failure.reason, failure.message, f"failed:{failure.reason}")
    shown = _show(s, Waiting(failure.reason, failure.message))
    return Decision((event, *shown.actions), shown.wake_at)


def _fail(s: Situation, failure: Failure) -> Decision:
    fields = status(s, failure=failure)
    event = Announce("Warning", failure.reason, failure.message, f"failed:{failure.reason}")
    return Decision((event, *_write(s, fields).actions), s.now + RESEND_AFTER)


def _start(s: Situation) -> Decision:
    """Nothing of the job exists, or a submission was interrupted."""
    if not s.sure or not s.reachable:
        away = Waiting(reasons.CLUSTER_UNREACHABLE, s.trouble) if s.trouble else None
        return _show(s, s.record.hold or away)
    if s.result.stage is Stage.NONE and s.has_run:
        message = "the pod was submitted before, and neither PBS nor its directory on the cluster know of it any more"
        return _fail(s, Failure(reasons.PBS_VANISHED, message, disruption=True))
    if s.result.stage is Stage.NONE and s.misfit != "":
        return _show(s, s.record.hold) if s.misfit is None else _too_big(s, s.misfit)
    shown = _show(s, s.record.hold)
    if s.now < s.record.retry_at:
        return Decision(shown.actions, s.record.retry_at)
    write = shown.actions[0] if shown.actions else None
    if isinstance(write, WriteStatus) and s.record.hold is None and scheduled(s.pod):
        return Decision((Submit(write.fields),))
    return Decision((*shown.actions, Submit()))  # those nobody scheduled are counted by the time of their acceptance


def _too_big(s: Situation, misfit: str) -> Decision:
    """PBS would take the job and let it wait for ever."""
    due = (s.record.misfit_since or s.now) + s.patience
    if s.now >= due and not replaced_at_once(s.pod):
        return _fail(s, Failure(reasons.UNSATISFIABLE, misfit))
    event = Announce("Warning", reasons.UNSATISFIABLE, misfit, "misfit", MESSAGE_EVERY)
    shown = _show(s, Waiting(reasons.UNSATISFIABLE, misfit))
    return Decision((event, *shown.actions), min(shown.wake_at or due, due) if due > s.now else shown.wake_at)


def _follow(s: Situation) -> Decision:
    result = s.result
    job_id = _job_id(s)
    written = s.pod["metadata"].get("annotations", {}).get(names.JOB_ID)
    if job_id and written != job_id and not s.record.annotated:
        return Decision((Annotate(job_id),))
    if result.stage is Stage.HELD and s.now >= s.held_until:
        text = f"{result.message}; the settings allow {s.held_limit:.0f} s (heldLimit)"
        return _fail(s, Failure(reasons.PBS_HELD, text, disruption=True))
    actions: list[Action] = []
    if result.stage is Stage.HELD:
        actions.append(Announce("Warning", reasons.PBS_HELD, result.message, "held", MESSAGE_EVERY))
    elif s.seen is not None and s.seen.pbs.comment and result.message == s.seen.pbs.comment:
        kind = "Normal" if result.stage is Stage.QUEUED else "Warning"
        actions.append(Announce(kind, reasons.WAITING, result.message, "waiting", MESSAGE_EVERY))
    if s.numa and not s.record.span_written and names.NUMA_SPAN not in s.pod["metadata"].get("annotations", {}):
        actions.append(AnnotateSpan(s.numa))
    if result.stage is Stage.ENDED and result.reason:
        actions.append(Announce("Warning", result.reason, result.message, f"ended:{result.reason}"))
    actions += _backing_off(s)
    shown = Decision(wake_at=s.record.wrote_at + FIRST_LOOK) if _not_looked_yet(s) else _show(s, None)
    actions += shown.actions
    wake = shown.wake_at
    if result.stage is Stage.HELD:
        wake = min(wake or s.held_until, s.held_until)
    if result.stage is not Stage.ENDED:
        actions += [
            Announce("Warning", reasons.CHANGE_IGNORED, change.message, change.key, MESSAGE_EVERY)
            for change in live.ignored(s.pod, made(s))
        ]
    if s.record.refresh_at and result.stage is not Stage.ENDED:
        if s.now >= s.record.refresh_at and s.reachable:
            actions.append(Refresh())
        wake = min(w for w in (wake, max(s.record.refresh_at, s.now + 1.0)) if w)
    return Decision(tuple(actions), wake)


def _backing_off(s: Situation) -> list[Action]:
    """As a kubelet's Event of a crash loop. Created and Started are not told: they would double a pod's Events."""
    view = (s.seen.status or {}).get("containers") if s.seen is not None else None
    seen = view if isinstance(view, dict) else {}
    names_ = [c["name"] for key in ("initContainers", "containers") for c in s.pod["spec"].get(key, [])]
    return [
        Announce(
            "Warning", reasons.BACK_OFF, f"Back-off restarting failed container {n}", f"backoff:{n}", MESSAGE_EVERY
        )
        for n in names_
        if isinstance(seen.get(n), dict) and seen[n].get("reason") == reasons.CRASH_LOOP
    ]


def _not_looked_yet(s: Situation) -> bool:
    """Just submitted, and PBS will soon be asked why it waits: one patch then, rather than one now and one then."""
    unseen = s.result.stage is Stage.QUEUED and s.seen is not None and s.seen.pbs.seen is Seen.UNKNOWN
    return unseen and s.record.wrote_at > 0 and s.now < s.record.wrote_at + FIRST_LOOK


def _job_id(s: Situation) -> str | None:
    """The job id to display: the helper's, or podrun's word where an interrupted submission never heard of it."""
    if s.seen is None or s.seen.job_id is not None or s.result.stage is not Stage.ENDED:
        return None if s.seen is None else s.seen.job_id
    told = (s.seen.status or {}).get("job_id")
    return told if isinstance(told, str) and _JOB_ID.fullmatch(told) else None


def _show(s: Situation, hold: Waiting | None) -> Decision:
    """Write what is known. What was known before stays while the cluster, or podrun's status, cannot be read."""
    if s.seen is None and s.has_run and not s.sure:
        return Decision()
    if s.seen is not None and s.seen.status is None and s.has_started and s.result.stage is not Stage.ENDED:
        if not s.seen.status_problem:
            return Decision()
        text = f"what podrun tells of the pod cannot be read, its status stays as it was: {s.seen.status_problem}"
        return Decision((Announce("Warning", reasons.STATUS_UNREADABLE, text[:1000], "unreadable", MESSAGE_EVERY),))
    return _write(s, status(s, hold=hold))


def _write(s: Situation, fields: Json) -> Decision:
    """Write `fields` when the API server lacks them; message-only changes at most every five minutes."""
    if s.now < s.record.refused_until:
        return Decision(wake_at=s.record.refused_until)
    if s.record.refusals:
        fields = reduced(fields)
    current = s.pod.get("status", {})
    if not differs(fields, current):
        return Decision()
    sent = s.record.wrote
    if sent == fields and s.record.answered is not None and s.record.answered == current:
        return Decision()  # the API server keeps no more of it than this: an older one drops what it does not know
    if sent is not None and _essence(sent) == _essence(fields):
        if sent != fields and _text(sent) != _text(fields):
            if s.now - s.record.message_at < MESSAGE_EVERY:
                return Decision(wake_at=s.record.message_at + MESSAGE_EVERY)
            return Decision((WriteStatus(fields, message_only=True),))
        if s.now - s.record.wrote_at < RESEND_AFTER:
            return Decision(wake_at=s.record.wrote_at + RESEND_AFTER)
    return Decision((WriteStatus(fields),))


def _waitings(fields: Json) -> list[Json]:
    return [c.get("state", {}).get("waiting", {}) for c in _containers(fields)]


def _containers(fields: Json) -> list[Json]:
    every: list[Json] = (fields.get("initContainerStatuses") or []) + (fields.get("containerStatuses") or [])
    return every


def _text(fields: Json) -> list[str]:
    return [w.get("message", "") for w in _waitings(fields)]


def _essence(fields: Json) -> tuple[object, ...]:
    """What of a status matters at once: all but messages of waiting containers and transition times."""
    return (
        fields.get("phase"),
        fields.get("reason"),
        fields.get("observedGeneration"),
        fields.get("podIP"),
        [(c["type"], c["status"], c.get("reason"), c.get("observedGeneration")) for c in fields.get("conditions", [])],
        [
            {**c, "state": {k: ({"reason": v.get("reason")} if k == "waiting" else v) for k, v in c["state"].items()}}
            for c in _containers(fields)
        ],
    )
