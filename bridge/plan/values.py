"""Values that may be secret: bytes with a mark, `$(VAR)` expansion as Kubernetes does it, and where they are kept.

A value made from a Secret keeps the mark through expansion. Marked values, and those that are not UTF-8, go into
secrets/values.json; pod.json holds only their key. No value may be longer than a program can be given: expansion would
otherwise make gigabytes of a few lines.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.plan.model import Json, TooLarge

LONGEST = (128 << 10) - 1  # bytes of one argument, or of one variable with its name: Linux's MAX_ARG_STRLEN
_PRINTABLE = bytes(range(0x20, 0x7F))
_ASCII = bytes(range(0x80))


@dataclass(frozen=True, slots=True, repr=False)
class Value:
    """Bytes of a variable or argument. `secret`: they came from a Secret."""

    data: bytes
    secret: bool = False

    def __repr__(self) -> str:
        return "Value(secret)" if self.secret else f"Value({self.data!r})"


def plain(text: str) -> Value:
    """A value that is no secret. Lone surrogates, which YAML can hold, are kept as they are."""
    return Value(text.encode("utf-8", "surrogatepass"))


def cost(value: Value) -> int:
    """Bytes that a value takes in pod.json at most, where control characters and non-ASCII ones are escaped.

    >>> cost(plain("ab")), cost(plain("a\\n")), cost(plain("é"))
    (2, 7, 6)
    """
    odd = value.data.translate(None, _PRINTABLE)
    beyond = len(odd.translate(None, _ASCII)) if odd else 0
    return len(value.data) + 2 * beyond + 5 * (len(odd) - beyond)


def expand(
    value: Value, variables: Mapping[str, Value], most: int = LONGEST, what: str = "a value"
) -> tuple[Value, tuple[str, ...]]:
    """Replace `$(NAME)`; `$$` gives `$`; an unknown name, and any other `$`, stays. Also returns the unknown names.

    Raises TooLarge as soon as the result would be longer than `most` bytes; `what` it is, for the message.

    >>> expand(plain("a$(X)$$(X)$(NO)$"), {"X": plain("1")})
    (Value(b'a1$(X)$(NO)$'), ('NO',))
    """
    source, secret = value.data, value.secret
    out = bytearray()
    unknown = []
    at, last = 0, source.rfind(b")")  # behind the last one nothing is looked for: `$($($(` would cost its square
    while at < len(source):
        dollar = source.find(b"$", at)
        if dollar < 0 or dollar + 1 == len(source):
            break
        out += source[at:dollar]
        following = source[dollar + 1 : dollar + 2]
        close = source.find(b")", dollar + 2) if following == b"(" and dollar < last else -1
        if close < 0:
            out += b"$" if following == b"$" else b"$" + following
            at = dollar + 2
            continue
        name = source[dollar + 2 : close].decode("utf-8", "surrogateescape")
        known = variables.get(name)
        if known is None:
            unknown.append(name)
            out += source[dollar : close + 1]
        else:
            bounded(len(out) + len(known.data), most, what)
            out += known.data
            secret = secret or known.secret
        at = close + 1
    bounded(len(out) + len(source) - at, most, what)
    return Value(bytes(out + source[at:]), secret), tuple(unknown)


def bounded(size: int, most: int, what: str) -> None:
    """Raises TooLarge when `what` would be longer than it may be."""
    if size > most:
        raise TooLarge(f"{what} would be longer than {most} bytes, which is the most that a program can be given")


class Vault:
    """Collects the values that must not stand in pod.json."""

    def __init__(self) -> None:
        self._keys: dict[bytes, str] = {}

    def put(self, value: Value) -> str | Json:
        """The VALUE to write into pod.json: a string, or `{"secret": KEY}`."""
        if not value.secret:
            try:
                return value.data.decode("utf-8")
            except UnicodeDecodeError:
                pass
        return {"secret": self._keys.setdefault(value.data, f"v{len(self._keys)}")}

    def content(self) -> bytes | None:
        """Content of secrets/values.json; None when nothing is kept there."""
        if not self._keys:
            return None
        return json.dumps({key: base64.b64encode(data).decode() for data, key in self._keys.items()}).encode()
