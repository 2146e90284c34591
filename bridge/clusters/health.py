"""Whether a cluster can be used now, judged from its channels and the last polls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pbs_adapter.models import LinkHealth


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """`reachable`: at least one account works. `since` (epoch) is when that last flipped.

    trouble: by account, why it cannot be used; empty text: it can. accounts: the channels. report_age: seconds since
    the oldest account's last job report; None: there is an account without any. faults: by task of the agent, why it
    failed lately and was started again.
    """

    reachable: bool
    message: str
    since: float
    trouble: Mapping[str, str] = field(default_factory=dict)
    accounts: Mapping[str, LinkHealth] = field(default_factory=dict)
    report_age: float | None = None
    faults: Mapping[str, str] = field(default_factory=dict)

    def aged(self, report_age: float | None) -> ClusterHealth:
        """The same with the age of the reports as it is now."""
        return replace(self, report_age=report_age)


def judge(
    previous: ClusterHealth,
    channels: Mapping[str, LinkHealth],
    problems: Mapping[str, str],
    now: float,
    faults: Mapping[str, str] | None = None,
) -> ClusterHealth:
    """The health that follows from the channels and, by account, the problem of the last poll (empty: none)."""
    trouble = {name: _trouble(channels.get(name), problem) for name, problem in problems.items()}
    reachable = not all(trouble.values())
    bad = {name: text for name, text in trouble.items() if text}
    said = [f"account {name}: {text}" if len(trouble) > 1 else text for name, text in bad.items()]
    said += [f"the agent's task {name} failed and was started again: {text}" for name, text in (faults or {}).items()]
    since = previous.since if previous.reachable == reachable else now
    return ClusterHealth(reachable, "; ".join(said), since, trouble, dict(channels), faults=dict(faults or {}))


def _trouble(channel: LinkHealth | None, problem: str) -> str:
    if channel is None or not channel.connected:
        return (channel.message if channel is not None else "") or problem or "not connected"
    return problem


def differs(old: ClusterHealth, new: ClusterHealth) -> bool:
    """Whether the change is one to tell of: round-trip times and ages are not."""
    return (old.reachable, old.trouble, old.faults) != (new.reachable, new.trouble, new.faults)
