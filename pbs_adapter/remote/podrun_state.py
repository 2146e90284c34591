"""What podrun knows of each container, and how it is shown in status.json (version 1).

A record changes only by `started`, `failed` and `ended`. CrashLoopBackOff is a way of showing a container that has
ended and will be started again: the record itself stays terminated, so that a pod that is stopped meanwhile shows what
really happened.
"""

from typing import Any, Dict, Optional

from .podrun_decide import Seen, pause_after
from .podrun_process import Exit
from .podrun_spec import Container, Pod

MESSAGE_LIMIT = 4096  # per container, as the kubelet's
MESSAGES_LIMIT = 12 * 1024  # per pod


class Record:
    """One container. `now` is the suspended-job clock, `at` UTC epoch seconds."""

    def __init__(self, container: Container, pod: Pod) -> None:
        self.container = container
        self._pod = pod
        self.state = "waiting"
        self.runs = 0
        self.due = 0.0
        self._pause = 0.0
        self._began = 0.0
        self._pid: Optional[int] = None
        self._started_at: Optional[float] = None
        self._end: Optional[Dict[str, Any]] = None
        self._last: Optional[Dict[str, Any]] = None

    @property
    def run(self) -> int:
        """Index of the current or last log file."""
        return max(0, self.runs - 1)

    def begin(self) -> None:
        """A new run is about to start: its number is taken."""
        self._last = self._end or self._last
        self.runs += 1

    def started(self, pid: int, now: float, at: float) -> None:
        self.state, self._pid, self._began, self._started_at = "running", pid, now, at

    def ended(self, result: Exit, reason: str, message: str, now: float, at: float) -> None:
        """The run is over (perhaps before it began)."""
        ran = now - self._began if self.state == "running" else 0.0
        self._pause = pause_after(self.runs, self._pause, ran, self._pod.backoff)
        self.state, self.due, self._pid = "terminated", now + self._pause, None
        self._end = {
            "reason": reason,
            "message": message,
            "started_at": at if self._started_at is None else self._started_at,
            "finished_at": at,
            "exit_code": result.code,
            "signal": result.signal,
            "run": self.run,
        }
        self._started_at = None

    def seen(self) -> Seen:
        """For the decisions."""
        code = self._end["exit_code"] if self._end else 0
        return Seen(self.container.name, self.container.kind, self.state, code, self.due)

    def shown(self, backing_off: bool) -> Dict[str, Any]:
        """The container's entry of status.json."""
        entry: Dict[str, Any] = {
            "kind": self.container.kind,
            "state": self.state,
            "reason": "",
            "message": "",
            "restart_count": self.run,
            "run": self.run,
            "last": self._last,
        }
        if backing_off:
            pod = self._pod
            text = "back-off %ds restarting failed container=%s pod=%s_%s(%s)"
            message = text % (round(self._pause), self.container.name, pod.name, pod.namespace, pod.uid)
            entry.update(state="waiting", reason="CrashLoopBackOff", message=message, last=self._end)
        elif self.state == "running":
            entry.update(pid=self._pid, started_at=self._started_at)
        elif self._end is not None:
            entry.update(self._end)
        else:
            has_init = any(container.kind == "init" for container in self._pod.containers)
            entry["reason"] = "PodInitializing" if has_init else "ContainerCreating"
        return entry


def reason_of(result: Exit, out_of_memory: bool = False) -> str:
    """Kubernetes' reason for a container that ended."""
    if not result.started:
        return "StartError"
    if out_of_memory:
        return "OOMKilled"
    return "Completed" if result.code == 0 else "Error"


def message_limit(pod: Pod) -> int:
    """Bytes of termination message that each container may have."""
    return min(MESSAGE_LIMIT, MESSAGES_LIMIT // len(pod.containers))
