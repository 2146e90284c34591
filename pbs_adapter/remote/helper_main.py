"""The program on the login node: frames on standard input and output, requests to `helper_ops`, until the input ends.

The real descriptors are moved away first, so that a stray print lands in a log file and not between two frames. At the
end of input the process exits at once, but for qsub commands that run: their job ids are written first.
"""

import errno
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Dict, Optional, Tuple

from . import helper_files as files
from . import wire
from .helper_compile import precompile
from .helper_errors import OpError
from .helper_ops import Operations, Reading
from .helper_stream import Closed, Stream, Writer
from .output import Output

_POOLS = {"submit": 8, "other": 6}
_MAX_POLLS = 16  # long polls, each a thread: the agent has one at a time, and those that it gave up on
_MAX_STREAMS = {"logs": 64, "census": 4}  # each a thread: they may all be taken and no poll waits
_MAX_QUEUED = 2000  # requests for which no thread is free: more, and files or PBS hang
_LOG_LIMIT = 1024 * 1024
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
#: A path that is no path, or has a link in it where none may be; everything else of a file system may pass.
_HOPELESS = (errno.EINVAL, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
Task = Callable[[], None]


class _Terminated(Exception):
    """A signal asked this process to end; raised in the thread that reads."""


class Helper:
    """Reads requests in one thread, answers them from others."""

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._writer = Writer(target)
        self._operations: Optional[Operations] = None
        self._streams: Dict[int, Stream] = {}
        self._polls = 0
        self._mutex = threading.Lock()
        self._assembler = wire.Assembler()
        self._queues: Dict[str, "queue.Queue[Task]"] = {name: queue.Queue() for name in _POOLS}

    def run(self) -> None:
        """Serve until the input ends or makes no sense."""
        self._writer.start()
        for name, size in _POOLS.items():
            for _ in range(size):
                threading.Thread(target=self._work, args=(name,), name=name, daemon=True).start()
        try:
            self._read()
        except (wire.WireError, OSError, _Terminated) as error:
            print("connection broken: {}".format(error))
        self._writer.close()
        with self._mutex:
            streams = list(self._streams.values())
        for stream in streams:
            stream.cancel()
        if self._operations is not None:
            self._operations.wait_for_submissions()

    def _read(self) -> None:
        decoder = wire.Decoder()
        while True:
            data = os.read(self._source, 256 * 1024)
            if not data:
                return
            for frame in decoder.feed(data):
                message = self._assembler.add(frame)
                if message is not None:
                    self._handle(message)

    def _handle(self, frame: wire.Frame) -> None:
        if frame.kind == wire.REQUEST:
            self._request(frame)
        elif frame.kind == wire.PING:
            self._writer.send(wire.Frame(frame.id, wire.PONG))
        elif frame.kind in (wire.CREDIT, wire.CANCEL):
            self._assembler.forget(frame.id)
            with self._mutex:
                stream = self._streams.get(frame.id)
            if stream is not None and frame.kind == wire.CREDIT:
                stream.add_credit(frame.head)
            elif stream is not None:
                stream.cancel()
        else:
            raise wire.WireError("unexpected {}".format(wire.KINDS[frame.kind]))

    def _request(self, frame: wire.Frame) -> None:
        op, operations = frame.head.get("op"), self._operations
        if operations is None:
            self._answer(frame, self._hello)  # in this thread: nothing else can be done before it
        elif op in operations.mutating:
            action = operations.mutating[op]
            self._queue("submit" if op == "submit" else "other", frame, lambda: self._answer(frame, action))
        elif op == "jobs":
            self._poll(frame, operations)
        elif op in operations.streaming:
            self._stream(frame, operations.streaming[op])
        else:
            self._fail(frame, OpError("permanent", "no such operation: {!r}".format(op)))

    def _queue(self, pool: str, frame: wire.Frame, task: Task) -> None:
        if self._queues[pool].qsize() >= _MAX_QUEUED:
            self._fail(frame, OpError("retry", "too many requests wait: files or PBS hang on the login node"))
        else:
            self._queues[pool].put(task)

    def _hello(self, head: Dict[str, Any], body: bytes) -> Tuple[Dict[str, Any], bytes]:
        if head.get("op") != "hello":
            raise OpError("permanent", "hello must come first")
        operations = Operations(head)
        redirect_output(operations.spool.path)
        operations.start()
        threading.Thread(target=precompile, args=(str(head.get("podrun")),), name="compile", daemon=True).start()
        self._operations = operations
        return operations.greeting(), b""

    def _answer(
        self, frame: wire.Frame, action: Callable[[Dict[str, Any], bytes], Tuple[Dict[str, Any], bytes]]
    ) -> None:
        try:
            head, body = action(frame.head, frame.body)
            self._writer.send(wire.Frame(frame.id, wire.RESPONSE, head, body))
        except Exception as error:  # noqa: BLE001 - whatever it is, the agent must get an answer
            self._fail(frame, as_op_error(error))

    def _fail(self, frame: wire.Frame, error: OpError) -> None:
        head = {"kind": error.kind, "message": error.message[:8192]}
        self._writer.send(wire.Frame(frame.id, wire.ERROR, head))

    def _poll(self, frame: wire.Frame, operations: Operations) -> None:
        """Long polls wait for the most part: each has its own thread, which no stream of logs can take from it."""
        with self._mutex:
            full = self._polls >= _MAX_POLLS
            self._polls += 0 if full else 1
        if full:
            self._fail(frame, OpError("retry", "too many polls are open"))
            return

        def run() -> None:
            try:
                self._answer(frame, operations.jobs)
            finally:
                with self._mutex:
                    self._polls -= 1

        self._start(frame, run)

    def _stream(self, frame: wire.Frame, read: Reading) -> None:
        """An answer in pieces, in a thread of its own."""
        op = str(frame.head.get("op"))
        stream = Stream(self._writer, frame.id, op)
        with self._mutex:
            full = sum(other.op == op for other in self._streams.values()) >= _MAX_STREAMS[op]
            if not full:
                self._streams[frame.id] = stream
        if full:
            text = "{} {} are open, as many as there may be for one account"
            self._fail(frame, OpError("retry", text.format(_MAX_STREAMS[op], op)))
            return

        def run() -> None:
            error: Optional[OpError] = None
            try:
                for data in read(frame.head, stream.pause):
                    stream.send(data)
            except Closed:
                pass
            except Exception as raised:  # noqa: BLE001 - whatever it is, the agent must get an answer
                error = as_op_error(raised)
            self._forget(frame)
            try:
                stream.end(error)
            except Closed:
                pass

        self._start(frame, run)

    def _start(self, frame: wire.Frame, run: Task) -> None:
        try:
            threading.Thread(target=run, name="wait", daemon=True).start()
        except RuntimeError as error:  # the login node allows no more threads
            if frame.head.get("op") == "jobs":
                with self._mutex:
                    self._polls -= 1
            self._forget(frame)
            self._fail(frame, OpError("retry", "the login node: {}".format(error)))

    def _forget(self, frame: wire.Frame) -> None:
        with self._mutex:
            self._streams.pop(frame.id, None)

    def _work(self, pool: str) -> None:
        while True:
            self._queues[pool].get()()


def as_op_error(error: Exception) -> OpError:
    """What an exception of an operation means to the agent."""
    if isinstance(error, OpError):
        return error
    traceback.print_exception(type(error), error, error.__traceback__)
    if isinstance(error, OSError):
        kind = "permanent" if error.errno in _HOPELESS else "retry"
        return OpError(kind, "file system of the login node: {}".format(error))
    return OpError("retry", "the helper failed: {}: {}".format(type(error).__name__, error))


def redirect_output(folder: str) -> None:
    """Send standard output and error of this process to `helper.log`, appended; beyond 1 MiB the old one is kept aside.

    Whatever is in its place there, a helper without a log still serves.
    """
    try:
        with files.directory(folder) as parent:
            fd = files.open_log("helper.log", parent, _LOG_LIMIT)
    except OSError as error:
        print("no helper.log: {}".format(error))
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _terminate(number: int, _: Any) -> None:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise _Terminated("signal {}".format(number))


def main() -> None:
    """Take over standard input and output, serve, and leave without waiting for threads that only wait."""
    os.umask(0o077)
    source, target = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr = Output()
    helper = Helper(source, target)
    for number in _SIGNALS:
        signal.signal(number, _terminate)
    helper.run()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
