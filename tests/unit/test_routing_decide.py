"""What is done with a pod: a table of situations, and the patch that carries it out."""

from __future__ import annotations

from typing import Any

import pytest
from routingcases import judged, spec

from bridge.api import names
from bridge.api.routing import Rule
from bridge.routing import gate
from bridge.routing.choose import Choice, choose
from bridge.routing.decide import Situation, decide, gates
from bridge.routing.local import LocalFit
from bridge.routing.opening import as_gated, released
from bridge.routing.rules import Match

ROOM = LocalFit("local-1", True, 0.1, "")
FULL = LocalFit("", True, 0.1, "no local node has room now")
ALPHA, BETA = judged("alpha"), judged("beta", 900)
LOST = judged("alpha", unavailable="cannot be reached: no route")
CAPPED = judged("alpha", unavailable="3 jobs wait", full=True)
NEVER = judged("alpha", refused=("asks ncpus 99, the largest host has 16",))


def situation(
    *judgements: Any,
    mode: str = "can",
    gated: bool = True,
    others: tuple[str, ...] = (),
    local: LocalFit = FULL,
    waited: float = 0.0,
    settling: bool = False,
    transfer: Any = None,
    rule: bool = True,
    **fields: Any,
) -> Situation:
    made = spec(**fields)
    match = Match(Rule("r", 1, made) if rule else None, mode, "the rule says so", transfer=transfer)  # type: ignore[arg-type]
    return Situation(gated, others, match, choose(judgements, made), local, waited, settling)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [  # (step, to, selector, wait)
        # nobody wants it elsewhere
        (situation(rule=False, mode="never"), ("open", None, False, None)),
        (situation(ALPHA, mode="never"), ("open", None, False, None)),
        (situation(rule=False, mode="never", gated=False), ("hold", None, False, None)),
        # another gate comes first, whatever else there is
        (situation(ALPHA, mode="must", others=("kueue",)), ("hold", None, False, None)),
        (situation(rule=False, mode="never", others=("kueue",)), ("hold", None, False, None)),
        # can: local where it fits, then after localWait a cluster
        (situation(ALPHA, local=ROOM), ("open", None, False, None)),
        (situation(ALPHA, local=ROOM, waited=500), ("open", None, False, None)),
        (situation(ALPHA), ("hold", None, False, 120)),
        (situation(ALPHA, waited=50), ("hold", None, False, 70)),
        (situation(ALPHA, waited=120), ("open", "alpha", False, None)),
        (situation(BETA, ALPHA, waited=120), ("open", "alpha", False, None)),
        (situation(ALPHA, localWait=0), ("open", "alpha", False, None)),
        (situation(waited=120), ("open", None, False, None)),
        (situation(NEVER, waited=120), ("open", None, False, None)),
        (situation(NEVER), ("hold", None, False, 120)),
        (situation(LOST, waited=120), ("open", None, False, None)),
        (situation(LOST, waited=120, onUnavailable="wait"), ("hold", None, False, None)),
        (situation(NEVER, waited=120, onUnavailable="wait"), ("open", None, False, None)),
        (situation(CAPPED, waited=120), ("open", None, False, None)),
        (situation(CAPPED, waited=120, onUnavailable="wait"), ("open", None, False, None)),
        # can, released, and nobody took it
        (situation(ALPHA, gated=False), ("hold", None, False, 120)),
        (situation(ALPHA, gated=False, local=ROOM, waited=50), ("hold", None, False, 70)),
        (situation(ALPHA, gated=False, waited=120), ("add", "alpha", False, None)),
        (situation(ALPHA, gated=False, local=ROOM, waited=120), ("add", "alpha", False, None)),
        (situation(LOST, gated=False, waited=120), ("hold", None, False, None)),
        # must: a cluster at once; the local cluster only when there is none
        (situation(ALPHA, mode="must"), ("open", "alpha", True, None)),
        (situation(ALPHA, mode="must", local=ROOM), ("open", "alpha", True, None)),
        (situation(NEVER, mode="must"), ("hold", None, False, 120)),
        (situation(NEVER, mode="must", waited=120), ("open", None, False, None)),
        (situation(LOST, mode="must"), ("hold", None, False, 120)),
        (situation(LOST, mode="must", waited=120), ("open", None, False, None)),
        (situation(LOST, mode="must", waited=120, onUnavailable="wait"), ("hold", None, False, None)),
        (situation(CAPPED, mode="must", waited=120), ("hold", None, False, None)),
        (situation(CAPPED, NEVER, mode="must", waited=999), ("hold", None, False, None)),
        (situation(mode="must", waited=120), ("open", None, False, None)),
        (situation(ALPHA, mode="must", gated=False), ("hold", None, False, None)),
        # the agent has just started
        (situation(ALPHA, mode="must", settling=True), ("hold", None, False, 1.0)),
        (situation(LOST, mode="must", waited=999, settling=True), ("hold", None, False, 1.0)),
        (situation(ALPHA, waited=999, settling=True), ("hold", None, False, 1.0)),
        (situation(ALPHA, local=ROOM, settling=True), ("open", None, False, None)),
        (situation(rule=False, mode="never", settling=True), ("open", None, False, None)),
        # hpctransfer
        (situation(ALPHA, mode="must", transfer="can"), ("open", None, False, None)),
        (situation(ALPHA, mode="must", transfer="can", local=LocalFit("n", True, 0.8)), ("open", "alpha", True, None)),
        (situation(ALPHA, mode="must", transfer="cooperative"), ("open", "alpha", True, None)),
        (situation(ALPHA, mode="must", transfer="cooperative", local=ROOM), ("open", None, False, None)),
        (situation(ALPHA, mode="must", transfer="must", local=ROOM), ("open", "alpha", True, None)),
    ],
)
def test_the_step(situation: Situation, expected: tuple[str, str | None, bool, float | None]) -> None:
    verdict = decide(situation)
    to = verdict.to.cluster if verdict.to is not None else None
    assert (verdict.step, to, verdict.selector, verdict.wait) == expected
    assert verdict.why


