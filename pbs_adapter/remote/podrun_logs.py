"""Container output to log files in the CRI format that every log reader of Kubernetes knows.

`2026-11-30T10:00:00.123456789Z stdout F text`: one line of output each; `P` instead of `F` marks a piece of a line that
is longer than 16 KiB, or that had no newline when the container ended. One thread serves all containers of a pod, so
that a slow file system delays neither stop requests nor a status. Files are synced every two seconds while dirty,
rotated at 10 MiB (`0.log`, older parts `0.log.1` …) and only the last two runs are kept. Memory is bounded: what cannot
be written is dropped, podrun's own output says so once, and a full file system ends the pod (`LogPump.full`).
"""

import collections
import errno
import os
import selectors
import stat
import threading
import time
import traceback
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from . import podrun_files as files

MAX_LINE = 16 * 1024
MAX_FILE = 10 * 1024 * 1024
MAX_PARTS = 5
TAIL = 2048
SYNC_EVERY = 2.0
CHUNK = 64 * 1024
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def stamp(now: float) -> bytes:
    """RFC 3339 with nanoseconds, UTC."""
    whole = int(now)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return ("%s.%09dZ" % (text, int((now - whole) * 1e9))).encode("ascii")


class Lines:
    """Cuts one stream into CRI lines."""

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self._rest = b""

    def feed(self, data: bytes, now: float) -> bytes:
        """Take what the container wrote; return whole CRI lines, perhaps none."""
        full, partial = (b"%s %s %s " % (stamp(now), self.stream, tag) for tag in (b"F", b"P"))
        pieces = (self._rest + data).split(b"\n")
        self._rest = pieces.pop()
        out: List[bytes] = []
        for piece in pieces:
            while len(piece) > MAX_LINE:
                out += (partial, piece[:MAX_LINE], b"\n")
                piece = piece[MAX_LINE:]
            out += (full, piece, b"\n")
        while len(self._rest) > MAX_LINE:
            out += (partial, self._rest[:MAX_LINE], b"\n")
            self._rest = self._rest[MAX_LINE:]
        return b"".join(out)

    def finish(self, now: float) -> bytes:
        """The stream has ended: the rest without a newline."""
        rest, self._rest = self._rest, b""
        return b"%s %s P %s\n" % (stamp(now), self.stream, rest) if rest else b""


class LogFile:
    """`<directory>/<run>.log` and its rotated parts."""

    def __init__(self, directory: str, run: int, max_file: int = MAX_FILE) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        _check_folder(directory)
        _forget(directory, run)
        self._path = os.path.join(directory, "%d.log" % run)
        self._max = max_file
        self._file = self._open()
        self._dirty = False
        self.dropped = 0
        self.full = ""  # why the file system takes no more

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not an ordinary file", self._path)
        self._size = status.st_size
        return descriptor

    def write(self, data: bytes) -> None:
        """Append whole lines. What the file system refuses is dropped."""
        try:
            if self._size and self._size + len(data) > self._max:
                self._rotate()
            self._size += len(data)
            self._dirty = True
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            if not self.dropped:
                print("podrun: log lines of %s are lost: %s" % (self._path, error), flush=True)
            if error.errno in NO_ROOM:
                self.full = str(error.strerror)
            self.dropped += len(data)

    def _rotate(self) -> None:
        self.sync()
        if os.path.exists(self._path):  # not, when the step below failed for want of space the last time
            for part in range(MAX_PARTS - 2, 0, -1):
                older = "%s.%d" % (self._path, part)
                if os.path.exists(older):
                    os.replace(older, "%s.%d" % (self._path, part + 1))
            os.replace(self._path, self._path + ".1")
        previous, self._file = self._file, self._open()
        os.close(previous)

    def sync(self) -> None:
        """Make it durable, and visible to other hosts."""
        if self._dirty:
            self._dirty = False
            try:
                os.fsync(self._file)
            except OSError as error:
                print("podrun: fsync of %s: %s" % (self._path, error), flush=True)

    def close(self) -> None:
        self.sync()
        os.close(self._file)


def _check_folder(directory: str) -> None:
    """Neither `logs` nor the container's folder in it may be a link. Raises OSError."""
    os.close(files.open_folder(*os.path.split(directory)))


