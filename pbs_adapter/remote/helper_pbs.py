"""PBS as the helper uses it: commands only, each with a time limit, its own process group and bounded output.

Every command but qsub opens a connection of its own from a reserved port, of which a login host has about a thousand a
minute for all its users; `Budget` keeps us far below that. qsub without -f goes through the user's background qsub and
costs none. A budget that is used up, and a server that does not answer, is a wait and never a failure of the pod.
"""

import os
import pwd
import selectors
import shutil
import signal
import subprocess
import threading
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from .helper_errors import OpError
from .parse import ErrorClass, classify_error, error_text

QUERY_TIMEOUT = 60.0
QSUB_TIMEOUT = 120.0
QDEL_TIMEOUT = 30.0
_MAX_OUTPUT = 256 * 1024 * 1024
_KEPT = ("KRB5CCNAME", "HOME", "USER", "LOGNAME")
_OF_A_JOB = ("PBS_O_", "PBS_JOB", "PBS_ENVIRONMENT")


class Result(NamedTuple):
    """One finished command. `status` None: given up after its time limit; negative: ended by a signal."""

    status: Optional[int]
    stdout: bytes
    stderr: str

    def error_class(self, command: str) -> ErrorClass:
        """What the failure means (ErrorClass.OK for status 0)."""
        return classify_error(command, self.status, self.stderr)

    def text(self) -> str:
        """PBS's own words, fit for a user."""
        if self.status is None:
            return "no answer from PBS in time"
        return error_text(self.stderr) or "exit status {}".format(self.status)


class Budget:
    """A token bucket of PBS connections: a third of `per_minute` at once, the rest evenly.

    So no minute ever has more than `per_minute` (a bucket that also refilled at that rate would let half as many again
    through in its first minute). `path` keeps what is left: helpers that follow upon each other on one host share it.
    """

    def __init__(self, per_minute: int, path: Optional[str] = None) -> None:
        self.capacity = max(4.0, per_minute / 3.0)
        self._rate = max(1.0, per_minute - self.capacity) / 60.0
        self._path = path
        self._tokens = self.capacity
        self._at = time.monotonic()
        self._load()
        self._changed = threading.Condition()

    def take(self, timeout: float, keep: int = 0) -> bool:
        """Wait for a token, leaving `keep` for those who matter more; False when `timeout` seconds did not suffice."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                self._refill()
                if self._tokens >= 1 + keep:
                    self._tokens -= 1
                    self._save()
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, max(0.05, (1 + keep - self._tokens) / self._rate)))

    def idle(self) -> bool:
        """Whether more than half is left, so that something optional may be done."""
        with self._changed:
            self._refill()
            return self._tokens > self.capacity / 2

    def _load(self) -> None:
        try:
            with open(self._path or os.devnull) as file:
                boot, at, tokens = file.read().split()
        except (OSError, ValueError):
            return
        try:
            if boot == boot_id() and float(at) <= self._at:  # else it is another host's, or from before it restarted
                self._tokens, self._at = max(0.0, float(tokens)), float(at)
                self._refill()
        except ValueError:
            pass

    def _save(self) -> None:
        if self._path is None:
            return
        temporary = "{}.{}".format(self._path, os.getpid())
        try:
            with open(temporary, "w") as file:
                file.write("{} {:.3f} {:.3f}\n".format(boot_id(), self._at, self._tokens))
            os.replace(temporary, self._path)
        except OSError:
            pass  # no room: then it is not shared

    def _refill(self) -> None:
        now = time.monotonic()
        self._tokens = min(self.capacity, self._tokens + (now - self._at) * self._rate)
        self._at = now


def boot_id() -> str:
    """Names this start of this host."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