@pytest.mark.parametrize(
    ("situation", "said", "warn"),
    [
        (situation(ALPHA), "for 120 s only the local cluster may take it; then alpha may", False),
        (situation(NEVER, waited=120), "no cluster takes it: alpha: asks ncpus 99, the largest host has 16", True),
        (situation(LOST, waited=120), "no cluster takes it: alpha: cannot be reached: no route", True),
        (situation(waited=120), "no cluster takes it: the rule has no candidate that is known", True),
        (situation(LOST, mode="must", onUnavailable="wait"),
         "waits for a cluster that can be reached: alpha: cannot be reached: no route", True),
        (situation(ALPHA, others=("a", "b")), "waits until the other gates are gone: a, b", False),
        (situation(ALPHA, mode="must", transfer="can"),
         "asks 10% of the biggest local node, and hpctransfer moves from 70 % on", False),
    ],
)  # fmt: skip
def test_why(situation: Situation, said: str, warn: bool) -> None:
    verdict = decide(situation)
    assert (verdict.why, verdict.warn) == (said, warn)


def test_nothing_is_asked_of_clusters_for_a_pod_of_the_local_one() -> None:
    match = Match(None, "never", "no rule is for it")
    assert decide(Situation(True, (), match, Choice(), FULL, 0.0)).why == "no rule is for it"


OURS = {"name": names.GATE}
AWAY = {"key": names.UNREACHABLE_TAINT, "operator": "Exists", "effect": "NoSchedule"}
DEFAULTS = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300} for key in gate.NODE_GONE
]


def pod(**fields: Any) -> dict[str, Any]:
    metadata = {"uid": "u", "name": "p", "namespace": "n", **fields.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"schedulingGates": [OURS], "tolerations": DEFAULTS, **fields}}


