"""The options of `GET /containerLogs`, checked as the API server's validation does. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bridge.kube.clock import parse_rfc3339
from pbs_adapter.models import LogQuery


class BadOption(ValueError):
    """The text is the answer's body; the status is 400 for what cannot be read, 422 for what must not be."""

    def __init__(self, text: str, status: int = 422) -> None:
        super().__init__(text)
        self.status = status


def log_query(container: str, query: Mapping[str, str], now: float) -> LogQuery:
    """Return the query of kubectl's options; `now` is epoch seconds, for sinceSeconds."""
    since_seconds = _number(query, "sinceSeconds", lambda n: n > 0, "must be greater than 0")
    since_time = query.get("sinceTime")
    if since_seconds is not None and since_time:
        raise BadOption("at most one of `sinceTime` or `sinceSeconds` may be specified")
    since: float | None = None
    if since_seconds is not None:
        since = now - since_seconds
    elif since_time:
        since = parse_rfc3339(since_time)
        if since is None:
            raise BadOption(f"sinceTime: {since_time!r} is not an RFC 3339 time", 400)
    stream = query.get("stream", "All")
    if stream not in ("All", "Stdout", "Stderr"):
        raise BadOption(f"stream: {stream!r} must be one of All, Stdout, Stderr")
    tail = _number(query, "tailLines", lambda n: n >= 0, "must be greater than or equal to 0")
    if tail is not None and stream != "All":
        raise BadOption("tailLines and a stream other than All cannot be combined")
    return LogQuery(
        container=container,
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        timestamps=_flag(query, "timestamps"),
        tail_lines=tail,
        limit_bytes=_number(query, "limitBytes", lambda n: n > 0, "must be greater than 0"),
        since_time=since,
        stream=stream,
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _number(query: Mapping[str, str], name: str, fits: Callable[[int], bool], text: str) -> int | None:
    raw = query.get(name)
    if raw is None or raw == "":
        return None
    try:
        number = int(raw)
    except ValueError:
        raise BadOption(f"{name}: {raw!r} is not a number", 400) from None
    if not fits(number):
        raise BadOption(f"{name}: Invalid value: {number}: {text}")
    return number
