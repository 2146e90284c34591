"""PBS as the helper uses it: commands only, each with a time limit, its own process group and bounded output.

Every command but qsub opens a connection of its own from a reserved port, of which a login host has about a thousand a
minute for all its users; `Budget` keeps us far below that. qsub without -f goes through the user's background qsub and
costs none. A budget that is used up, and a server that does not answer, is a wait and never a failure of the pod.
"""

import os
import pwd
import re
import selectors
import shutil
import signal
import subprocess
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from .helper_budget import Budget
from .helper_errors import OpError
from .parse import ErrorClass, Job, classify_error, error_text, parse_jobs

QUERY_TIMEOUT = 60.0
QSUB_TIMEOUT = 120.0
QDEL_TIMEOUT = 30.0
_SERVER = re.compile(rb'"pbs_server":\s*"([A-Za-z0-9_.-]{1,255})"')
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


class Pbs:
    """The commands below `pbs_exec` (or on PATH where it is None)."""

    def __init__(self, pbs_exec: Optional[str], budget: Budget) -> None:
        self.pbs_exec = pbs_exec
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self._history = True
        self.server = ""  # its own name, as the ids of its jobs end; empty until it has said it
        self.budget = budget
        self.env = command_environment(os.environ, pbs_exec)

    def query(self, argv: Sequence[str], timeout: float = QUERY_TIMEOUT, keep: int = 0) -> Result:
        """Run a command that opens a connection; OpError(pbs) when the budget has none for it in time."""
        if not self.budget.take(timeout, keep):
            raise OpError("pbs", "the budget of PBS connections per minute is used up")
        result = self.run(argv, timeout)
        said = _SERVER.search(result.stdout[:400])
        if said is not None:
            self.server = said.group(1).decode("ascii")
        return result

    def elsewhere(self, job_id: str, ask: bool = False) -> bool:
        """Whether the id is one of another server's jobs. Not known is no; `ask`: ask the server for its name first.

        Names of one server may be cut at a dot: `alpha` is `alpha.example.org`.
        """
        if ask and (not self.server or _another(self.server, job_id)):
            try:
                self.query(["qstat", "-B", "-f", "-F", "json"])  # it may have another name since
            except OpError:
                return False
        return bool(self.server) and _another(self.server, job_id)

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
            result = self.query(["qselect", "-x", "-u", self.user, "-N", name])
            if result.status != 0 and "history" not in result.stderr.lower():  # where it is off, there is none
                raise OpError("pbs", "cannot look for the job in the history: {}".format(result.text()))
        ids = result.stdout.decode("utf-8", "replace").split() if result.status == 0 else []
        return min(ids, key=lambda job_id: (len(job_id.split(".")[0]), job_id)) if ids else None

    def job(self, job_id: str) -> Optional[Job]:
        """One job by its id, from the history where there is one; None: PBS knows no such job.

        Raises OpError: permanent where PBS refuses to speak of that id, else pbs.
        """
        if self._history:
            result = self.query(["qstat", "-x", "-f", "-F", "json", job_id], keep=1)
            job = parse_jobs(result.stdout).jobs.get(job_id)
            if job is not None or result.error_class("qstat") == ErrorClass.UNKNOWN_JOB:
                return job
            self._history = "history" not in result.stderr.lower()
        result = self.query(["qstat", "-f", "-F", "json", job_id], keep=1)
        job = parse_jobs(result.stdout).jobs.get(job_id)
        kind = result.error_class("qstat")
        if job is None and kind not in (ErrorClass.UNKNOWN_JOB, ErrorClass.FINISHED):
            refused = kind in (ErrorClass.PERMANENT, ErrorClass.ELSEWHERE)
            raise OpError("permanent" if refused else "pbs", "qstat {}: {}".format(job_id, result.text()))
        return job

    def not_of(self, job: Job, name_end: str) -> str:
        """Why the job is not that of the pod whose jobs' names end so; empty: it is."""
        if job.name.endswith(name_end) and job.owner == self.user:
            return ""
        return "PBS job {} is not this pod's: it is {} of {}".format(job.job_id, job.name[:100], job.owner[:40])

    def delete(self, job_id: str) -> bool:
        """qdel of one id (a list has crashed servers). True: gone or going; False: not known, try again later."""
        result = self.query(["qdel", job_id], QDEL_TIMEOUT, keep=2)
        kind = result.error_class("qdel")
        if kind in (ErrorClass.OK, ErrorClass.UNKNOWN_JOB, ErrorClass.FINISHED) or result.status == 15016 % 256:
            return True
        print("qdel {}: {}".format(job_id, result.text()))
        return False


def _another(server: str, job_id: str) -> bool:
    name = job_id.partition(".")[2]
    return name != server and not name.startswith(server + ".") and not server.startswith(name + ".")


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
