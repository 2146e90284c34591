"""The helper's side of the connection: one writer thread, short answers before bulk, and credit for streams.

Answers that fit one frame overtake log data and large reports, so that a slow reader of logs never delays a poll. What
waits to be written is bounded: a stream by its credit, everything else by the number of requests.
"""

import os
import threading
from collections import deque
from typing import Any, Deque, Dict, List, Optional

from . import wire
from .helper_errors import OpError

_BULK_LIMIT = 1024 * 1024


class Closed(Exception):
    """The connection is over, or the agent has cancelled the stream: stop working for it."""


class Writer:
    """Sends frames from any thread over one descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._urgent: Deque[bytes] = deque()
        self._bulk: Deque[bytes] = deque()
        self._bulk_size = 0
        self._closed = False
        self._changed = threading.Condition()

    def start(self) -> None:
        """Start the thread; MAGIC goes first."""
        self._urgent.append(wire.MAGIC)
        threading.Thread(target=self._run, name="writer", daemon=True).start()

    def send(self, message: wire.Frame) -> None:
        """Queue a whole RESPONSE, ERROR or PONG. Never blocks."""
        parts = [wire.encode(part) for part in wire.split(message)]
        with self._changed:
            if len(parts) == 1:
                self._urgent.append(parts[0])
            else:
                self._put_bulk(parts)
            self._changed.notify_all()

    def send_bulk(self, frame: wire.Frame) -> None:
        """Queue one frame of a stream behind the others; waits for room. Raises Closed."""
        data = wire.encode(frame)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bulk_size < _BULK_LIMIT)
            if self._closed:
                raise Closed()
            self._put_bulk([data])
            self._changed.notify_all()

    def close(self) -> None:
        """Wake everyone who waits for room; nothing more is sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put_bulk(self, parts: List[bytes]) -> None:
        self._bulk.extend(parts)
        self._bulk_size += sum(len(part) for part in parts)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._urgent or self._bulk)
                if self._closed:
                    return
                data = self._urgent.popleft() if self._urgent else self._pop_bulk()
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                self.close()
                return

    def _pop_bulk(self) -> bytes:
        data = self._bulk.popleft()
        self._bulk_size -= len(data)
        self._changed.notify_all()
        return data


class Stream:
    """One stream of DATA towards the agent. `send` and `pause` raise Closed once the agent has cancelled it."""

    def __init__(self, writer: Writer, ident: int, op: str) -> None:
        self.op = op
        self._writer = writer
        self._id = ident
        self._credit = wire.CREDIT_WINDOW
        self._cancelled = False
        self._changed = threading.Condition()

    def send(self, data: bytes) -> None:
        """Send all of `data`, waiting for credit as needed."""
        while data:
            with self._changed:
                self._changed.wait_for(lambda: self._cancelled or self._credit > 0)
                if self._cancelled:
                    raise Closed()
                size = min(len(data), self._credit, wire.CHUNK)
                self._credit -= size
            self._writer.send_bulk(wire.Frame(self._id, wire.DATA, {}, data[:size]))
            data = data[size:]

    def pause(self, seconds: float) -> None:
        """Wait that long."""
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled, seconds)
            if self._cancelled:
                raise Closed()

    def end(self, error: Optional[OpError] = None) -> None:
        """Send END or ERROR behind the data."""
        if error is None:
            self._writer.send_bulk(wire.Frame(self._id, wire.END))
        else:
            head = {"kind": error.kind, "message": error.message[:4096]}  # fits one frame, whatever its characters
            self._writer.send_bulk(wire.Frame(self._id, wire.ERROR, head))

    def add_credit(self, head: Dict[str, Any]) -> None:
        """A CREDIT frame has come."""
        more = head.get("bytes")
        if not isinstance(more, int) or isinstance(more, bool) or not 0 < more <= 1 << 30:
            raise wire.WireError("credit of {!r} bytes".format(more))
        with self._changed:
            self._credit += more
            self._changed.notify_all()

    def cancel(self) -> None:
        """A CANCEL frame has come, or the connection is over."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
