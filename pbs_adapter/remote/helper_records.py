"""CRI log records and what `kubectl logs` makes of them: pure functions and one small state machine over bytes.

A record is `TIME STREAM TAG CONTENT\\n`, TAG `F` when it ends a line and `P` when more of the line follows.
"""

import calendar
import math
import os
import re
import time
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from .helper_errors import OpError, field

BLOCK = 64 * 1024
_MAX_RECORD = 1024 * 1024
_STAMP = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_FULL = re.compile(rb"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) std(?:out|err) F ")
_RUNS = 4  # of equal prefixes in a block; beyond that one pattern for each line is quicker
_STREAMS = {"All": b"", "Stdout": b"stdout", "Stderr": b"stderr"}


class Query(NamedTuple):
    """`models.LogQuery`, checked. `stream` is b"" for both."""

    container: str
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: Optional[int] = None
    limit_bytes: Optional[int] = None
    since_time: Optional[float] = None
    stream: bytes = b""


def query_of(head: Dict[str, Any]) -> Query:
    """The query of a request. Raises OpError(permanent)."""
    numbers = {n: field(head, n, int) for n in ("tail_lines", "limit_bytes") if head.get(n) is not None}
    if any(number < 0 for number in numbers.values()):
        raise OpError("permanent", "tail_lines and limit_bytes cannot be negative")
    stream = field(head, "stream", str, "All")
    if stream not in _STREAMS:
        raise OpError("permanent", "stream must be All, Stdout or Stderr, not {!r}".format(stream))
    return Query(
        container=field(head, "container", str),
        follow=field(head, "follow", bool, False),
        previous=field(head, "previous", bool, False),
        timestamps=field(head, "timestamps", bool, False),
        tail_lines=numbers.get("tail_lines"),
        limit_bytes=numbers.get("limit_bytes"),
        since_time=None if head.get("since_time") is None else float(field(head, "since_time", float)),
        stream=_STREAMS[stream],
    )


class Record(NamedTuple):
    """One record of a log file."""

    stamp: bytes
    stream: bytes
    partial: bool
    content: bytes


def parse_record(line: bytes) -> Optional[Record]:
    """The record in a line without its newline; None when it is none."""
    parts = line.split(b" ", 3)
    if len(parts) < 3 or parts[1] not in (b"stdout", b"stderr") or not _STAMP.fullmatch(parts[0]):
        return None
    tag = parts[2].split(b":", 1)[0]
    if tag not in (b"F", b"P"):
        return None
    return Record(parts[0], parts[1], tag == b"P", parts[3] if len(parts) == 4 else b"")


def seconds_of(stamp: bytes) -> float:
    """Epoch seconds of an RFC 3339 time that `parse_record` accepted."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return 0.0
    numbers = [int(part) for part in match.groups()[:6]]
    seconds = float(calendar.timegm((numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], 0, 0, 0)))
    zone = match.group(8)
    if zone != b"Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds -= offset if zone[:1] == b"+" else -offset
    return seconds + float(b"0." + (match.group(7) or b"0"))


class Formatter:
    """Bytes of log files in, bytes for kubectl out. `done` when the byte limit has been reached."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._rest = b""
        self._line_start = True
        self._left = query.limit_bytes
        self.done = query.limit_bytes == 0
        self._since = _stamp_of(query.since_time) if query.since_time is not None else b""
        self._plain = not (query.stream or query.timestamps or self._since)

    def feed(self, data: bytes, end: bool = False) -> bytes:
        """What `data` adds to the output; an unfinished record is kept for the next call, unless this is the `end`."""
        data = self._rest + data
        cut = data.rfind(b"\n") + 1
        contents = contents_of(data[:cut]) if self._plain else None
        if contents is not None:
            data, self._line_start = data[cut:], True
        lines = data.split(b"\n")
        self._rest = lines.pop()
        if self._rest and (end or len(self._rest) > _MAX_RECORD):
            lines.append(self._rest)
            self._rest = b""
        return self._limit((contents or b"") + b"".join([self._line(line) for line in lines]))

    def _line(self, line: bytes) -> bytes:
        record = parse_record(line)
        if record is None:
            return line + b"\n" if line else b""  # not podrun's: show it rather than lose it
        query = self._query
        if (query.stream and record.stream != query.stream) or (self._since and self._is_old(record.stamp)):
            return b""
        prefix = record.stamp + b" " if query.timestamps and self._line_start else b""
        self._line_start = not record.partial
        return prefix + record.content + (b"" if record.partial else b"\n")

    def _is_old(self, stamp: bytes) -> bool:
        if len(stamp) == len(self._since) and stamp.endswith(b"Z"):
            return stamp < self._since
        return self._query.since_time is not None and seconds_of(stamp) < self._query.since_time

    def _limit(self, output: bytes) -> bytes:
        if self._left is None:
            return output
        output = output[: self._left]
        self._left -= len(output)
        self.done = self._left == 0
        return output


