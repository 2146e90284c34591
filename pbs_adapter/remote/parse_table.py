"""The table of `qstat -a`, `qstat -u USER`, with `-w`, `-n`, `-1`, `-s`: the cheapest list of all jobs that PBS gives.

Columns are as wide as the dashes under their titles, counted in bytes, so a value with a blank or a letter that is not
ASCII shifts nothing. PBS cuts what does not fit: a long name ends with `*`, a walltime loses its last digits.
"""

import io
import re
from functools import lru_cache
from typing import Iterator, List, NamedTuple, Optional, Tuple

from .parse_values import ParseError, parse_size

_DASHES = re.compile(rb"-{5,}(?: -+){4,}\s*")
_HOSTS = re.compile(r"[\w.-]+/\d+", re.ASCII)
_STATES = frozenset("BEFHMQRSTUWX")
#: Titles are no use to find columns ("Time" occurs twice): the order never changes.
_COLUMNS = ("job_id", "user", "queue", "name", "session", "nds", "tsk", "memory", "walltime", "state", "elapsed")


class TableRow(NamedTuple):
    """One job. `nds` counts chunks, `tsk` CPUs, `memory` is in bytes, `walltime` and `elapsed` in seconds.

    None where PBS prints `--`. Seconds are never shown, and hours above 99 lose minutes, then hours above 9,999
    their meaning: use walltime as an estimate only. `job_id`, `user`, `name` and `queue` may end with `*`, cut.
    """

    job_id: str
    user: str
    queue: str
    name: str
    session: str
    nds: Optional[int]
    tsk: Optional[int]
    memory: Optional[int]
    walltime: Optional[int]
    state: str
    elapsed: Optional[int]
    exec_host: str
    comment: str


def parse_job_table(text: bytes) -> List[TableRow]:
    """The rows of one or more tables, in PBS's order. No output is no job.

    Raises ParseError for other text without a table and for a row that cannot be read: a job must not get lost.
    """
    return list(iter_job_table(text))


def iter_job_table(text: bytes) -> Iterator[TableRow]:
    """`parse_job_table` one by one, for tables of many jobs; what is wrong is told when it is met."""
    last = None  # type: Optional[TableRow]
    columns = []  # type: List[Tuple[int, int]]
    tables = 0
    for line in io.BytesIO(text):
        line = line.rstrip(b"\n")
        if _DASHES.fullmatch(line):
            tables += 1
            columns = [match.span() for match in re.finditer(rb"-+", line)]
            if len(columns) != len(_COLUMNS):
                raise ParseError("a job table of {} columns".format(len(columns)))
        elif not line.strip():
            columns = []  # the next server's heading follows
        elif columns and not line.startswith(b"   "):
            if last is not None:
                yield last
            last = _row(line, columns)
        elif columns and last is not None:
            last = _continued(last, line)
    if last is not None:
        yield last
    if not tables and text.strip():
        raise ParseError("not a job table: {!r}".format(text[:200]))


def _row(line: bytes, columns: List[Tuple[int, int]]) -> TableRow:
    values = [line[start:end].decode("utf-8", "surrogateescape").strip() for start, end in columns]
    job_id, user, queue, name, session, nds, tsk, memory, walltime, state, elapsed = values
    if state not in _STATES:
        raise ParseError("not a row of the job table: {!r}".format(line[:200]))
    hosts = line[columns[-1][1] :].decode("utf-8", "surrogateescape").strip()
    return TableRow(
        job_id=job_id,
        user=user,
        queue=queue,
        name=name,
        session=session.replace("--", ""),
        nds=_count(nds),
        tsk=_count(tsk),
        memory=_memory(memory),
        walltime=_hours_minutes(walltime),
        state=state,
        elapsed=_hours_minutes(elapsed),
        exec_host="" if hosts == "--" else hosts,
        comment="",
    )


def _continued(row: TableRow, line: bytes) -> TableRow:
    """With `-n` the hosts follow on lines of their own (several, broken at `+`), with `-s` the comment does."""
    text = line.decode("utf-8", "surrogateescape").strip()
    if _HOSTS.match(text) or text.startswith("+"):
        return row._replace(exec_host=row.exec_host + text)
    return row if text == "--" else row._replace(comment=text)


@lru_cache(maxsize=1024)
def _count(text: str) -> Optional[int]:
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else None


@lru_cache(maxsize=1024)
def _memory(text: str) -> Optional[int]:
    try:
        return None if text in ("--", "") else parse_size(text)
    except ParseError:
        return None


@lru_cache(maxsize=1024)
def _hours_minutes(text: str) -> Optional[int]:
    """Seconds of the first five characters of `HH:MM:SS`: `00:05`, `100:0` (a digit of the minutes lost), `1000:`."""
    match = re.fullmatch(r"(\d{1,5})(?::(\d{0,2}))?", text, re.ASCII)
    if match is None:
        return None
    minutes = match.group(2) or "0"
    if len(text) == 5 and len(minutes) == 1 and match.group(2):
        minutes += "0"
    return int(match.group(1)) * 3600 + int(minutes) * 60
