"""Takes hold of a starting apptainer container before its command runs: `Gate` waits at a named pipe.

The container's environment script (podrun_shellenv) waits at the other end, with the termination message's file open.
When it is there, the container's first process can be told from apptainer's helpers, and the file's descriptor be taken
through /proc; then the command may start. A thread, because opening the pipe blocks until the container is ready.
"""

import os
import threading
from typing import List, Optional, Tuple

from . import podrun_process as processes
from .podrun_verify import Verifier

TAIL = 8192


class Gate(threading.Thread):
    """Starts at once. `init`: the first process of the container; `helpers`: FUSE programs that serve its image;
    `wrong`: why the command must not start. The gate then stays shut."""

    def __init__(self, pipe: str, parent: int, message: Optional[str], verifier: Optional[Verifier] = None) -> None:
        super().__init__(name="gate", daemon=True)
        self.wrong = ""
        self._verifier, self._writer = verifier, -1
        self.init: Optional[int] = None
        self.helpers: Tuple[int, ...] = ()
        self._pipe, self._parent, self._message = pipe, parent, message
        self._held = -1
        self._over = False
        self.start()

    def run(self) -> None:
        """Wait for the container, look, let it go on."""
        try:
            self._writer = os.open(self._pipe, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            print("podrun: gate: %s" % error, flush=True)
            return
        try:
            if not self._over:
                self._look()
            if not self.wrong:
                os.write(self._writer, b"\n")
        except OSError as error:  # it ended meanwhile
            print("podrun: gate: %s" % error, flush=True)

    def _look(self) -> None:
        children = [entry.pid for entry in processes.processes() if entry.parent == self._parent]
        first = [pid for pid in children if _is_first(pid)]
        self.helpers = tuple(pid for pid in children if pid not in first)
        if self._verifier is not None:
            self.wrong = self._verifier.wrong(first[0]) if first else "the container's first process was not found"
        if first and self._message is not None:
            self._held = _open_as(first[0], self._message)
        self.init = first[0] if first else None

    def close(self) -> bytes:
        """The container has ended: the end of its termination message, if it was below /dev."""
        self._over = True
        try:
            os.close(os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))  # should it never have come
        except OSError:
            pass
        self.join(10.0)
        if self._verifier is not None:
            self._verifier.close()
        if self._writer >= 0:
            os.close(self._writer)  # not before: an end of the pipe is no leave to go on
            self._writer = -1
        if self._held < 0:
            return b""
        with os.fdopen(self._held, "rb") as file:
            self._held = -1
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL)


def _is_first(pid: int) -> bool:
    """Whether it is number 1 in a PID namespace of its own."""
    try:
        with open("/proc/%d/status" % pid, "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"NSpid:")]
    except OSError:
        return False
    return bool(lines) and len(lines[0]) > 2 and lines[0][-1] == b"1"


def _open_as(pid: int, path: str) -> int:
    """Open what the process has open as `path`, for reading; -1 when it has no such file."""
    folder = "/proc/%d/fd" % pid
    names: List[str] = os.listdir(folder)
    for name in names:
        link = os.path.join(folder, name)
        try:
            if os.readlink(link) == path:
                return os.open(link, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return -1