def _forget(directory: str, run: int) -> None:
    """Remove logs of runs before the previous one, as the kubelet does."""
    for name in os.listdir(directory):
        number = name.partition(".")[0]
        if number.isdigit() and int(number) < run - 1:
            os.unlink(os.path.join(directory, name))


class ContainerLog:
    """The output of one run of one container: two pipes, one file, and the last 2 KiB of it all.

    `stdout` and `stderr` are the writing ends, for the container; `started` closes them here.
    """

    def __init__(self, directory: str, run: int, max_file: int = MAX_FILE) -> None:
        self.file = LogFile(directory, run, max_file)
        self.done = threading.Event()
        self.streams: Dict[int, Lines] = {}
        self.tail = b""
        out, self.stdout = os.pipe()
        err, self.stderr = os.pipe()
        for descriptor, stream in ((out, b"stdout"), (err, b"stderr")):
            os.set_blocking(descriptor, False)
            self.streams[descriptor] = Lines(stream)

    def started(self) -> None:
        """The container has its ends of the pipes (or never will)."""
        os.close(self.stdout)
        os.close(self.stderr)

    def read(self, descriptor: int, clock: Callable[[], float] = time.time) -> bool:
        """Move what the pipe holds to the file; False at the stream's end. Never blocks on the pipe."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return True
        lines = self.streams[descriptor]
        self.tail = (self.tail + data)[-TAIL:]
        text = lines.feed(data, clock()) if data else lines.finish(clock())
        if text:
            self.file.write(text)
        return bool(data)

    def last_lines(self, count: int = 80) -> bytes:
        """The end of the output, at most `count` lines and 2048 bytes."""
        return b"".join(self.tail.splitlines(True)[-count:])


class LogPump(threading.Thread):
    """The thread that reads all containers' output."""

    def __init__(self) -> None:
        super().__init__(name="logs", daemon=True)
        self._selector = selectors.DefaultSelector()
        self._orders: Deque[Tuple[str, Optional[ContainerLog]]] = collections.deque()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._logs: List[ContainerLog] = []
        self._stopping = False
        self.full = ""  # why log lines are lost, once the file system takes no more

    def _order(self, what: str, log: Optional[ContainerLog]) -> None:
        self._orders.append((what, log))
        os.write(self._wake_out, b"x")

    def attach(self, log: ContainerLog) -> None:
        """Start to read `log`'s pipes; `log.done` is set when both have ended and the file is closed."""
        self._order("attach", log)

    def cut(self, log: ContainerLog) -> None:
        """Take what is there now and close, although some process still holds the other end."""
        self._order("cut", log)

    def stop(self, timeout: float) -> None:
        """Close all files and end the thread."""
        self._order("stop", None)
        self.join(timeout)

    def run(self) -> None:
        """Serve until `stop`."""
        synced = time.monotonic()
        while not self._stopping:
            try:
                for key, _ in self._selector.select(SYNC_EVERY):
                    self._serve(key)
                while self._orders:
                    self._obey(*self._orders.popleft())
                if time.monotonic() - synced >= SYNC_EVERY:
                    synced = time.monotonic()
                    for log in self._logs:
                        log.file.sync()
            except Exception:  # noqa: BLE001 - without this thread every container of the pod would block on its pipe
                traceback.print_exc()

    def _serve(self, key: Any) -> None:
        if key.data is None:
            os.read(self._wake_in, 4096)
            return
        if not key.data.read(key.fd):
            self._close_stream(key.data, key.fd)
        self.full = self.full or key.data.file.full

    def _close_stream(self, log: ContainerLog, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del log.streams[descriptor]
        if not log.streams:
            self._logs.remove(log)
            log.file.close()
            log.done.set()

    def _obey(self, what: str, log: Optional[ContainerLog]) -> None:
        if log is None:
            for other in list(self._logs):
                self._cut(other)
            self._stopping = True
        elif what == "attach":
            self._logs.append(log)
            for descriptor in log.streams:
                self._selector.register(descriptor, selectors.EVENT_READ, log)
        else:
            self._cut(log)

    def _cut(self, log: ContainerLog) -> None:
        for descriptor in list(log.streams):
            for _ in range(16):  # a pipe holds 64 KiB; a writer that never pauses must not keep us
                if not log.read(descriptor):
                    break
            now = time.time()
            log.file.write(log.streams[descriptor].finish(now))
            self._close_stream(log, descriptor)
