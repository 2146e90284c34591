"""The small languages inside PBS attributes, by tables of text and value."""

from __future__ import annotations

import pytest

from pbs_adapter.remote.parse import (
    Chunk,
    Limit,
    ParseError,
    VnodePiece,
    limit_for_user,
    parse_duration,
    parse_exec_vnode,
    parse_limits,
    parse_pbs_time,
    parse_resource,
    parse_select,
    parse_size,
)

GB = 1024**3


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0b", 0),
        ("7", 7),
        (7, 7),
        ("1048576kb", GB),
        ("1gb", GB),
        ("1GB", GB),
        ("128gb", 128 * GB),
        ("2mb", 2 * 1024**2),
        ("1tb", 1024 * GB),
        ("3pb", 3 * 1024**5),
        ("1eb", 1024**6),
        ("10w", 80),
        ("1kw", 8192),
        ("1mw", 8 * 1024**2),
        ("5k", 5120),
        (" 4gb ", 4 * GB),
        # Beyond 2**63: Python's integers hold it.
        ("18446744073709551616kb", 2**74),
    ],
)
def test_size(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "gb", "-1gb", "1.5gb", "10xyz", "1 g b", "0x10", "١gb", "1" * 30])
def test_not_a_size(text: str) -> None:
    with pytest.raises(ParseError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:05", 5),
        ("01:00:00", 3600),
        ("100:30:00", 361800),
        ("05:30", 330),
        ("90", 90),
        (90, 90),
        ("00:00:01.7", 1),
        ("48:00:00", 172800),
        ("00:90:00", 5400),
    ],
)
def test_duration(text: str | int, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "1:2:3:4", "-5", "1::2", ":30", "00:05:"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ParseError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("Thu Jan  1 00:00:00 1970", 0.0),
        ("Mon Nov 30 09:51:33 2026", 1796032293.0),
        ("Thu Feb 29 12:00:00 2024", 1709208000.0),
        ("Sun Mar  1 00:00:00 2026", 1772323200.0),
        ("Fri Dec 31 23:59:59 9999", 253402300799.0),
        ("1796032293", 1796032293.0),
        ("1796032293\x1f", 1796032293.0),  # str.strip takes more for white space than int does
        (1796032293, 1796032293.0),
    ],
)
def test_time_is_read_as_utc(text: str | int, epoch: float) -> None:
    assert parse_pbs_time(text) == epoch


def test_the_absurd_year_of_issue_2518_is_a_time() -> None:
    assert parse_pbs_time("Mon Jan  1 00:00:00 13429") > 253402300799.0


@pytest.mark.parametrize("text", ["", "--", "Mon Nov 30", "Mon Foo 30 09:51:33 2026", "2026-11-30T09:51:33"])
def test_not_a_time(text: str) -> None:
    with pytest.raises(ParseError):
        parse_pbs_time(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ncpus", "4", 4),
        ("mem", "1gb", GB),
        ("mem", "0b", 0),
        ("walltime", "01:00:00", 3600),
        ("cpupercent", "98", 98),
        ("gpu_power", "1.5", 1.5),
        ("avx", "True", True),
        ("avx", "False", False),
        ("arch", "linux", "linux"),
        ("host", "007", "007"),
        ("vnode", "10b", "10b"),
        ("cluster", "alpha", "alpha"),
        ("big", "1" * 400, "1" * 400),
        ("big", "1e999", "1e999"),
        ("odd", "inf", "inf"),
    ],
)
def test_resource_types(name: str, text: str, value: object) -> None:
    parsed = parse_resource(name, text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        (1, (Chunk(1, {}),)),
        ("1", (Chunk(1, {}),)),
        ("1:ncpus=4:mem=1gb", (Chunk(1, {"ncpus": 4, "mem": GB}),)),
        ("ncpus=4", (Chunk(1, {"ncpus": 4}),)),
        ("2:ncpus=2:mem=1gb+1:ngpus=1", (Chunk(2, {"ncpus": 2, "mem": GB}), Chunk(1, {"ngpus": 1}))),
        (
            "2:ncpus=2:mpiprocs=2:ompthreads=1:mem=2gb",
            (Chunk(2, {"ncpus": 2, "mpiprocs": 2, "ompthreads": 1, "mem": 2 * GB}),),
        ),
        ("1:vnode=pbs-a[0]:ncpus=1", (Chunk(1, {"vnode": "pbs-a[0]", "ncpus": 1}),)),
        ("3+2", (Chunk(3, {}), Chunk(2, {}))),
        ('1:os="a:b+c":x=\'y"z\'', (Chunk(1, {"os": "a:b+c", "x": 'y"z'}),)),
        ("1:scratch_ssd=20gb:cluster=^samson", (Chunk(1, {"scratch_ssd": 20 * GB, "cluster": "^samson"}),)),
        ("1:ncpus=", (Chunk(1, {"ncpus": ""}),)),
    ],
)
def test_select(text: str | int, chunks: tuple[Chunk, ...]) -> None:
    assert parse_select(text) == chunks


