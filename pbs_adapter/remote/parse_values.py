"""The small languages inside PBS attributes: sizes, durations, times, select, exec_vnode, limits.

Pure functions over text. Every amount of memory is in bytes, every duration in seconds, every time a float of
seconds since 1970 in UTC. Nothing here knows in which output format the text arrived. Syntax: Python 3.6.
"""

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

#: A resource value: a number (bytes for sizes, seconds for durations), a truth value, or text.
Value = Union[bool, int, float, str]

_SIZE = re.compile(r"(\d{1,20})\s*([kmgtpe]?)([bw]?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_WORD = 8  # bytes in a PBS "word" on every 64-bit server
_DURATION = re.compile(r"\d{1,12}(?::\d{1,12}){0,2}(?:\.\d+)?", re.ASCII)
_TIME = re.compile(
    r"(?:[A-Z][a-z]{2}\s+)?([A-Z][a-z]{2})\s+(\d{1,2})\s+(\d{1,2}):(\d{2})(?::(\d{2}))?\s+(\d{4,5})", re.ASCII
)
_MONTHS = {name: i for i, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d{1,20}\.\d{0,20}|\.\d{1,20}|\d{1,20})(?:[eE][+-]?\d{1,2})?", re.ASCII)
_TYPED_SIZE = re.compile(r"\d{1,20}(?:[kmgtpe]?[bw])", re.IGNORECASE | re.ASCII)
_TYPED_DURATION = re.compile(r"\d{1,12}(?::\d{2}){1,2}", re.ASCII)
_TEXT_RESOURCES = frozenset(["arch", "host", "vnode", "vntype", "select", "place", "schedselect", "software", "switch"])
#: `name=value`, the value bare or within one kind of quotes.
_ASSIGNMENT = re.compile(r"""([A-Za-z_][\w.-]*)=("[^"]*"|'[^']*'|[^:+()"']*)""", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_VNODE = re.compile(r"[^:+()=\s]+")
_LIMIT = re.compile(r"""\[\s*([ugpo]):("[^"]*"|[^=\]"]+)=([^\]]*)\]""")


class ParseError(ValueError):
    """Text that is not what PBS prints. The only exception that the parsers raise."""


class Chunk(NamedTuple):
    """One part of a select: `count` times the same `resources` (sizes in bytes), each time on one host or vnode."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs of a chunk
    resources: Dict[str, Value]


class VnodePiece(NamedTuple):
    """What a job has of one vnode: resources as numbers, memory in bytes."""

    vnode: str
    resources: Dict[str, Value]


class Limit(NamedTuple):
    """One limit of a queue or server: `kind` u(ser), g(roup), p(roject) or o(verall).

    `name` is the entity, PBS_GENERIC for anyone who has no limit of their own, PBS_ALL with kind o.
    """

    kind: str
    name: str
    value: Value


def parse_size(text: Union[str, int]) -> int:
    """Bytes of `10gb`, `512kw`, `2048`, `1GB`; powers of 1024, a word is 8 bytes, no suffix means bytes."""
    if isinstance(text, int):
        return int(text)
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ParseError("not a size: {!r}".format(text[:80]))
    unit = _WORD if match.group(3).lower() == "w" else 1
    return int(match.group(1)) * int(1024 ** _POWERS[match.group(2).lower()]) * unit


def parse_duration(text: Union[str, int]) -> int:
    """Seconds of `[[HH:]MM:]SS`; hours may exceed 24, a number is seconds, a fraction is cut off."""
    if isinstance(text, int):
        return int(text)
    if _DURATION.fullmatch(text.strip()) is None:
        raise ParseError("not a duration: {!r}".format(text[:80]))
    seconds = 0
    for part in text.strip().split(".")[0].split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


def parse_pbs_time(text: Union[str, int]) -> float:
    """Epoch seconds of `Mon Nov 30 09:51:33 2026`, taken as UTC: run the PBS commands with TZ=UTC.

    PBS prints ctime(3) in the caller's zone and never names it. Digits alone are epoch seconds already.
    """
    if isinstance(text, int):
        return float(text)
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return float(int(text))
    match = _TIME.fullmatch(text)
    if match is None or match.group(1) not in _MONTHS:
        raise ParseError("not a time: {!r}".format(text[:80]))
    day, hour, minute, second = (int(part or 0) for part in match.group(2, 3, 4, 5))
    days = _days_from_civil(int(match.group(6)), _MONTHS[match.group(1)], day)
    return float(((days * 24 + hour) * 60 + minute) * 60 + second)


def _days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01. `datetime` ends with the year 9999, and PBS has printed the year 13429."""
    year -= month <= 2
    shifted = (month + 9) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * shifted + 2) // 5 + day - 1 - 719468


def parse_resource(name: str, text: str) -> Value:
    """The typed value of one resource: `4` → 4, `1gb` → bytes, `01:00:00` → seconds, `True` → True, else text.

    Resources that are names (host, vnode, arch, …) stay text even where they look like numbers.
    """
    value = text.strip()
    if name in _TEXT_RESOURCES:
        return value
    if _INTEGER.fullmatch(value):
        return int(value)
    if _TYPED_SIZE.fullmatch(value):
        return parse_size(value)
    if _TYPED_DURATION.fullmatch(value):
        return parse_duration(value)
    if _FLOAT.fullmatch(value):
        return float(value)
    if value in ("True", "False", "true", "false"):
        return value in ("True", "true")
    return value


def parse_select(text: Union[str, int]) -> Tuple[Chunk, ...]:
    """The chunks of `2:ncpus=2:mem=1gb+1:ngpus=1`; also `1`, `ncpus=4` (count 1) and values within quotes.

    Raises ParseError for anything else. The sum of a resource is `sum(c.count * c.resources.get(name, 0))`.
    """
    chunks = []
    for part in _split(str(text).strip(), "+"):
        fields = list(_split(part, ":"))
        count = 1
        if fields and _COUNT.fullmatch(fields[0]):
            count = int(fields.pop(0))
        elif not part.strip():
            raise ParseError("empty chunk in select: {!r}".format(str(text)[:200]))
        chunks.append(Chunk(count, _assignments(fields)))
    return tuple(chunks)


def parse_exec_vnode(text: str) -> Tuple[Tuple[VnodePiece, ...], ...]:
    """Where a job runs: for each chunk its pieces, one a vnode. More than one piece: the chunk was split.

    `(h[0]:ncpus=8:mem=1048576kb+h[1]:ncpus=8)+(k:ncpus=4)` → two chunks of two and one pieces.
    """
    return tuple(tuple(_piece(part) for part in _split(chunk, "+")) for chunk in _parenthesised(text.strip()))


def _parenthesised(text: str) -> Iterator[str]:
    """The chunks of an exec_vnode without their parentheses, which PBS leaves out in old single-vnode forms."""
    depth = start = 0
    for i, char in enumerate(text + "+"):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "+" and depth == 0:
            part = text[start:i].strip()
            yield part[1:-1] if part.startswith("(") and part.endswith(")") else part
            start = i + 1
    if depth:
        raise ParseError("unbalanced exec_vnode: {!r}".format(text[:200]))


def _piece(text: str) -> VnodePiece:
    fields = list(_split(text, ":"))
    if not fields or _VNODE.fullmatch(fields[0]) is None:
        raise ParseError("not a vnode: {!r}".format(text[:80]))
    return VnodePiece(fields[0], _assignments(fields[1:]))


def _assignments(fields: List[str]) -> Dict[str, Value]:
    resources = {}  # type: Dict[str, Value]
    for field in fields:
        match = _ASSIGNMENT.fullmatch(field)
        if match is None:
            raise ParseError("not resource=value: {!r}".format(field[:80]))
        name, value = match.groups()
        quoted = value[:1] in ("'", '"')
        resources[name] = value[1:-1] if quoted else parse_resource(name, value)
    return resources


def _split(text: str, separator: str) -> Iterator[str]:
    """Split at `separator`, but not within quotes (a quoted value may hold `:` and `+`)."""
    quote = ""
    start = 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == separator:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def parse_limits(name: str, text: str) -> Tuple[Limit, ...]:
    """The limits of `[u:PBS_GENERIC=3],[o:PBS_ALL=10]`, typed like the resource `name`; a bare number is overall."""
    value = text.strip()
    if _INTEGER.fullmatch(value):
        return (Limit("o", "PBS_ALL", int(value)),)
    return tuple(Limit(kind, who.strip().strip('"'), parse_resource(name, n)) for kind, who, n in _LIMIT.findall(value))


def limit_for_user(limits: Tuple[Limit, ...], user: str) -> Optional[int]:
    """The number that holds for one user: their own limit, else the generic one, and never above the overall one."""
    own = [limit.value for limit in limits if limit.kind == "u" and limit.name == user]
    generic = [limit.value for limit in limits if limit.kind == "u" and limit.name == "PBS_GENERIC"]
    overall = [limit.value for limit in limits if limit.kind == "o"]
    numbers = [int(n) for n in (own or generic) + overall if isinstance(n, (int, float))]
    return min(numbers) if numbers else None