def applied(thing: Any, patch: gate.Patch) -> Any:
    """The object after the patch, as RFC 6902 has it."""
    whole = {"": _copy(thing)}
    for change in patch:
        keys = [part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")]
        holder: Any = whole
        for key in keys[:-1]:
            holder = holder[int(key)] if isinstance(holder, list) else holder[key]
        last: Any = int(keys[-1]) if isinstance(holder, list) and keys[-1] != "-" else keys[-1]
        match change["op"]:
            case "test":
                have = holder.get(last) if isinstance(holder, dict) else holder[last]
                assert have == change["value"]
            case "remove":
                del holder[last]
            case "add" if last == "-":
                holder.append(change["value"])
            case "add":
                holder[last] = change["value"]
    return whole[""]


def _copy(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: _copy(value) for key, value in thing.items()}
    return [_copy(value) for value in thing] if isinstance(thing, list) else thing


def test_the_patch_for_a_cluster_that_must_take_it() -> None:
    before = pod(metadata={"annotations": {"a/b": "c"}}, nodeSelector={"x": "y"})
    after = applied(before, gate.patch(before, "alpha", "{}", selector=True, queue="workq"))
    assert after["spec"]["schedulingGates"] == []
    assert after["spec"]["nodeSelector"] == {"x": "y", "type": "virtual-kubelet", "hpc-bridge.io/cluster": "alpha"}
    assert after["metadata"]["annotations"] == {"a/b": "c", names.ROUTED: "{}", names.QUEUE: "workq"}
    taint = {"key": names.CLUSTER_TAINT, "operator": "Equal", "value": "alpha", "effect": "NoSchedule"}
    unlimited = [{key: value for key, value in t.items() if key != "tolerationSeconds"} for t in DEFAULTS]
    assert after["spec"]["tolerations"] == [*unlimited, taint, AWAY]
    assert gate.tolerated(after) == {"alpha"}


def test_the_patch_for_the_local_cluster_opens_the_gate_and_no_more() -> None:
    before = pod()
    after = applied(before, gate.patch(before, None, "{}"))
    assert after["spec"] == {"schedulingGates": [], "tolerations": DEFAULTS}
    assert released(after)


def test_the_patch_of_a_pod_without_anything() -> None:
    bare = {"metadata": {"uid": "u", "name": "p"}, "spec": {"schedulingGates": [{"name": "x"}, OURS]}}
    after = applied(bare, gate.patch(bare, "alpha", "{}"))
    assert after["spec"]["schedulingGates"] == [{"name": "x"}]
    assert [t.get("value") for t in after["spec"]["tolerations"]] == ["alpha", None]
    assert not released(after)


@pytest.mark.parametrize(
    "written",
    [
        DEFAULTS[0] | {"tolerationSeconds": 30},
        DEFAULTS[1] | {"operator": "Equal"},
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": DEFAULTS[0]["key"], "operator": "Exists", "tolerationSeconds": 300},
    ],
)
def test_a_limit_that_somebody_wrote_stays(written: dict[str, Any]) -> None:
    before = pod(tolerations=[written, DEFAULTS[1]])
    after = applied(before, gate.patch(before, "alpha", "{}"))
    assert after["spec"]["tolerations"][0] == written
    assert "tolerationSeconds" not in after["spec"]["tolerations"][1]


@pytest.mark.parametrize("changed", [pod(metadata={"uid": "other"}), pod(schedulingGates=[{"name": "x"}, OURS])])
def test_the_patch_fails_on_another_pod_and_on_other_gates(changed: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        applied(changed, gate.patch(pod(), None, "{}"))


def test_what_is_added_is_added_once() -> None:
    once = applied(pod(), gate.patch(pod(), "alpha", "{}"))
    assert applied(once, gate.patch(once, "alpha", "{}")) == once


def test_a_routed_pod_is_judged_as_it_was_before() -> None:
    before = pod(metadata={"annotations": {}}, nodeSelector={"x": "y"})
    after = applied(before, gate.patch(before, "alpha", "{}", selector=True))
    again = as_gated(after)
    assert gates(again) == (True, ())
    assert again["spec"]["nodeSelector"] == {"x": "y"}
