"""Runtime `host`: a container without an image, in a root of its own made by bubblewrap.

It sees the host's /usr, /etc and /opt read-only, a private /tmp, /proc, /dev and /dev/shm, and its volumes at their
paths; not the pod directory, the spool, other pods or $HOME. The container has a PID namespace: killing bubblewrap's
init (the parent of the container's command) ends all of it. Options and the variables that a program loader
obeys go through a descriptor, the rest of the environment through execve: nothing of it is in an argv, and LD_PRELOAD
of a pod does not act on bubblewrap itself, which still stands outside. bubblewrap sets PWD.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from . import podrun_process as processes
from .podrun_process import Exit, Launch, Process, exit_of, mirrored
from .podrun_root import Root
from .podrun_runtime import Places, Runtime, StartFailed
from .podrun_spec import Container
from .podrun_verify import Verifier
from .podrun_volumes import Bind, binds, close, made_inside, message_path

# What glibc's loader and libraries obey before main(): such a variable must meet the container only (ld.so(8)).
_LOADER_PREFIXES = (b"LD_", b"MALLOC_", b"GLIBC_", b"GCONV_", b"LOCALDOMAIN", b"LOCPATH", b"NLSPATH", b"RES", b"HOSTAL")
_CLEAN = {b"PATH": b"/usr/bin:/bin"}
SETTLE = 0.2


class Bubblewrap(Runtime):
    """The `host` runtime with bubblewrap at `path`."""

    name = "host+bwrap"
    wall = "bubblewrap"

    def __init__(self, path: str) -> None:
        self._path = path
        self._binds_descriptors: Optional[bool] = None

    def command(self, container: Container, places: Places, env: Dict[bytes, bytes]) -> Launch:
        """Write the options and start in `/`.

        A mount whose path other containers may exchange is given by descriptor where bubblewrap takes such. Else it is
        given by path, and the container is held before its command until what it sees there has been compared with the
        descriptor; so is what lies in another volume, where bubblewrap always goes by path.
        """
        message = message_path(container, places)
        if not container.read_only_root:
            os.makedirs(places.tmp, mode=0o700, exist_ok=True)
        found = binds(container, places, message, "" if container.read_only_root else places.tmp)
        reader, writer = os.pipe()
        verifier = None
        try:
            given = [bind.pin.descriptor for bind in found if bind.pin.exposed and self._can_pin()]
            unsure = [b.pin for b in found if b.nested or (b.pin.exposed and b.pin.descriptor not in given)]
            options = self._options(container, places, found, given, message)
            loader = {name: value for name, value in env.items() if name.startswith(_LOADER_PREFIXES)}
            for name, value in sorted(loader.items()):
                options += [b"--setenv", name, value]
            options += [b"--json-status-fd", b"%d" % writer]
            inherited = [writer] + given
            if unsure:
                verifier = Verifier([(pin.descriptor, pin.target) for pin in unsure])
                options += [b"--block-fd", b"%d" % verifier.held]
            arguments = _descriptor(options, places.scratch)
        except BaseException:
            close(found)
            os.close(reader)
            os.close(writer)
            if verifier is not None:
                verifier.close()
            raise
        argv = (os.fsencode(self._path), b"--args", b"%d" % arguments, b"--") + container.argv
        rest = {name: value for name, value in env.items() if name not in loader}
        inherited.append(arguments)
        later = tuple([bind.pin.descriptor for bind in found] + [writer, arguments])
        passed = tuple(inherited + ([verifier.held] if verifier is not None else []))
        return Launch(argv, rest, "/", passed, later, reader, verifier=verifier)

    def process(self, popen: "subprocess.Popen[bytes]", launch: Launch) -> Process:
        process = BubblewrapProcess(popen, launch.status, launch.verifier)
        process.settle()
        return process

    def failure(self, container: Container, output: bytes) -> str:
        last = output.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return last.replace("bwrap: ", "", 1)

    def _options(
        self, container: Container, places: Places, found: List[Bind], given: List[int], message: str
    ) -> List[bytes]:
        root = Root()
        targets = [bind.pin.target for bind in found if bind.pin.target != message]
        root.host_tree(targets, [path for path in (message, container.cwd) if path])
        for bind in found:
            root.check(bind.pin.target, [each.pin.target for each in found])
            if bind.pin.descriptor in given:
                root.bind_descriptor(bind.pin.descriptor, bind.pin.target, bind.read_only)
            else:
                root.bind(bind.pin.path, bind.pin.target, bind.read_only)
        cwd = container.cwd or "/"
        plain = "/" + os.path.normpath(cwd).lstrip("/")
        made = made_inside(plain, found) or root.leads_on(plain, [bind.pin.target for bind in found])
        return root.finished(cwd, container.read_only_root, make="" if made else plain)

    def _can_pin(self) -> bool:
        if self._binds_descriptors is None:
            self._binds_descriptors = b"--bind-fd" in processes.ask([self._path, "--help"], _CLEAN, PROBE)[1]
        return self._binds_descriptors


def _descriptor(options: List[bytes], directory: str) -> int:
    """A readable descriptor of an unnamed file with `options`, each ended by a NUL, as --args wants them."""
    if any(b"\0" in option for option in options):
        raise StartFailed("a NUL in an option of bubblewrap")
    content = b"".join(option + b"\0" for option in options)
    descriptor, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class BubblewrapProcess(Process):
    """podrun → bwrap (watches, outside) → bwrap (init of the PID namespace) → the container's command.

    A SIGTERM to the whole session kills the first bwrap only: init ignores it and is then podrun's own child, whose
    exit status is the command's. bubblewrap reports a command that was killed by signal n as 128+n; that is taken for a
    signal whenever such a signal exists (a shell that reports its child's death looks the same, here as elsewhere).
    """

    def __init__(self, popen: "subprocess.Popen[bytes]", status: int, verifier: Optional[Verifier] = None) -> None:
        super().__init__(popen)
        self._status = status
        self._verifier = verifier
        self._reports = b""
        self._init: Optional[int] = None
        self._main: Optional[int] = None
        self._terminating = False
        self._outer_alive = True
        self._result: Optional[Exit] = None
        os.set_blocking(status, False)

    @property
    def pid(self) -> int:
        return self._main or self._popen.pid

    def _read_reports(self) -> Dict[str, int]:
        if self._status >= 0:
            try:
                while True:
                    data = os.read(self._status, 4096)
                    self._reports += data
                    if not data:
                        os.close(self._status)
                        self._status = -1
                        break
            except BlockingIOError:
                pass
        report: Dict[str, int] = {}
        for line in self._reports.split(b"\n"):
            if line.endswith(b"}"):
                report.update(json.loads(line.decode("ascii")))
        self._init = report.get("child-pid", self._init)
        return report

    def reaped(self, pid: int, status: int) -> None:
        report = self._read_reports()
        if pid == self._popen.pid:
            self._popen.returncode = status
            self._outer_alive = False
            if "exit-code" in report and not self.problem:
                self._result = mirrored(report["exit-code"])
            elif os.WIFEXITED(status):
                self._result = Exit(128, None, started=False)
            if self._init is None:
                self._exit = self._result or exit_of(status)
            elif self._result is not None:
                processes.send(self._init, signal.SIGKILL)  # what the command left behind
        elif pid == self._init:
            self._exit = self._result or (
                exit_of(status) if os.WIFSIGNALED(status) else mirrored(os.WEXITSTATUS(status))
            )
        if self._exit is not None and self._status >= 0:
            os.close(self._status)
            self._status = -1
        if self._exit is not None:
            self._give_up_looking()

    def _give_up_looking(self) -> None:
        if self._verifier is not None:
            self._verifier.close()
            self._verifier = None

    def _verify(self, verifier: Verifier) -> None:
        """Let the command start, or end it, once the container's file tree can be seen."""
        if self._init is None:
            self._read_reports()
        verdict = verifier.look(self._init)
        if verdict is None:
            return
        if verdict:
            self.problem = verdict
            self._result = Exit(128, None, started=False)
            self.kill()
        self._give_up_looking()

    def settle(self) -> None:
        """Usually the file tree is there within milliseconds; if not, `poll` goes on looking."""
        until = time.monotonic() + SETTLE
        while self._verifier is not None and self._exit is None and time.monotonic() < until:
            self._verify(self._verifier)
            time.sleep(0.002)

    def poll(self) -> Optional[Exit]:
        if self._exit is None:
            if self._verifier is not None:
                self._verify(self._verifier)
            self._find_main()
            if self._terminating and self._main is not None:
                self._terminating = False
                processes.send(self._main, signal.SIGTERM)
            if not self._outer_alive and self._init is not None:
                self._watch_orphans(self._init)
        return self._exit

    def _watch_orphans(self, init: int) -> None:
        """Nobody but us ends what the command left behind, now that the outer bwrap is dead."""
        if not os.path.exists("/proc/%d" % init):
            self._exit = self._result or Exit(128 + signal.SIGTERM, signal.SIGTERM)  # not ours to reap: old kernel
        elif self._result is None and self._main is not None and not os.path.exists("/proc/%d" % self._main):
            for pid in processes.descendants(init):
                processes.send(pid, signal.SIGKILL)

    def _find_main(self) -> None:
        if self._init is None:
            self._read_reports()
        if self._main is None and self._init is not None:
            self._main = processes.first_child(self._init)

    def terminate(self) -> None:
        self._terminating = True
        self.poll()

    def kill(self) -> None:
        if self._exit is None:
            self._find_main()
            processes.send_group(self._popen.pid, signal.SIGKILL)
            if self._init is not None:
                processes.send(self._init, signal.SIGKILL)


TRIES = 4
PAUSE = 2.0  # before the second try; doubled each time
PROBE = 30.0
# What a busy node says, or one on which another job of the account has used up what an account may have.
_BUSY = (b"Resource temporarily unavailable", b"Cannot allocate memory", b"No space left on device", b"Too many open")
_NAMESPACES = "/proc/sys/user/max_user_namespaces"


class Answer(NamedTuple):
    """What a probe said. `certain`: that bubblewrap does not work here, as opposed to not now."""

    found: Optional[Bubblewrap]
    why: str = ""
    certain: bool = False


def find(interrupted: Callable[[], bool] = lambda: False) -> Answer:
    """bubblewrap, tried out. HPC_BRIDGE_BWRAP names another program, or none.

    A probe that took too long, or that found no room for a process, is tried again: it says nothing about bubblewrap.
    """
    path = os.environ.get("HPC_BRIDGE_BWRAP") or shutil.which("bwrap") or "/usr/bin/bwrap"
    answer = probe(path)
    for attempt in range(1, TRIES):
        if answer.found is not None or answer.certain:
            break
        until = time.monotonic() + PAUSE * 2 ** (attempt - 1)
        while time.monotonic() < until:
            if interrupted():
                return answer
            time.sleep(0.05)
        answer = probe(path)
    return answer


def probe(path: str, patience: float = PROBE) -> Answer:
    """Try out the bubblewrap at `path`, once."""
    root = Root()
    root.host_tree([])
    options = [os.fsdecode(option) for option in root.finished("/", True)]
    reader, writer = os.pipe()
    argv = [path, "--die-with-parent"] + options + ["--json-status-fd", str(writer), "--", "true"]
    try:
        code, output = processes.ask(argv, _CLEAN, patience, [writer])
    except TimeoutError as error:
        return Answer(None, str(error))
    except OSError as error:
        return Answer(None, str(error), error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC))
    finally:
        os.close(reader)
        os.close(writer)
    if code != 0:
        text = output.decode("utf-8", "replace").strip() or "%s ended with %d" % (path, code)
        busy = code < 0 or any(word in output for word in _BUSY)
        return Answer(None, text, not busy or _no_namespaces())
    return Answer(Bubblewrap(path))


def _no_namespaces() -> bool:
    """Whether this host lets no user make any; bubblewrap says the same of that as of a moment without room."""
    try:
        with open(_NAMESPACES, "rb") as file:
            return file.read(64).strip() == b"0"
    except OSError:
        return False
