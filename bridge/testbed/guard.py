"""Run one command so that nothing of it outlives the process that asked for it.

Runs as a program, one for each supervised process: `python -I -S guard.py [--finally JSON] GRACE COMMAND…`. Standard
input is a pipe whose other end the owner holds: when the owner ends, whatever ends it, the pipe closes and the guard
takes the command down. PR_SET_PDEATHSIG alone would not do: it follows the *thread* that forked, it is lost when a
program changes its user (sshd does), and it does not reach grandchildren (PBS jobs, SSH sessions). The guard is a
"subreaper", so that everything that descends from the command, sessions and daemons included, stays below it in the
process tree and is found there.

Must not import anything of the project, and nothing slow: it starts eight times for a demo.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """Process ids below `root`, parents before children, older before younger siblings; zombies are left out."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it ended while we were looking
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append((int(fields[19]), int(entry)))  # ids wrap, ages do not
    found: list[int] = []
    queue = [root]
    while queue:
        below = [pid for _, pid in sorted(children.get(queue.pop(0), []))]
        found += below
        queue += below
    return found


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _start(argv: Sequence[str]) -> int:
    """Fork and execute `argv` in a session of its own; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should somebody kill the guard itself
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execvp(argv[0], list(argv))
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _reap() -> tuple[dict[int, int], bool]:
    """Collect the processes that have ended, as {process id: wait status}; and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def _sweep() -> None:
    """Kill all that is left below us, until nothing is (or it does not die within 10 s: stuck in the kernel)."""
    deadline = time.monotonic() + 10
    while _reap()[1] and time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            _send(pid, signal.SIGKILL)
        time.sleep(0.01)


def _watch(pid: int, wakeup: int, grace: float) -> int:
    """Wait for the command; on the owner's end or on SIGTERM stop it. Returns its wait status."""
    deadline: float | None = None
    watched = [0, wakeup]
    while True:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select(watched, [], [], timeout)
        numbers = os.read(wakeup, 512) if wakeup in readable else b""
        if (status := _reap()[0].get(pid)) is not None:
            return status
        owner_gone = 0 in readable and not os.read(0, 512)
        if owner_gone:
            watched.remove(0)
        if deadline is None and (owner_gone or signal.SIGTERM in numbers):
            _send(pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
        elif deadline is not None and time.monotonic() >= deadline:
            _send(pid, signal.SIGKILL)
            deadline = time.monotonic() + grace + 1


def main(argv: list[str]) -> int:
    """Run the command line; the exit status is the command's own, 128 + n when signal n ended it."""
    afterwards: list[list[str]] = []
    if argv[0] == "--finally":
        afterwards, argv = json.loads(argv[1]), argv[2:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pid = _start(argv[1:])
    status = _watch(pid, wakeup, float(argv[0]))
    _sweep()
    for command in afterwards:
        subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
