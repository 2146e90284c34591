"""What the API server answered when it did not do as asked; callers never see aiohttp's errors.

KubeError              any other answer (400, 401, 405, …): a mistake in the request or the set-up
├── NotFound      404  the object, its namespace or its kind does not exist
├── Conflict      409  AlreadyExists, or a precondition (UID, resourceVersion) does not hold
├── Forbidden     403  RBAC, admission, or a namespace that is being deleted
├── Gone          410  the resourceVersion or continue token is too old: list again
├── Invalid       422  the object is not valid
└── Unavailable        429, 5xx, or no connection: the same request may succeed later; a write may have happened
"""

from __future__ import annotations

import json
from typing import Any


class KubeError(Exception):
    """`status` is the HTTP status (0: no answer), `reason` the API's reason (`AlreadyExists`), `message` its text."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {message}" if reason else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after  # seconds the server asks to wait; None: it did not say


class NotFound(KubeError):
    """404."""


class Conflict(KubeError):
    """409; `exists` tells AlreadyExists from a failed precondition."""

    @property
    def exists(self) -> bool:
        """The object to be created is there already."""
        return self.reason == "AlreadyExists"


class Forbidden(KubeError):
    """403."""


class Gone(KubeError):
    """410."""


class Invalid(KubeError):
    """422."""


class Unavailable(KubeError):
    """429, 5xx, or no answer at all (status 0)."""


_CLASSES: dict[int, type[KubeError]] = {
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Unavailable,
}


def from_response(status: int, body: bytes, retry_after: str | None = None) -> KubeError:
    """The error of an HTTP answer; `body` is a Status object or, from proxies, any text."""
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict) and parsed.get("kind") == "Status":
        return from_status(parsed, status, retry_after)
    text = body[:500].decode("utf-8", "replace").strip()
    return _class(status)(status, "", text or f"HTTP status {status}", retry_after=_seconds(retry_after))


def from_status(body: dict[str, Any], status: int = 0, retry_after: str | None = None) -> KubeError:
    """The error of a Status object, as in an answer or in an ERROR event of a watch."""
    code = int(body.get("code") or status or 500)
    wait = _seconds(retry_after)
    if wait is None:
        wait = _seconds((body.get("details") or {}).get("retryAfterSeconds"))
    kind = Conflict if code == 422 and _other_uid(body) else _class(code)
    return kind(code, str(body.get("reason") or ""), str(body.get("message") or ""), retry_after=wait)


def _other_uid(body: dict[str, Any]) -> bool:
    """Whether a patch named the UID of another object: some API servers call that invalid rather than a conflict."""
    causes = (body.get("details") or {}).get("causes") or []
    return any(cause.get("field") == "metadata.uid" for cause in causes)


def _class(status: int) -> type[KubeError]:
    return Unavailable if status >= 500 else _CLASSES.get(status, KubeError)


def _seconds(value: str | int | None) -> float | None:
    """Seconds of a Retry-After header; the date form is not used by API servers and is taken as "not given"."""
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None
