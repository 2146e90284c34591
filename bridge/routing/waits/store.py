"""What the wait model keeps over a restart: bytes for a ConfigMap that may be lost without harm."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.routing.waits.groups import Ended, Traits
from bridge.routing.waits.sightings import Waiting

VERSION = 1
MAX_SIZE = 512 * 1024  # a ConfigMap holds 1 MiB, base64 takes a third more
_MAX_TEXT = 64 * 1024 * 1024
_MAX_WAITING = 4000  # jobs a cluster whose submission time is kept, newest first
Kept = tuple[list[Ended], dict[str, float]]


def dump(clusters: Mapping[str, tuple[Iterable[Ended], Mapping[str, Waiting]]]) -> bytes:
    """All of it, or so many of the latest waits as fit."""
    kept = {name: (list(history), _times(waiting)) for name, (history, waiting) in clusters.items()}
    while True:
        content = zlib.compress(json.dumps({"version": VERSION, "clusters": _tables(kept)}).encode())
        if len(content) <= MAX_SIZE:
            return content
        kept = {n: (h[len(h) // 2 + 1 :], dict(list(w.items())[len(w) // 2 + 1 :])) for n, (h, w) in kept.items()}


def _times(waiting: Mapping[str, Waiting]) -> dict[str, float]:
    exact = [(key, round(job.submitted)) for key, job in waiting.items() if job.exact]
    return dict(exact[-_MAX_WAITING:])


def _tables(kept: Mapping[str, Kept]) -> dict[str, Any]:
    return {
        name: {
            "ended": [[round(e.at), round(e.wait, 1), int(e.started), *e.traits] for e in history],
            "waiting": waiting,
        }
        for name, (history, waiting) in kept.items()
    }


def load(content: bytes) -> dict[str, Kept] | None:
    """None for anything that `dump` did not write."""
    try:
        unpacker = zlib.decompressobj()
        tree = json.loads(unpacker.decompress(content, _MAX_TEXT))
        if tree["version"] != VERSION:
            return None
        return {
            str(name): ([_ended(row) for row in table["ended"]], {k: _time(v) for k, v in table["waiting"].items()})
            for name, table in tree["clusters"].items()
        }
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _ended(row: list[Any]) -> Ended:
    at, wait, started, user, queue, size, fits, backlog = row
    if not (isinstance(user, str) and isinstance(queue, str) and isinstance(size, int) and isinstance(backlog, int)):
        raise ValueError("not a wait")
    if fits not in (True, False, None) or _time(wait) < 0:
        raise ValueError("not a wait")
    return Ended(_time(at), _time(wait), bool(started), Traits(user, queue, size, fits, backlog))


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("not a time")
    return float(value)
