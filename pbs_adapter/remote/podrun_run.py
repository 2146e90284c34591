"""One running container: start, its log, its end, its termination message. The loop owns a `Run` per live container."""

import os
import signal
import stat
import time
from typing import Callable, Dict, Mapping, Optional

from . import podrun_apptainer, podrun_bwrap, podrun_files, podrun_oom
from . import podrun_process as processes
from .podrun_logs import ContainerLog, LogPump
from .podrun_process import Exit, Process
from .podrun_runtime import PATH, DirectRuntime, Places, Runtime, StartFailed, environment
from .podrun_spec import Pod
from .podrun_state import Record, message_limit, reason_of

DRAIN = 1.0  # how long a pipe may stay open after the main process: a daemon that left the container may hold it


class Run:
    """A container from its start to its end. Create it with `start`."""

    def __init__(self, record: Record, process: Process, log: ContainerLog, places: Places, runtime: Runtime) -> None:
        self.record = record
        self.process = process
        self._log = log
        self._places = places
        self._runtime = runtime
        self._over: Optional[float] = None
        self._cut = False
        self._terminated = self._killed = False
        self._oom_kills = podrun_oom.kills()

    def poll(self, pod: Pod, pump: LogPump, now: float) -> bool:
        """Look; True when it is over, its log complete and the record says so."""
        result = self.process.poll()
        if result is None:
            return False
        if self._over is None:
            self._over = time.monotonic()
        waited = time.monotonic() - self._over
        if not self._log.done.is_set() and waited < DRAIN * 5:
            if waited >= DRAIN and not self._cut:
                self._cut = True
                pump.cut(self._log)
            return False
        result = self._runtime.judged(result, self._log.last_lines())
        self.record.ended(
            result, reason_of(result, self._out_of_memory(result)), self._message(result, pod), now, time.time()
        )
        return True

    def _out_of_memory(self, result: Exit) -> bool:
        if result.signal != signal.SIGKILL or self._killed or self._oom_kills is None:
            return False
        return (podrun_oom.kills() or 0) > self._oom_kills

    def end(self, now: bool) -> None:
        """SIGTERM to the main process, once; SIGKILL to everything when `now`."""
        if not self._terminated:
            self._terminated = True
            self.process.terminate()
        if now:
            self._killed = True
            self.process.kill()

    def _message(self, result: Exit, pod: Pod) -> str:
        container, limit = self.record.container, message_limit(pod)
        if not result.started:
            return (self.process.problem or self._runtime.failure(container, self._log.last_lines()))[:limit]
        content = _tail_of(self._places.message, limit)
        if not content and result.code != 0 and container.message_policy == "FallbackToLogsOnError":
            content = self._log.last_lines()[-limit:]
        return content.decode("utf-8", "replace")


def start(
    record: Record, pod: Pod, runtime: Runtime, places: Places, pump: LogPump, setup: Mapping[bytes, bytes], now: float
) -> Optional[Run]:
    """Start the record's container; None when that failed, which the record then says."""
    record.begin()
    container = record.container
    try:
        log = ContainerLog(os.path.join(places.directory, "logs", container.name), record.run)
        pump.attach(log)
        try:
            _fresh(places)
            env = environment(container, pod, runtime.base(places), runtime.site(setup))
            launch = runtime.command(container, places, env)
            popen = processes.spawn(launch, log.stdout, log.stderr)
        finally:
            log.started()
    except (OSError, StartFailed) as error:
        text = processes.describe(error, container.argv) if isinstance(error, OSError) else str(error)
        record.ended(Exit(128, None, started=False), "StartError", text[: message_limit(pod)], now, time.time())
        return None
    process = runtime.process(popen, launch)
    record.started(process.pid, now, time.time())
    return Run(record, process, log, places, runtime)


def _fresh(places: Places) -> None:
    """What a container wrote outside its volumes does not survive a restart."""
    podrun_files.remove_tree(places.scratch)
    os.makedirs(places.scratch, mode=0o700, exist_ok=True)


def _tail_of(path: str, limit: int) -> bytes:
    """The last `limit` bytes of a regular file that a container may have written; b"" without one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b""
        file.seek(max(0, status.st_size - limit))
        return file.read(limit)


def runtimes_for(pod: Pod, setup: Mapping[bytes, bytes], interrupted: Callable[[], bool]) -> Dict[str, Runtime]:
    """The runtime of each container by name; `setup` may have put its program on PATH. {} when `interrupted()`.

    Only those that are needed are tried. Raises `StartFailed` for one that this podrun or this node does not have.
    """
    kinds: Dict[str, Runtime] = {}
    for container in pod.containers:
        if container.runtime not in kinds:
            if container.runtime not in ("host", "apptainer"):
                text = "container %s asks for the unknown runtime %r"
                raise StartFailed(text % (container.name, container.runtime))
            found = _apptainer(setup) if container.runtime == "apptainer" else _host(pod.wall_required, interrupted)
            if found is None:
                return {}
            kinds[container.runtime] = found
    for kind, runtime in kinds.items():
        runtime.check([container for container in pod.containers if container.runtime == kind])
    return {container.name: kinds[container.runtime] for container in pod.containers}


def _host(required: bool, interrupted: Callable[[], bool]) -> Optional[Runtime]:
    """bubblewrap; without it, only where it certainly does not work and the settings let that be, nothing."""
    answer = podrun_bwrap.find(interrupted)
    if answer.found is not None:
        return answer.found
    if interrupted():
        return None
    if answer.certain and not required:
        return DirectRuntime(answer.why)
    text = "no isolation on %s: bubblewrap %s: %s"
    if answer.certain:
        text += "; install it there, or set isolation: optional for this cluster"
    what = "does not work" if answer.certain else "could not be tried"
    raise StartFailed(text % (os.uname()[1], what, answer.why))


def _apptainer(setup: Mapping[bytes, bytes]) -> Runtime:
    found, why = podrun_apptainer.find(setup.get(b"PATH") or os.environb.get(b"PATH") or PATH)
    if found is None:
        raise StartFailed("no runtime for images on %s: %s" % (os.uname()[1], why))
    return found
