"""Which account a pod's job belongs to. Pure.

A pod that was submitted belongs to the account that it was submitted under until it ends, whatever today's settings
say of its namespace. Three things know it: this process, once it has seen the job; the pod's annotation, which is
written with its first status; and, where an agent was killed between the two, the account on which its directory is.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.api import names
from bridge.pods.decide import Decision, Refresh, Submit
from pbs_adapter.models import Json


def annotated_account(pod: Json) -> str | None:
    """The account that the pod itself says it was submitted under; None when this UID never was, or does not say.

    It is only ever used to look for the pod's own job: whoever forges it gains nothing and loses the pod.
    """
    meta = pod["metadata"]
    annotations = meta.get("annotations") or {}
    return annotations.get(names.BOUND_ACCOUNT) if annotations.get(names.SUBMITTED) == meta["uid"] else None


def bound_account(pod: Json, holders: Sequence[str], serving: str | None) -> str | None:
    """The account of the pod's job; for a pod without any, the one that serves its namespace; None: there is none.

    holders: accounts on which a directory of this UID was seen. Any account can show one for a UID that it has read
    somewhere, so the pod's own word comes first, then the account that should have it.
    """
    if (told := annotated_account(pod)) is not None:
        return told
    if serving in holders or not holders:
        return serving
    return holders[0]


def claim_text(account: str | None) -> str:
    """For people: why a pod's volumes are not refreshed."""
    return f"account {account}, which does not serve the namespace, says that it has the pod's job: it is sent nothing"


def told_nothing(decision: Decision) -> Decision:
    """The decision without what sends the pod's Secrets and tokens to the account.

    A pod that was perhaps submitted under other settings is followed where it is said to be, but that is one account's
    word: whoever owns the account would otherwise get what any pod of before refers to, for its UID.
    """
    actions = tuple(action for action in decision.actions if not isinstance(action, Refresh | Submit))
    return Decision(actions, decision.wake_at)
