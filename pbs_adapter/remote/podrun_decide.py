"""Decisions of podrun, pure: which container starts now, when a pod ends and why. The loop acts on them.

`decide` looks at all containers of a pod that is not ending: init containers in order, then all app containers side by
side; a container that ended is started again as restartPolicy says, at once the first time, then after the kubelet's
crash-loop pause (10 s doubling to 300 s, forgotten after 10 min of running). `why_end` looks at limits from outside.
Times are seconds on the clock that stands still while PBS has the job suspended, except where `elapsed` is said.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from .podrun_spec import MINIMUM_GRACE, Backoff, Pod

KILL_DELAY = 10.0  # PBS's default: seconds between its SIGTERM and its SIGKILL
LAST_STATUS = 2.0  # of them for the final status to be on disk


class Seen(NamedTuple):
    """One container as the loop knows it. `due` is when it may be started again; only with state terminated."""

    name: str
    kind: str  # init or app
    state: str  # waiting (never started), running, terminated
    exit_code: int = 0
    due: float = 0.0


class Decision(NamedTuple):
    """`start`: containers to start now. `result`: the pod is over. `wake`: when to decide again at the latest."""

    start: Tuple[str, ...] = ()
    backing_off: Tuple[str, ...] = ()  # ended, to be started again later
    phase: str = "Running"
    result: Optional[str] = None
    wake: Optional[float] = None


class Ending(NamedTuple):
    """The pod is being ended from outside: SIGTERM at `since`, SIGKILL at `kill_at`."""

    reason: str
    message: str
    since: float
    kill_at: float


class Situation(NamedTuple):
    """What the world asks for. `elapsed`: real seconds since the start; `stop_grace`: stop.json's, or None."""

    now: float
    started: float
    elapsed: float
    stop_grace: Optional[float] = None
    signalled: bool = False
    full: str = ""  # why the spool takes no more


def pause_after(runs: int, pause: float, ran: float, backoff: Backoff) -> float:
    """Seconds to wait after the `runs`-th run, which lasted `ran`; `pause` is what the run before it was given."""
    if runs <= 1 or ran >= backoff.reset:
        return 0.0
    return min(backoff.max, pause * 2 if pause > 0 else backoff.base)


def decide(policy: str, containers: Sequence[Seen], now: float) -> Decision:
    """Decide about a pod that nobody ends. `containers` in order of the spec, init containers first."""
    for container in containers:
        if container.kind != "init" or (container.state == "terminated" and container.exit_code == 0):
            continue
        if container.state == "terminated" and policy == "Never":
            return Decision(phase="Initializing", result="Failed")
        return _startable([container], now, "Initializing")
    apps = [container for container in containers if container.kind == "app"]
    alive = [app for app in apps if app.state != "terminated" or restarts(policy, app.exit_code)]
    if not alive:
        return Decision(result=_result(apps))
    return _startable(alive, now, "Running")


def restarts(policy: str, exit_code: int) -> bool:
    """Whether an app container that ended with `exit_code` is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _startable(containers: Sequence[Seen], now: float, phase: str) -> Decision:
    ready: List[str] = []
    later: List[Seen] = []
    for container in containers:
        if container.state == "waiting" or (container.state == "terminated" and container.due <= now):
            ready.append(container.name)
        elif container.state == "terminated":
            later.append(container)
    wake = min(container.due for container in later) if later else None
    return Decision(tuple(ready), tuple(container.name for container in later), phase, None, wake)


def _result(apps: Sequence[Seen]) -> str:
    return "Succeeded" if all(app.state == "terminated" and app.exit_code == 0 for app in apps) else "Failed"


def walltime_end(pod: Pod) -> Tuple[float, float]:
    """When to end the containers ahead of `pod.walltime`, in seconds after podrun's start, and with which grace.

    `end_margin` plus the grace period before it; a walltime too short for that keeps at least its first half for work.
    """
    walltime = pod.walltime or 0.0
    end = max(walltime - pod.end_margin - pod.grace, walltime / 2)
    return end, max(0.0, min(pod.grace, walltime - min(pod.end_margin, walltime / 4) - end))


def pbs_grace(pod: Pod) -> float:
    """Seconds for the containers once PBS has sent SIGTERM: what its queue's kill_delay leaves, half of a short one."""
    delay = KILL_DELAY if pod.kill_delay is None else max(0.0, pod.kill_delay)
    return min(pod.grace, max(delay - LAST_STATUS, delay / 2))


def why_end(pod: Pod, at: Situation, ending: Optional[Ending]) -> Optional[Ending]:
    """The pod's ending after looking at `at`: the first cause stays, its SIGKILL may only come earlier."""
    for reason, message, grace in _causes(pod, at):
        kill_at = at.now + (grace if reason == "PBSJobDeleted" else max(MINIMUM_GRACE, grace))
        if ending is None:
            ending = Ending(reason, message, at.now, kill_at)
        elif kill_at < ending.kill_at and reason in ("PBSJobDeleted", "Stopped"):
            ending = ending._replace(kill_at=kill_at)
    return ending


def _causes(pod: Pod, at: Situation) -> List[Tuple[str, str, float]]:
    causes = []
    if at.stop_grace is not None:
        causes.append(("Stopped", "The pod was stopped on request.", at.stop_grace))
    if at.signalled:
        causes.append(("PBSJobDeleted", "PBS sent SIGTERM: the job was deleted or preempted.", pbs_grace(pod)))
    if at.full:
        text = "The spool takes no more (%s): output would be lost, so the pod was ended." % at.full
        causes.append(("SpoolFull", text, pod.grace))
    if pod.deadline is not None and at.elapsed >= pod.deadline:
        causes.append(("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", pod.grace))
    if pod.walltime is not None:
        end, grace = walltime_end(pod)
        if at.now - at.started >= end:
            text = "The job's walltime of %d s is nearly over; the pod was ended before PBS kills it." % pod.walltime
            causes.append(("PBSWalltimeExceeded", text, grace))
    return causes


def ended_result(reason: str, containers: Sequence[Seen]) -> str:
    """Result of a pod that was ended from outside: only a stop on request can leave it Succeeded."""
    return _result([item for item in containers if item.kind == "app"]) if reason == "Stopped" else "Failed"


def exit_status(result: str, containers: Sequence[Seen]) -> int:
    """podrun's own exit code: 0, or that of the first app container that failed, or 1."""
    if result == "Succeeded":
        return 0
    failed = [item.exit_code for item in containers if item.kind == "app" and item.state == "terminated"]
    return next((code for code in failed if code != 0), 1)
