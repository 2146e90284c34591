"""Sizes, times, and the escaping of PBS values: pure functions without state."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_SIZE = re.compile(r"(\d+)([kmgtpKMGTP]?)([bBwW]?)")
_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_TIME = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+)(?:\.\d*)?")


def parse_size(text: str) -> int:
    """Bytes of "10gb", "512kw", "7". Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"not a size: {text!r}")
    number, prefix, unit = match.groups()
    return (int(number) << _SHIFT[prefix.lower()]) * (8 if unit in ("w", "W") else 1)


def elsewhere(job_id: str, server: str) -> bool:
    """Whether the id names another server, one that no host name stands for: PBS then calls it illegally formed.

    >>> elsewhere("12.alpha", "alpha"), elsewhere("12[3].omega", "alpha"), elsewhere("12", "alpha")
    (False, True, False)
    """
    return job_id.partition(".")[2] not in ("", server)


def format_size(size: int) -> str:
    """The shortest exact form: 4294967296 is "4gb", 0 is "0b"."""
    for suffix, shift in (("pb", 50), ("tb", 40), ("gb", 30), ("mb", 20), ("kb", 10)):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{suffix}"
    return f"{size}b"


def format_kb(size: int) -> str:
    """Whole kilobytes, rounded up, as exec_vnode and resources_assigned have them."""
    return f"{(size + 1023) >> 10}kb"


def parse_duration(text: str) -> int:
    """Seconds of "[[HH:]MM:]SS". Raises ValueError."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f"not a time: {text!r}")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def format_duration(seconds: float) -> str:
    """ "HH:MM:SS"; hours may exceed 24."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def zone_of(name: str | None) -> tzinfo | None:
    """The time zone that a caller's TZ names; None is the server's own."""
    if not name:
        return None
    if name.upper().rstrip("0") in ("UTC", "GMT", "Z"):
        return UTC
    try:
        return ZoneInfo(name.lstrip(":"))
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None


def ctime(at: float, zone: tzinfo | None) -> str:
    """PBS's date, written by the command in its caller's zone, which it does not name."""
    if zone is UTC:
        return time.asctime(time.gmtime(at))
    return time.ctime(at) if zone is None else datetime.fromtimestamp(at, zone).ctime()


def comment_time(at: float) -> str:
    """The date in "Job run at …" comments."""
    return time.strftime("%a %b %d at %H:%M", time.localtime(at))


def parse_execution_time(text: str, now: float, zone: tzinfo | None) -> float:
    """What `-a [[[[CC]YY]MM]DD]hhmm[.SS]` names; a time of day that has passed is tomorrow's. Raises ValueError."""
    digits, _, seconds = text.partition(".")
    if not digits.isdigit() or len(digits) not in (4, 6, 8, 10, 12):
        raise ValueError(f"not a date: {text!r}")
    parts = [int(digits[i : i + 2]) for i in range(0, len(digits), 2)]
    today = datetime.fromtimestamp(now, zone)
    hour, minute = parts[-2:]
    day = parts[-3] if len(parts) >= 3 else today.day
    month = parts[-4] if len(parts) >= 4 else today.month
    year = parts[-5] + (parts[-6] * 100 if len(parts) == 6 else 2000) if len(parts) >= 5 else today.year
    at = datetime(year, month, day, hour, minute, int(seconds or 0), tzinfo=zone).timestamp()
    return at + 86400 if at < now and len(parts) == 2 else at


def escape_variable(value: str) -> str:
    """A value taken from the environment, as qsub writes it into Variable_List."""
    return re.sub(r"([\\\"',])", r"\\\1", value)


def parse_variables(text: str) -> list[tuple[str, str | None]]:
    """The pairs of `-v a=b,"c=d,e",NAME`; a name without a value is to come from the environment.

    Raises ValueError for an unterminated quote or an empty name.
    """
    pairs: list[tuple[str, str | None]] = []
    at = 0
    while at < len(text):
        item, at = _variable_item(text, at)
        name, equals, value = item.partition("=")
        if not name:
            raise ValueError(f"not a variable: {item!r}")
        pairs.append((name, value if equals else None))
    return pairs


def _variable_item(text: str, at: int) -> tuple[str, int]:
    quote = ""
    out: list[str] = []
    while at < len(text):
        char = text[at]
        if quote:
            if char == quote:
                quote = ""
            else:
                out.append(char)
        elif char in "\"'":
            quote = char
        elif char == "\\" and text[at + 1 : at + 2] == ",":
            out.append(",")
            at += 1
        elif char == ",":
            return "".join(out), at + 1
        else:
            out.append(char)
        at += 1
    if quote:
        raise ValueError("unmatched quote")
    return "".join(out), at


def split_variable_list(text: str) -> list[tuple[str, str | None]]:
    """Variable_List as qstat takes it apart: at each comma that no backslash precedes, even an escaped backslash."""
    pairs: list[tuple[str, str | None]] = []
    for item in re.split(r"(?<!\\),", text):
        name, equals, value = item.replace("\\,", ",").partition("=")
        pairs.append((name, value if equals else None))
    return pairs
