"""Processes as podrun sees them: starting one, finding its children, ending whole sessions.

podrun is the session leader that MoM started, its containers stay in that session with process groups of their own
(`kill 0` in a script must not reach podrun). podrun is a child subreaper: when the process that it started dies of a
signal to the whole session, its orphans are still podrun's to wait for. Linux only, like OpenPBS's execution hosts.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .podrun_verify import Verifier

PR_SET_CHILD_SUBREAPER = 36


class Launch(NamedTuple):
    """How to start one container: the program, its exact environment, and the descriptors it inherits.

    `close` are descriptors of podrun that have no use after the start; `status` is where the runtime reports, or -1.
    `scratch` is the container's own folder, `message` its terminationMessagePath, `verifier` what compares its mounts
    with what they should be: for runtimes that need them later.
    """

    argv: Tuple[bytes, ...]
    env: Dict[bytes, bytes]
    cwd: Optional[str] = None
    fds: Tuple[int, ...] = ()
    close: Tuple[int, ...] = ()
    status: int = -1
    scratch: str = ""
    message: Optional[str] = None
    verifier: Optional[Verifier] = None


class Exit(NamedTuple):
    """How a container ended. `signal` n goes with `code` 128+n. Not `started`: its command could not be run."""

    code: int
    signal: Optional[int] = None
    started: bool = True


class Entry(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    since: int  # clock ticks after boot


def become_subreaper() -> None:
    """Have orphans of our children handed to us; without it (very old kernel) only their exit status is lost."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError) as error:
        print("podrun: prctl failed: %s" % error, flush=True)


def _own_group() -> None:
    """In the child: the usual umask (podrun's own keeps its files private) and a process group of its own."""
    os.umask(0o022)
    os.setpgrp()


def spawn(launch: Launch, stdout: int, stderr: int) -> "subprocess.Popen[bytes]":
    """Start `launch` in a process group of its own, stdin empty. Raises OSError when it cannot be executed."""
    try:
        return subprocess.Popen(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=launch.fds,
            preexec_fn=_own_group,
        )
    except OSError:
        if launch.status >= 0:
            os.close(launch.status)
        if launch.verifier is not None:
            launch.verifier.close()
        raise
    finally:
        for descriptor in launch.close:
            os.close(descriptor)
        if launch.verifier is not None:
            launch.verifier.hand_over()


def ask(argv: Sequence[str], env: Dict[bytes, bytes], patience: float, fds: Sequence[int] = ()) -> Tuple[int, bytes]:
    """Run a short program: its exit status and what it said. Raises OSError, and TimeoutError when it takes too long.

    Into a file and by process group, not subprocess.run: that would wait for what the program has left behind.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            pass_fds=tuple(fds),
            preexec_fn=os.setpgrp,
        )
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            send_group(process.pid, signal.SIGKILL)
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                pass  # the kernel does not let it go; it is reaped when it does
            raise TimeoutError("%s did not answer within %g s" % (argv[0], patience)) from None
        output.seek(0)
        return code, output.read(1 << 20)


def processes() -> List[Entry]:
    """The process table, oldest first; what ends meanwhile is left out."""
    entries = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        entries.append(Entry(int(name), int(fields[1]), int(fields[3]), int(fields[19])))
    return sorted(entries, key=lambda entry: (entry.since, entry.pid))


def descendants(pid: int) -> List[int]:
    """Children of `pid` and theirs, oldest first."""
    found = {pid}
    table = processes()
    size = 0
    while size != len(found):
        size = len(found)
        found.update(entry.pid for entry in table if entry.parent in found)
    return [entry.pid for entry in table if entry.pid in found and entry.pid != pid]


def first_child(pid: int) -> Optional[int]:
    """The oldest living child of `pid`."""
    return next((entry.pid for entry in processes() if entry.parent == pid), None)


def send(pid: int, number: int) -> None:
    """Signal one process; one that has gone is fine."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def send_group(group: int, number: int) -> None:
    """Signal a process group; one that has gone is fine."""
    try:
        os.killpg(group, number)
    except OSError:
        pass


_guards: Set[int] = set()
MARK = b"HPC_BRIDGE_POD"  # a variable of containers that nothing but it tells from other processes of the account


def end_leftovers() -> None:
    """SIGKILL to all that still descends from podrun, which adopts orphans, but the guard."""
    for _ in range(100):
        left = [pid for pid in descendants(os.getpid()) if pid not in _guards]
        if not left:
            return
        for pid in left:
            send(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)


def start_guard(uid: str, last: Callable[[], None]) -> None:
    """Fork a process that kills what is left of the pod once podrun has gone, however it went, and then calls `last`.

    That is the session, and what has the pod's mark in its environment: a daemon leaves the session. PBS does this too,
    but not at once, and not when podrun runs without it. It holds nothing but a pipe's reading end. Only a session
    leader has a guard: somebody's terminal session is not ours to end.
    """
    session = os.getpid()
    if os.getsid(0) != session:
        return
    reader, writer = os.pipe()  # not inherited by what podrun executes; open in podrun for all its life
    guard = os.fork()
    if guard == 0:
        os.close(writer)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.read(reader, 1)
        try:
            _end_pod(session, MARK + b"=" + os.fsencode(uid))
            last()
        finally:
            os._exit(0)
    _guards.add(guard)
    os.close(reader)


def _end_pod(session: int, mark: bytes) -> None:
    for _ in range(20):  # what is killed may have forked meanwhile
        left = [e.pid for e in processes() if e.session == session or _has_mark(e.pid, mark)]
        left = [pid for pid in left if pid not in (os.getpid(), session)]
        for pid in left:
            send(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.05)


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return mark in file.read(1 << 20).split(b"\0")
    except OSError:
        return False


def exit_of(status: int) -> Exit:
    """Translate what waitpid returned."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Exit(128 + number, number)
    return Exit(os.WEXITSTATUS(status))


def mirrored(code: int) -> Exit:
    """What a program that waits for a container says of it: it reports a death by signal n as 128+n."""
    number = code - 128
    return Exit(code, number if 0 < number < signal.SIGRTMIN and number in set(signal.Signals) else None)


class Process:
    """A started container. The loop hands in every reaped child and asks `poll` until it returns an `Exit`.

    This class is the plain case: podrun's direct child is the container's main process, its process group the
    container. Other runtimes override what differs. `problem`: why podrun itself did not let the command start.
    """

    problem = ""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self._exit: Optional[Exit] = None

    @property
    def pid(self) -> int:
        """Id of the main process as far as it is known, for people."""
        return self._popen.pid

    def reaped(self, pid: int, status: int) -> None:
        """A child of podrun has ended, perhaps one of this container's."""
        if pid == self._popen.pid:
            self._popen.returncode = status
            self._exit = exit_of(status)
            send_group(pid, signal.SIGKILL)

    def poll(self) -> Optional[Exit]:
        """How the container ended, once nothing of it runs any more."""
        return self._exit

    def terminate(self) -> None:
        """SIGTERM to the main process only."""
        if self._exit is None:
            send(self._popen.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything of the container."""
        if self._exit is None:
            send_group(self._popen.pid, signal.SIGKILL)


def reap() -> List[Tuple[int, int]]:
    """Collect (pid, status) of all children that have ended."""
    ended: List[Tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def describe(error: OSError, argv: Any) -> str:
    """Text of a failed start, in the shape that people know from the kubelet."""
    return 'exec: "%s": %s' % (argv[0].decode("utf-8", "replace"), os.strerror(error.errno) if error.errno else error)
