"""The frames that agent and helper exchange over one byte stream, and nothing else: no I/O, no threads.

Both sides use this file, so it speaks Python 3.6. Layout of a frame (big endian)::

    u32 length | u8 version | u64 id | u8 kind | u32 head length | head: JSON object in UTF-8 | body: raw bytes

`length` counts everything after itself. The helper starts with `MAGIC`, because login scripts print things. The peer is
not trusted to be sane: every size is bounded, and anything odd raises `WireError`, after which the stream is useless.

A message larger than one frame travels as MORE frames (parts of its body, in order), ended by the REQUEST, RESPONSE or
ERROR frame that has the head and the last part: `split` makes them, `Assembler` joins them. A head above `SMALL_HEAD`
goes in front of the body and `{"head_bytes": n}` takes its place; `whole` puts it back.

What an answer costs the agent is bounded, too: JSON takes up to 26 times its size once it is parsed, so the head of an
answer is at most `MAX_REPLY_HEAD`, and what is larger (a census, a log) comes as a stream.

Streams (logs): the answering side sends DATA, then END or ERROR. It may send `CREDIT_WINDOW` bytes of DATA bodies, and
then as many more as CREDIT frames (`{"bytes": n}`) allow. CANCEL asks it to stop early; END or ERROR follows even so.
"""

import json
import struct
from typing import Any, Dict, List, NamedTuple, Optional

MAGIC = b"\nHPC-BRIDGE-1\n"
VERSION = 1

REQUEST, RESPONSE, ERROR, DATA, MORE, END, CREDIT, CANCEL, PING, PONG = range(1, 11)
#: Kind → name, for logs and messages.
KINDS = {
    REQUEST: "REQUEST",
    RESPONSE: "RESPONSE",
    ERROR: "ERROR",
    DATA: "DATA",
    MORE: "MORE",
    END: "END",
    CREDIT: "CREDIT",
    CANCEL: "CANCEL",
    PING: "PING",
    PONG: "PONG",
}
#: Values of `kind` in an ERROR's head; they name the classes of `pbs_adapter.errors`.
ERROR_KINDS = ("retry", "unreachable", "pbs", "backlog", "site", "permanent", "rejected", "fenced", "outcome")

SMALL_HEAD = 64 * 1024
MAX_HEAD = SMALL_HEAD  # of one frame
MAX_BODY = 1024 * 1024
MAX_MESSAGE = 8 * 1024 * 1024  # an assembled body with its head
MAX_REPLY = 2 * 1024 * 1024  # the same of an answer
MAX_REPLY_HEAD = 1024 * 1024
MAX_REQUESTS = 4  # messages of several frames that the agent sends at a time
MAX_PREAMBLE = 1024 * 1024  # what login scripts may print before MAGIC
CREDIT_WINDOW = 1024 * 1024  # a stream, one direction; less, and fast readers wait for credit
CHUNK = 64 * 1024  # the largest body of DATA and MORE that we send, so that streams take turns
MIN_PART = 64  # the smallest body of a MORE: else a message could be a million frames

_FIXED = struct.Struct(">IBQBI")
_AFTER_LENGTH = _FIXED.size - 4
_SPILLED = "head_bytes"


class WireError(Exception):
    """The bytes are not frames, or break a limit. The connection must be closed."""


class Frame(NamedTuple):
    """One frame. `id` belongs to a request and all that answers it; 0 for PING and PONG."""

    id: int
    kind: int
    head: Dict[str, Any] = {}
    body: bytes = b""


def encode(frame: Frame) -> bytes:
    """The frame's bytes. Raises WireError when it breaks a limit or its head is not JSON."""
    return _pack(frame, encode_head(frame.head))


def _pack(frame: Frame, head: bytes) -> bytes:
    if len(head) > MAX_HEAD or len(frame.body) > MAX_BODY:
        raise WireError("frame too large: head {}, body {} bytes".format(len(head), len(frame.body)))
    if frame.kind not in KINDS or not 0 <= frame.id < 1 << 64:
        raise WireError("no such frame: kind {!r}, id {!r}".format(frame.kind, frame.id))
    length = _AFTER_LENGTH + len(head) + len(frame.body)
    return _FIXED.pack(length, VERSION, frame.id, frame.kind, len(head)) + head + frame.body