class Pbs:
    """The commands below `pbs_exec` (or on PATH where it is None)."""

    def __init__(self, pbs_exec: Optional[str], budget: Budget) -> None:
        self.pbs_exec = pbs_exec
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.budget = budget
        self.env = command_environment(os.environ, pbs_exec)

    def query(self, argv: Sequence[str], timeout: float = QUERY_TIMEOUT, keep: int = 0) -> Result:
        """Run a command that opens a connection; OpError(pbs) when the budget has none for it in time."""
        if not self.budget.take(timeout, keep):
            raise OpError("pbs", "the budget of PBS connections per minute is used up")
        return self.run(argv, timeout)

    def run(self, argv: Sequence[str], timeout: float, cwd: str = "/") -> Result:
        """Run a command; OpError(permanent) when there is no such program."""
        program = shutil.which(argv[0], path=self.env["PATH"])
        if program is None:
            raise OpError("permanent", "no {} on the login node: set pbs_exec".format(argv[0]))
        return run_command([program] + list(argv[1:]), timeout, cwd, self.env)

    def find(self, name: str) -> Optional[str]:
        """The id of our job of that name, live or in the history; None: the server has none. OpError(pbs) otherwise."""
        result = self.query(["qselect", "-u", self.user, "-N", name])
        if result.status != 0:
            raise OpError("pbs", "cannot look for the job: {}".format(result.text()))
        if not result.stdout.strip():
            result = self.query(["qselect", "-x", "-u", self.user, "-N", name])  # fails where history is off
        ids = result.stdout.decode("utf-8", "replace").split() if result.status == 0 else []
        return min(ids, key=lambda job_id: (len(job_id.split(".")[0]), job_id)) if ids else None

    def delete(self, job_id: str) -> bool:
        """qdel of one id (a list has crashed servers). True: gone or going; False: not known, try again later."""
        result = self.query(["qdel", job_id], QDEL_TIMEOUT, keep=2)
        kind = result.error_class("qdel")
        if kind in (ErrorClass.OK, ErrorClass.UNKNOWN_JOB, ErrorClass.FINISHED) or result.status == 15016 % 256:
            return True
        print("qdel {}: {}".format(job_id, result.text()))
        return False


def command_environment(environ: Mapping[str, str], pbs_exec: Optional[str]) -> Dict[str, str]:
    """What PBS commands need and no more, so that nothing of the session leaks into a job."""
    env = {name: value for name, value in environ.items() if name in _KEPT}
    env.update({n: v for n, v in environ.items() if n.startswith("PBS_") and not n.startswith(_OF_A_JOB)})
    path = [os.path.join(pbs_exec, "bin")] if pbs_exec else []
    path += [part for part in environ.get("PATH", "").split(":") if part.startswith("/")]
    env["PATH"] = ":".join(path + [part for part in ("/usr/local/bin", "/usr/bin", "/bin") if part not in path])
    env.update(TZ="UTC", LANG="C.UTF-8")
    if pbs_exec:
        env["PBS_EXEC"] = pbs_exec
    return env


def run_command(argv: List[str], timeout: float, cwd: str, env: Dict[str, str]) -> Result:
    """Run to the end, to the time limit, or to the output limit; then nothing of its process group is left.

    It does not wait for pipes to be closed: a background qsub may hold them for hours.
    """
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        start_new_session=True,
    ) as process:
        output = _Output(process)
        in_time = output.read_until(time.monotonic() + timeout)
        if not in_time:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        status = process.wait()
        output.close()
    stderr = output.stderr.decode("utf-8", "replace")
    return Result(status if in_time else None, bytes(output.stdout), stderr[-64 * 1024 :])


class _Output:
    """Collects both pipes of a process without blocking on either."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._process = process
        self._selector = selectors.DefaultSelector()
        for pipe, into in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, into)

    def read_until(self, deadline: float) -> bool:
        """True when the process has ended; False at the deadline or when it wrote too much."""
        while self._process.poll() is None:
            if time.monotonic() > deadline or len(self.stdout) + len(self.stderr) > _MAX_OUTPUT:
                return False
            if self._selector.get_map():
                self._read(0.05)
            else:
                time.sleep(0.002)  # both pipes are closed: it is about to end
        while self._read(0):
            pass
        return True

    def _read(self, wait: float) -> bool:
        more = False
        for key, _ in self._selector.select(wait):
            block = os.read(key.fd, 256 * 1024)
            if block:
                key.data.extend(block)
                more = True
            else:
                self._selector.unregister(key.fileobj)
        return more

    def close(self) -> None:
        self._selector.close()
