"""Frames survive any cut of the stream, and nothing but frames gets through."""

from __future__ import annotations

import struct

import pytest
from fuzzing import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Assembler, Decoder, Frame, WireError, encode, split

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=5,
)
heads = st.dictionaries(st.text(max_size=8), json_values, max_size=3)
frames = st.builds(
    Frame,
    id=st.integers(0, 2**64 - 1),
    kind=st.sampled_from(sorted(wire.KINDS)),
    head=heads,
    body=st.binary(max_size=600),
)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    points = sorted({min(point, len(data)) for point in at})
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(frames, max_size=4), st.lists(st.integers(0, 4000), max_size=12), st.binary(max_size=300))
def test_frames_survive_any_cut(sent: list[Frame], at: list[int], preamble: bytes) -> None:
    assume(wire.MAGIC not in (preamble + wire.MAGIC)[:-1])  # who prints the magic line itself is taken at his word
    decoder = Decoder(magic=True)
    received: list[Frame] = []
    for part in cut(preamble + wire.MAGIC + b"".join(encode(frame) for frame in sent), at):
        received += decoder.feed(part)
    assert decoder.started
    assert received == sent
    assert preamble.endswith(decoder.preamble)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_garbage_raises_wire_error_or_waits(parts: list[bytes]) -> None:
    decoder = Decoder()
    try:
        for part in parts:
            decoder.feed(part)
    except WireError:
        with pytest.raises(WireError):
            decoder.feed(b"")


@settings(max_examples=examples(60), deadline=None)
@given(frames, st.integers(0, 200), st.integers(0, 255))
def test_one_wrong_byte_never_escapes_as_another_exception(frame: Frame, at: int, value: int) -> None:
    data = bytearray(encode(frame))
    data[at % len(data)] = value
    try:
        for received in Decoder().feed(bytes(data)):
            assert received.kind in wire.KINDS
    except WireError:
        pass


def test_a_decoder_of_one_byte_at_a_time() -> None:
    sent = [Frame(7, wire.REQUEST, {"op": "hello"}, b"abc"), Frame(0, wire.PING)]
    decoder = Decoder()
    data = b"".join(map(encode, sent))
    assert [frame for i in range(len(data)) for frame in decoder.feed(data[i : i + 1])] == sent


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">IBQBI", 14, 2, 1, 1, 0),  # version
        struct.pack(">IBQBI", 14, 1, 1, 99, 0),  # kind
        struct.pack(">IBQBI", 3, 1, 1, 1, 0),  # length below the fixed part
        struct.pack(">IBQBI", 14, 1, 1, 1, 1),  # head longer than the frame
        struct.pack(">IBQBI", 14 + wire.MAX_BODY + 1, 1, 1, 1, 0),  # body too large
        struct.pack(">IBQBI", 2**32 - 1, 1, 1, 1, wire.MAX_HEAD + 1),  # head too large
        struct.pack(">IBQBI", 16, 1, 1, 1, 2) + b"[]",
        struct.pack(">IBQBI", 16, 1, 1, 1, 2) + b"\xff{",
        struct.pack(">IBQBI", 23, 1, 1, 1, 9) + b'{"a":NaN}',
        struct.pack(">IBQBI", 14 + 200_000, 1, 1, 1, 200_000) + b"[" * 200_000,
    ],
)
def test_what_is_no_frame_is_refused_as_soon_as_it_can_be_known(raw: bytes) -> None:
    with pytest.raises(WireError):
        Decoder().feed(raw)


def test_a_login_script_that_never_stops_printing_is_given_up() -> None:
    decoder = Decoder(magic=True)
    line = b"Welcome to the cluster!\n"
    with pytest.raises(WireError, match="no helper answered"):
        decoder.feed(line * (wire.MAX_PREAMBLE // len(line) + 2))
    assert line in decoder.preamble


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, wire.DATA, {}, b"x" * (wire.MAX_BODY + 1)),
        Frame(1, wire.REQUEST, {"a": "x" * wire.MAX_HEAD}),
        Frame(1, wire.REQUEST, {"a": float("nan")}),
        Frame(1, wire.REQUEST, {"a": b"bytes"}),
        Frame(-1, wire.REQUEST),
        Frame(1, 0),
    ],
)
def test_nothing_unsendable_is_encoded(frame: Frame) -> None:
    with pytest.raises(WireError):
        encode(frame)


@pytest.mark.parametrize("size", [0, 1, wire.CHUNK - 1, wire.CHUNK, wire.CHUNK + 1, 3 * wire.CHUNK, 3 * wire.CHUNK + 7])
@pytest.mark.parametrize("head", [{}, {"op": "submit"}, {"observations": ["x" * 100] * 2000}])
def test_large_messages_are_split_and_joined(size: int, head: dict[str, object]) -> None:
    message = Frame(9, wire.RESPONSE, head, bytes(range(256)) * (size // 256) + b"z" * (size % 256))
    parts = split(message)
    assert all(len(part.body) <= wire.CHUNK and part.kind == wire.MORE for part in parts[:-1])
    assembler, decoder = Assembler(), Decoder()
    joined = []
    for part in parts:
        for frame in decoder.feed(encode(part)):
            joined.append(assembler.add(frame))
            assembler.add(Frame(10, wire.MORE, {}, b"another message in between" * 3))
    assert joined == [None] * (len(parts) - 1) + [message]


def test_frames_that_are_no_message_pass_the_assembler() -> None:
    frame = Frame(3, wire.DATA, {}, b"log")
    assert Assembler().add(frame) is frame


def test_unfinished_messages_are_bounded_and_can_be_dropped() -> None:
    assembler = Assembler(limit=100)
    assembler.add(Frame(1, wire.MORE, {}, b"x" * 90))
    assembler.forget(1)
    assembler.add(Frame(2, wire.MORE, {}, b"x" * 90))
    with pytest.raises(WireError):
        assembler.add(Frame(3, wire.MORE, {}, b"x" * 20))
    with pytest.raises(WireError):
        Assembler().add(Frame(1, wire.MORE))  # an endless row of empty parts would be free


@pytest.mark.parametrize("size", [0, -1, True, "7", 8, None])
def test_a_forged_head_size_is_refused(size: object) -> None:
    message = Frame(1, wire.REQUEST, {"head_bytes": size}, b'{"a":1}')
    if size is None:
        assert Assembler().add(message) == message
        return
    with pytest.raises(WireError):
        Assembler().add(message)


def test_too_large_a_message_is_refused_before_it_is_sent() -> None:
    with pytest.raises(WireError):
        split(Frame(1, wire.REQUEST, {}, bytes(wire.MAX_MESSAGE + 1)))