def contents_of(text: bytes) -> Optional[bytes]:
    """The contents of whole records, a line each; None when one of them is anything but an ordinary F record.

    Many times quicker than one record after another: what a container wrote in one go has the same prefix on each line.
    """
    text = b"\n" + text
    at, end = 0, len(text) - 1
    found: List[bytes] = []
    while at < end:
        match = _FULL.match(text, at + 1)
        if match is None:
            return None
        prefix = text[at : match.end()]
        stop = text.index(b"\n", text.rfind(prefix) + len(prefix))
        run = text[at:stop]
        contents = run.replace(prefix, b"\n")
        records = (len(run) - len(contents)) // (len(prefix) - 1)
        if len(found) == _RUNS or records != contents.count(b"\n"):
            rest = text[at + 1 :]
            others, count = _FULL.subn(b"", rest)
            return b"".join(found) + others if count == rest.count(b"\n") else None
        found.append(contents[1:] + b"\n")
        at = stop
    return b"".join(found)


def _stamp_of(seconds: float) -> bytes:
    """RFC 3339 with nine digits in UTC, so that times of the usual shape can be compared as bytes."""
    whole = math.floor(seconds)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(0, whole)))
    return "{}.{:09d}Z".format(text, int((seconds - whole) * 1e9)).encode("ascii")


def tail_start(fd: int, lines: int) -> Tuple[int, int]:
    """(offset at which the last `lines` lines of a file begin, how many lines follow it), read from the end.

    A line is what ends with an F record, or is unfinished at the end. A torn last record does not count.
    """
    count = 0
    start = end = -1
    for at, line, after in _backward(fd):
        if end < 0:
            start = end = after
        record = parse_record(line)
        if count == 0 or record is None or not record.partial:
            if count == lines:
                return start, count
            count += 1
        start = at
    return (0, count) if lines else (max(0, end), 0)


def _backward(fd: int) -> Iterator[Tuple[int, bytes, int]]:
    """(start, line, end) of the complete lines of a file, the last one first; `line` without its newline.

    Of a line longer than any record it makes several, so that a file without newlines is read once and never kept.
    """
    at = os.fstat(fd).st_size
    rest = b""
    torn = True  # what follows the last newline is not complete
    while at > 0:
        size = min(BLOCK, at)
        at -= size
        pieces = (os.pread(fd, size, at) + rest).split(b"\n")
        rest = pieces[0]
        end = at + sum(len(piece) + 1 for piece in pieces) - 1
        for piece in reversed(pieces[1:]):
            start = end - len(piece)
            if not torn:
                yield start, piece, end + 1
            torn = False
            end = start - 1
        if len(rest) > _MAX_RECORD:  # no record is as long: what begins here counts as one
            if not torn:
                yield at, rest, at + len(rest)
            torn, rest = False, b""
    if not torn and rest:
        yield 0, rest, len(rest) + 1


def run_of(status: Dict[str, Any], query: Query, pod: str) -> int:
    """Which run's log is asked for, from podrun's status. Raises OpError(permanent) in the kubelet's words."""
    container = status["containers"].get(query.container)
    if container is None:
        raise OpError("permanent", "container {} is not valid for pod {}".format(query.container, pod))
    last = container.get("last")
    if query.previous:
        if last is None:
            text = 'previous terminated container "{}" in pod "{}" not found'
            raise OpError("permanent", text.format(query.container, pod))
        return int(last.get("run", 0))
    if container["state"] != "waiting":
        return int(container.get("run", 0))
    if last is None:
        raise waiting(query.container, pod, container.get("reason") or "ContainerCreating")
    return int(last.get("run", 0))


def waiting(container: str, pod: str, reason: str) -> OpError:
    """The error for a container that has not started."""
    return OpError("permanent", 'container "{}" in pod "{}" is waiting to start: {}'.format(container, pod, reason))


def run_ended(status: Optional[Dict[str, Any]], container: str, run: int) -> bool:
    """Whether nothing more will be written to the log of that run."""
    if status is None:
        return False
    state = status["containers"].get(container) or {}
    last = state.get("last") or {}
    newer = int(state.get("run", 0)) > run or int(last.get("run", -1)) >= run
    return bool(status["phase"] == "Ended" or newer or state.get("state") == "terminated")


def runs_in(names: List[str]) -> List[int]:
    """The runs that have a log file, in order."""
    return sorted({int(name.split(".", 1)[0]) for name in names if re.fullmatch(r"\d{1,9}\.log(\.\d{1,9})?", name)})


def parts_in(names: Iterable[str], run: int) -> List[str]:
    """The files of one run from the oldest to the newest: `0.log.2`, `0.log.1`, `0.log`."""
    pattern = re.compile(r"{}\.log(?:\.(\d{{1,9}}))?".format(run))
    found = [(match, match.group(1)) for match in map(pattern.fullmatch, names) if match is not None]
    return [match.group(0) for match, number in sorted(found, key=lambda item: -int(item[1] or 0))]
