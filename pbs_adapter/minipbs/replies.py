"""What commands are given, and the pieces their answers are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .submit import Caller


@dataclass(frozen=True, slots=True)
class Request:
    """One command as it arrived; `script` is None where qsub could not read it."""

    command: str
    argv: list[str]
    script: str | None
    caller: Caller
    now: float


@dataclass(frozen=True, slots=True)
class Out:
    """Text for stdout."""

    text: str


@dataclass(frozen=True, slots=True)
class Err:
    """Text for stderr."""

    text: str


@dataclass(frozen=True, slots=True)
class Until:
    """Answer no further before this holds (or ten seconds have passed)."""

    done: Callable[[], bool]


Reply = Iterator["Out | Err | Until | int"]
"""Pieces of output, then the exit status."""
