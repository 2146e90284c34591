"""What to do with one pod now: open its gate for a cluster or for the local one, let a cluster take it too, or wait.

Pure. Every gated pod is released in the end. With mode `can` a released pod that nobody has taken may get a cluster
later: a toleration may be added at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from bridge.api import names
from bridge.api.routing import RoutingRuleSpec
from bridge.routing.choose import Choice
from bridge.routing.judge import Judgement
from bridge.routing.local import LocalFit
from bridge.routing.rules import Match, moves

Json = dict[str, Any]
Step = Literal["open", "add", "hold"]


@dataclass(frozen=True, slots=True)
class Situation:
    """All that decides about one pod.

    gated: our gate is there; others: further gates. waited: seconds since the pod was created. settling: the agent has
    just started and has not heard of every cluster yet. choice: None where no cluster is asked.
    """

    gated: bool
    others: tuple[str, ...]
    match: Match
    choice: Choice | None
    local: LocalFit
    waited: float
    settling: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """step: open the gate, add a toleration to an open pod, or hold. to: the candidate; None: the local cluster.

    selector: the pod may run nowhere else. wait: seconds after which it is to be looked at again although nothing
    changed; None: nothing comes by time alone. warn: people should look at it.
    """

    step: Step
    why: str
    to: Judgement | None = None
    selector: bool = False
    wait: float | None = None
    warn: bool = False


def gates(pod: Json) -> tuple[bool, tuple[str, ...]]:
    """Whether the pod has our gate, and the names of all others."""
    found = [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or []]
    return names.GATE in found, tuple(name for name in found if name != names.GATE)


def mode(match: Match, local: LocalFit) -> str:
    """The mode that holds, hpctransfer's share and room looked up."""
    if match.transfer is not None and not moves(match.transfer, share=local.share, fits_now=bool(local.now)):
        return "never"
    return match.mode


def decide(s: Situation) -> Verdict:
    """The next step."""
    if s.gated and s.others:
        return Verdict("hold", f"waits until the other gates are gone: {', '.join(s.others)}")
    if s.match.rule is None or s.choice is None:
        return _local(s, s.match.why)
    if mode(s.match, s.local) == "never":
        return _local(s, _stays(s))
    return _can(s, s.match.rule.spec, s.choice) if s.match.mode == "can" else _must(s, s.match.rule.spec, s.choice)


def _stays(s: Situation) -> str:
    if s.match.transfer == "can" and s.local.share is not None:
        return f"asks {s.local.share:.0%} of the biggest local node, and hpctransfer moves from 70 % on"
    if s.match.transfer == "cooperative":
        return f"hpctransfer=cooperative, and local node {s.local.now} can take it now"
    return s.match.why


def _local(s: Situation, why: str, *, warn: bool = False) -> Verdict:
    return Verdict("open", why, warn=warn) if s.gated else Verdict("hold", why)


def _can(s: Situation, spec: RoutingRuleSpec, choice: Choice) -> Verdict:
    if s.gated and s.local.now:
        return Verdict("open", f"local node {s.local.now} can take it now")
    left = spec.local_wait - s.waited
    if left > 0:
        then = f"; then {choice.chosen.name} may" if choice.chosen is not None else ""
        return Verdict("hold", f"for {spec.local_wait:.0f} s only the local cluster may take it{then}", wait=left)
    if s.settling:
        return _settling()
    if choice.chosen is not None:
        return Verdict("open" if s.gated else "add", "the local cluster did not take it in time", choice.chosen)
    if s.gated and not _any_full(choice) and choice.away and spec.on_unavailable == "wait":
        return Verdict("hold", f"waits for a cluster that can be reached: {_reasons(choice.away)}", warn=True)
    return _local(s, _nowhere(choice), warn=True)


def _must(s: Situation, spec: RoutingRuleSpec, choice: Choice) -> Verdict:
    if not s.gated:
        return Verdict("hold", "has been released")
    if s.settling:
        return _settling()
    if choice.chosen is not None:
        return Verdict("open", "it must run on a cluster", choice.chosen, selector=True)
    if _any_full(choice):
        return Verdict("hold", f"waits for room in a backlog: {_reasons(choice.away)}")
    if choice.away and spec.on_unavailable == "wait":
        return Verdict("hold", f"waits for a cluster that can be reached: {_reasons(choice.away)}", warn=True)
    left = spec.local_wait - s.waited
    if left > 0:
        return Verdict("hold", _nowhere(choice), wait=left, warn=True)
    return Verdict("open", _nowhere(choice), warn=True)


def _settling() -> Verdict:
    return Verdict("hold", "the agent has just started and asks the clusters", wait=1.0)


def _any_full(choice: Choice) -> bool:
    return any(each.full for each in choice.away)


def _nowhere(choice: Choice) -> str:
    told = _reasons((*choice.away, *choice.refused))
    return f"no cluster takes it: {told}" if told else "no cluster takes it: the rule has no candidate that is known"


def _reasons(those: Iterable[Judgement]) -> str:
    return "; ".join(f"{each.name}: {each.unavailable or ', '.join(each.refused)}" for each in those)