@pytest.mark.parametrize("text", ["", "+", "1+", "1:", "1:ncpus", "ncpus=1:2", "1:=3", '1:a="b', "x y"])
def test_not_a_select(text: str) -> None:
    with pytest.raises(ParseError):
        parse_select(text)


def test_exec_vnode_shows_a_split_chunk() -> None:
    assert parse_exec_vnode("(h[0]:ncpus=8:mem=1048576kb+h[1]:ncpus=8)+(k:ncpus=4)") == (
        (VnodePiece("h[0]", {"ncpus": 8, "mem": GB}), VnodePiece("h[1]", {"ncpus": 8})),
        (VnodePiece("k", {"ncpus": 4}),),
    )


@pytest.mark.parametrize(
    ("text", "vnodes"),
    [
        ("(pbs-a[0]:ncpus=16)", [["pbs-a[0]"]]),
        ("a:ncpus=1+b:ncpus=2", [["a"], ["b"]]),
        ("(a:ncpus=1)+(a:ncpus=1)", [["a"], ["a"]]),
        ("(a)", [["a"]]),
    ],
)
def test_exec_vnode(text: str, vnodes: list[list[str]]) -> None:
    assert [[piece.vnode for piece in chunk] for chunk in parse_exec_vnode(text)] == vnodes


@pytest.mark.parametrize("text", ["", "(a:ncpus=1", "(a:ncpus)", "()", "(a:ncpus=1+)"])
def test_not_an_exec_vnode(text: str) -> None:
    with pytest.raises(ParseError):
        parse_exec_vnode(text)


def test_limits() -> None:
    assert parse_limits("max_run", "[u:PBS_GENERIC=3],[o:PBS_ALL=10]") == (
        Limit("u", "PBS_GENERIC", 3),
        Limit("o", "PBS_ALL", 10),
    )
    assert parse_limits("mem", '[u:PBS_GENERIC=10gb],[p:"my project"=1gb]') == (
        Limit("u", "PBS_GENERIC", 10 * GB),
        Limit("p", "my project", GB),
    )
    assert parse_limits("max_running", "12") == (Limit("o", "PBS_ALL", 12),)
    assert parse_limits("max_run", "nonsense") == ()


@pytest.mark.parametrize(
    ("text", "user", "number"),
    [
        ("", "alice", None),
        ("[u:PBS_GENERIC=3]", "alice", 3),
        ("[u:PBS_GENERIC=3],[u:alice=9]", "alice", 9),
        ("[u:PBS_GENERIC=3],[u:alice=9]", "bob", 3),
        ("[u:alice=9],[o:PBS_ALL=5]", "alice", 5),
        ("[u:alice=9]", "bob", None),
        ("[g:PBS_GENERIC=3],[p:x=2]", "alice", None),
    ],
)
def test_limit_for_one_user(text: str, user: str, number: int | None) -> None:
    assert limit_for_user(parse_limits("max_queued", text), user) == number
