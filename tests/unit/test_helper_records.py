"""What kubectl shows of a CRI log, and where the tail of a file begins."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbs_adapter.remote.helper_errors import OpError
from pbs_adapter.remote.helper_records import (
    Formatter,
    Query,
    parse_record,
    parts_in,
    query_of,
    run_ended,
    run_of,
    runs_in,
    seconds_of,
    tail_start,
)

T = "2026-11-30T10:00:0{}.000000000Z"


def line(second: int, text: bytes, stream: str = "stdout", tag: str = "F") -> bytes:
    return f"{T.format(second)} {stream} {tag} ".encode() + text + b"\n"


LOG = line(1, b"one") + line(2, b"tw", tag="P") + line(3, b"o") + line(4, b"err", "stderr") + line(5, b"")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, b"one\ntwo\nerr\n\n"),
        ({"stream": b"stderr"}, b"err\n"),
        ({"stream": b"stdout"}, b"one\ntwo\n\n"),
        (
            {"timestamps": True},
            b"2026-11-30T10:00:01.000000000Z one\n2026-11-30T10:00:02.000000000Z two\n"
            b"2026-11-30T10:00:04.000000000Z err\n2026-11-30T10:00:05.000000000Z \n",
        ),
        ({"limit_bytes": 6}, b"one\ntw"),
        ({"limit_bytes": 0}, b""),
        ({"limit_bytes": 1000}, b"one\ntwo\nerr\n\n"),
        ({"since_time": 1796032804.0}, b"err\n\n"),
        ({"since_time": 1796032804.5}, b"\n"),
        ({"since_time": 0.0}, b"one\ntwo\nerr\n\n"),
        ({"since_time": 4e9}, b""),
        ({"timestamps": True, "limit_bytes": 10}, b"2026-11-30"),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_formatter(query: dict[str, Any], expected: bytes, step: int) -> None:
    formatter = Formatter(Query("main", **query))
    output = b"".join(formatter.feed(LOG[i : i + step]) for i in range(0, len(LOG), step)) + formatter.feed(
        b"", end=True
    )
    assert output == expected
    assert formatter.done == (query.get("limit_bytes", 1000) < 15)


@given(st.lists(st.binary(max_size=40).filter(lambda text: b"\n" not in text), max_size=8))
@settings(max_examples=50, deadline=None)
def test_any_bytes_arrive_unchanged(lines: list[bytes]) -> None:
    data = b"".join(line(1, text) for text in lines)
    assert Formatter(Query("main")).feed(data) == b"".join(text + b"\n" for text in lines)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["F", "P", "F:x"]), st.binary(max_size=9)).filter(
            lambda record: b"\n" not in record[2]
        ),
        max_size=12,
    ),
    st.integers(1, 200),
)
@settings(max_examples=150, deadline=None)
def test_the_quick_way_gives_what_the_slow_way_gives(records: list[tuple[int, str, bytes]], step: int) -> None:
    data = b"".join(line(second, text, tag=tag) for second, tag, text in records)
    slow = Formatter(Query("main"))
    slow._plain = False
    expected = slow.feed(data) + slow.feed(b"", end=True)
    quick = Formatter(Query("main"))
    pieces = [quick.feed(data[at : at + step]) for at in range(0, len(data), step)]
    assert b"".join(pieces) + quick.feed(b"", end=True) == expected


def test_what_is_no_record_is_shown_rather_than_lost() -> None:
    formatter = Formatter(Query("main", timestamps=True))
    assert formatter.feed(b"garbage\n" + line(1, b"one")) == b"garbage\n" + line(1, b"one").replace(b" stdout F", b"")
    assert formatter.feed(b"2026-11-30T10:00:01Z stdout F torn") == b""
    assert formatter.feed(b"", end=True) == b"2026-11-30T10:00:01Z torn\n"


def test_an_endless_record_is_bounded() -> None:
    formatter = Formatter(Query("main"))
    assert sum(len(formatter.feed(b"x" * 65536)) for _ in range(40)) > 1024 * 1024


@pytest.mark.parametrize(
    ("raw", "known"),
    [
        (b"2026-11-30T10:00:01Z stdout F x", True),
        (b"2026-11-30T10:00:01.5+01:00 stderr P:more x", True),
        (b"2026-11-30T10:00:01Z stdout F", True),
        (b"2026-11-30T10:00:01Z stdin F x", False),
        (b"2026-11-30T10:00:01Z stdout X x", False),
        (b"yesterday stdout F x", False),
        (b"", False),
    ],
)
def test_parse_record(raw: bytes, known: bool) -> None:
    assert (parse_record(raw) is not None) == known


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        (b"1970-01-01T00:00:01Z", 1.0),
        (b"1970-01-01T01:00:01.25+01:00", 1.25),
        (b"1969-12-31T23:00:00-01:30", 1800.0),
        (b"2026-11-30T10:00:01Z", 1796032801.0),
    ],
)
def test_seconds_of(stamp: bytes, seconds: float) -> None:
    assert seconds_of(stamp) == seconds


def at_tail(tmp_path: Path, data: bytes, lines: int) -> tuple[bytes, int]:
    path = tmp_path / "log"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        start, found = tail_start(fd, lines)
        return data[start:], found
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("lines", "tail", "found"),
    [
        (0, b"", 0),
        (1, line(5, b""), 1),
        (2, line(4, b"err", "stderr") + line(5, b""), 2),
        (3, LOG[len(line(1, b"one")) :], 3),
        (4, LOG, 4),
        (99, LOG, 4),
    ],
)
def test_tail(tmp_path: Path, lines: int, tail: bytes, found: int) -> None:
    assert at_tail(tmp_path, LOG, lines) == (tail, found)
    assert at_tail(tmp_path, LOG + b"2026-11-3", lines) == (tail + b"2026-11-3", found)


def test_tail_of_odd_files(tmp_path: Path) -> None:
    assert at_tail(tmp_path, b"", 3) == (b"", 0)
    assert at_tail(tmp_path, b"torn", 3) == (b"torn", 0)
    assert at_tail(tmp_path, line(1, b"unfinished", tag="P"), 1) == (line(1, b"unfinished", tag="P"), 1)


@given(st.lists(st.integers(0, 90_000), max_size=8), st.integers(0, 10))
@settings(max_examples=30, deadline=None)
def test_tail_of_large_files(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], lines: int) -> None:
    records = [line(1, b"x" * size) for size in sizes]
    expected = records[max(0, len(records) - lines) :] if lines else []
    found = at_tail(tmp_path_factory.getbasetemp(), b"".join(records), lines)
    assert found == (b"".join(expected), len(expected))


def container(state: str, run: int = 0, last: dict[str, Any] | None = None, reason: str = "") -> dict[str, Any]:
    return {"state": state, "run": run, "last": last, "reason": reason}


@pytest.mark.parametrize(
    ("state", "previous", "expected"),
    [
        (container("running", 0), False, 0),
        (container("running", 3, {"run": 2}), False, 3),
        (container("running", 3, {"run": 2}), True, 2),
        (container("terminated", 0), False, 0),
        (container("waiting", 1, {"run": 1}, "CrashLoopBackOff"), False, 1),
        (container("waiting", 1, {"run": 1}, "CrashLoopBackOff"), True, 1),
        (container("running", 0), True, 'previous terminated container "main" in pod "hello" not found'),
        (container("waiting"), False, 'container "main" in pod "hello" is waiting to start: ContainerCreating'),
        (
            container("waiting", reason="PodInitializing"),
            False,
            'container "main" in pod "hello" is waiting to start: PodInitializing',
        ),
    ],
)
def test_run_of(state: dict[str, Any], previous: bool, expected: int | str) -> None:
    status, query = {"containers": {"main": state}}, Query("main", previous=previous)
    if isinstance(expected, int):
        assert run_of(status, query, "hello") == expected
    else:
        with pytest.raises(OpError) as caught:
            run_of(status, query, "hello")
        assert caught.value.message == expected


def test_unknown_container() -> None:
    with pytest.raises(OpError, match="container nope is not valid for pod hello"):
        run_of({"containers": {}}, Query("nope"), "hello")


@pytest.mark.parametrize(
    ("phase", "state", "run", "ended"),
    [
        ("Running", container("running", 1), 1, False),
        ("Running", container("running", 2, {"run": 1}), 1, True),
        ("Running", container("waiting", 1, {"run": 1}), 1, True),
        ("Running", container("terminated", 1), 1, True),
        ("Ended", container("running", 1), 1, True),
        ("Running", container("waiting", 0), 0, False),
    ],
)
def test_run_ended(phase: str, state: dict[str, Any], run: int, ended: bool) -> None:
    assert run_ended({"phase": phase, "containers": {"main": state}}, "main", run) == ended
    assert not run_ended(None, "main", run)


def test_files_of_a_run() -> None:
    names = ["0.log", "1.log.2", "1.log", "1.log.10", "1.log.1", "11.log", ".1.log.tmp", "1.logx", "x.log"]
    assert parts_in(names, 1) == ["1.log.10", "1.log.2", "1.log.1", "1.log"]
    assert runs_in(names) == [0, 1, 11]


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"container": 3},
        {"container": "main", "follow": "yes"},
        {"container": "main", "tail_lines": 1.5},
        {"container": "main", "limit_bytes": -1},
        {"container": "main", "stream": "both"},
        {"container": "main", "since_time": "now"},
    ],
)
def test_queries_are_checked(head: dict[str, Any]) -> None:
    with pytest.raises(OpError):
        query_of(head)


def test_a_whole_query() -> None:
    head = {
        "container": "main",
        "follow": True,
        "tail_lines": 0,
        "limit_bytes": None,
        "since_time": 7,
        "stream": "Stderr",
    }
    assert query_of(head) == Query("main", follow=True, tail_lines=0, since_time=7.0, stream=b"stderr")


def test_the_tail_of_a_file_without_newlines_is_read_once_and_not_kept(tmp_path: Path) -> None:
    """A job outside a container can write anything into the log file."""
    path = tmp_path / "log"
    size = 40 << 20
    path.write_bytes(b"x" * size)
    fd = os.open(path, os.O_RDONLY)
    tracemalloc.start()
    try:
        start, found = tail_start(fd, 10)
        memory = tracemalloc.get_traced_memory()[1]
        assert found == 10
        assert size - start < 16 << 20
        assert memory < 16 << 20
        assert tail_start(fd, 1000)[0] == 0
        with open(path, "ab") as file:
            file.write(b"\n" + line(1, b"one") + line(2, b"two"))
        start, found = tail_start(fd, 2)
        assert os.pread(fd, 1000, start) == line(1, b"one") + line(2, b"two")
    finally:
        tracemalloc.stop()
        os.close(fd)