def encode_head(head: Dict[str, Any]) -> bytes:
    """The JSON of a head; `b""` stands for an empty one."""
    if not head:
        return b""
    try:
        return json.dumps(head, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError("head is not JSON: {}".format(error)) from error


def decode_head(text: bytes) -> Dict[str, Any]:
    """The object that `encode_head` wrote. Raises WireError for anything but a JSON object."""
    if not text:
        return {}
    try:
        head = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError("head is not JSON: {}".format(error)) from error
    if not isinstance(head, dict):
        raise WireError("head is JSON, but not an object")
    return head


def _no_constant(name: str) -> None:
    raise ValueError("{} is not JSON".format(name))


class Decoder:
    """Bytes in, whole frames out; keeps at most one incomplete frame. `magic`: skip everything up to MAGIC first."""

    def __init__(self, magic: bool = False) -> None:
        self._buffer = bytearray()
        self._error = None  # type: Optional[WireError]
        self._skipped = 0
        self.started = not magic
        self.preamble = b""  # what came before MAGIC, its last 4 KiB: tells why a helper did not start

    def __repr__(self) -> str:
        return "Decoder(started={}, buffered={})".format(self.started, len(self._buffer))

    def feed(self, data: bytes) -> List[Frame]:
        """The frames that `data` completes. After a WireError every further call raises it again.

        Frames that were whole before the broken one are lost with it: the connection is over in any case.
        """
        if self._error is not None:
            raise self._error
        self._buffer += data
        try:
            return self._take() if self.started or self._find_magic() else []
        except WireError as error:
            self._error = error
            self._buffer = bytearray()
            raise

    def _find_magic(self) -> bool:
        at = self._buffer.find(MAGIC)
        end = at if at >= 0 else max(0, len(self._buffer) - len(MAGIC) + 1)
        self._skipped += end
        self.preamble = (self.preamble + bytes(self._buffer[:end]))[-4096:]
        del self._buffer[: end + (len(MAGIC) if at >= 0 else 0)]
        if at < 0 and self._skipped > MAX_PREAMBLE:
            raise WireError("no helper answered: {} bytes of something else".format(self._skipped))
        self.started = at >= 0
        return self.started

    def _take(self) -> List[Frame]:
        frames = []  # type: List[Frame]
        at, size = 0, len(self._buffer)
        while size - at >= _FIXED.size:
            length, version, ident, kind, head_length = _FIXED.unpack_from(self._buffer, at)
            body_length = length - _AFTER_LENGTH - head_length
            if version != VERSION or kind not in KINDS or head_length > MAX_HEAD or not 0 <= body_length <= MAX_BODY:
                raise WireError(
                    "not a frame: length {}, version {}, kind {}, head {}".format(length, version, kind, head_length)
                )
            end = at + 4 + length
            if end > size:
                break
            body_at = at + _FIXED.size + head_length
            head = decode_head(bytes(self._buffer[at + _FIXED.size : body_at]))
            frames.append(Frame(ident, kind, head, bytes(self._buffer[body_at:end])))
            at = end
        del self._buffer[:at]
        return frames


def split(message: Frame) -> List[Frame]:
    """The frames that carry a REQUEST, RESPONSE or ERROR of any size up to MAX_MESSAGE, in the order to send them."""
    head, body = message.head, message.body
    text = encode_head(head)
    if len(text) > SMALL_HEAD:
        head, body = {_SPILLED: len(text)}, text + body
    if len(body) > MAX_MESSAGE:
        raise WireError("message of {} bytes is too large".format(len(body)))
    last = max(0, (len(body) - 1) // CHUNK) * CHUNK
    parts = [Frame(message.id, MORE, {}, body[at : at + CHUNK]) for at in range(0, last, CHUNK)]
    parts.append(Frame(message.id, message.kind, head, body[last:]))
    return parts


class Assembler:
    """Joins what `split` made. One for each direction of a connection; bounded over all unfinished messages.

    `lazy`: a head that travelled in front of its body stays there, so that `whole` can be called in another thread.
    """

    def __init__(self, limit: int = MAX_REQUESTS * (MAX_MESSAGE + CHUNK), lazy: bool = False) -> None:
        self._limit = limit
        self._lazy = lazy
        self._parts = {}  # type: Dict[int, bytearray]
        self._held = 0

    def add(self, frame: Frame) -> Optional[Frame]:
        """The whole message that `frame` ends, `frame` itself when it belongs to none, None while parts are missing."""
        if frame.kind == MORE:
            self._held += len(frame.body)
            held = self._parts.setdefault(frame.id, bytearray())
            held += frame.body
            if self._held > self._limit or len(held) > MAX_MESSAGE:
                raise WireError("unfinished messages hold {} bytes".format(self._held))
            if len(frame.body) < MIN_PART or frame.head:
                raise WireError("a part of {} bytes".format(len(frame.body)))
            return None
        if frame.kind not in (REQUEST, RESPONSE, ERROR):
            return frame
        parts = self._parts.pop(frame.id, None)
        if parts is not None:
            self._held -= len(parts)
            parts += frame.body
            frame = frame._replace(body=bytes(parts))
        return frame if self._lazy else whole(frame)

    def forget(self, ident: int) -> None:
        """Drop the parts of a message that will not be finished."""
        self._held -= len(self._parts.pop(ident, b""))


def spilled(message: Frame) -> int:
    """Bytes of a head that stands in front of the body; 0 where it does not. Raises WireError when that is a lie."""
    size = message.head.get(_SPILLED)
    if size is None:
        return 0
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= len(message.body):
        raise WireError("a head of {!r} bytes in a body of {}".format(size, len(message.body)))
    return size


def whole(message: Frame) -> Frame:
    """The message with its head where it belongs. Raises WireError."""
    size = spilled(message)
    if not size:
        return message
    return message._replace(head=decode_head(message.body[:size]), body=message.body[size:])
