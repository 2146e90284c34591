"""The exception by which an operation of the helper answers ERROR, and checks of what requests hold."""

import re
from typing import Any, Dict

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)


class OpError(Exception):
    """Answered to the agent as it is. `kind` is one of `wire.ERROR_KINDS`; the text is fit for a user."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def field(head: Dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """`head[name]`, checked to be of `kind` (a bool is no int; an int is a float). Raises OpError(permanent)."""
    value = head.get(name)
    if value is None and default is not None:
        return default
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise OpError("permanent", "the request has no proper {!r}: {!r}".format(name, value))
    return value


def pod_uid(head: Dict[str, Any]) -> str:
    """The pod's UID of a request, fit to be a file name. Raises OpError(permanent)."""
    uid = str(field(head, "uid", str))
    if _UID.fullmatch(uid) is None:
        raise OpError("permanent", "not a pod UID: {!r}".format(uid[:80]))
    return uid


def is_uid(name: str) -> bool:
    """Whether a directory entry can be a pod's directory (names that start with a dot are ours)."""
    return _UID.fullmatch(name) is not None
