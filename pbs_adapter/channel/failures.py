"""What goes wrong on a channel, as `pbs_adapter.errors`: by the helper's word, or by what was lost with the stream."""

from __future__ import annotations

from pbs_adapter import errors
from pbs_adapter.models import Json

#: `wire.ERROR_KINDS` → class.
BY_KIND: dict[str, type[errors.AdapterError]] = {
    "retry": errors.Retry,
    "unreachable": errors.Unreachable,
    "pbs": errors.PbsUnavailable,
    "backlog": errors.Backlog,
    "site": errors.SiteFault,
    "permanent": errors.Permanent,
    "rejected": errors.Rejected,
    "fenced": errors.Fenced,
    "outcome": errors.OutcomeUnknown,
}


def from_head(head: Json) -> errors.AdapterError:
    """Return the error that the helper answered with. An unknown kind is tried again: it says nothing of the request.

    >>> from_head({"kind": "backlog", "message": "would exceed queue limit"})
    Backlog('would exceed queue limit')
    """
    kind, message = head.get("kind"), head.get("message")
    shown = message[:4000] if isinstance(message, str) and message else f"the helper failed without a message ({kind})"
    return BY_KIND.get(kind if isinstance(kind, str) else "", errors.Retry)(shown)


def from_loss(reason: str, *, left: bool, idempotent: bool) -> errors.AdapterError:
    """Return what the end of the stream means for one request.

    >>> from_loss("no answer to a ping", left=True, idempotent=False)
    OutcomeUnknown('the connection was lost before the answer came: no answer to a ping')
    """
    if left and not idempotent:
        return errors.OutcomeUnknown(f"the connection was lost before the answer came: {reason}")
    return errors.Unreachable(f"the connection was lost: {reason}")
