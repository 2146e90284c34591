"""Routing on a real control plane, two PBS clusters and a local node: where gated pods go, and what is said of it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from world import World, condition, plain, until

from bridge.kube.clock import parse_rfc3339
from bridge.testbed.local_nodes import LocalNodes

Json = dict[str, Any]
GATE = "hpc-bridge.io/routing"
SPACE = "routed"


@pytest.fixture(scope="module")
def world(bridge: World) -> Iterator[World]:
    """The agent, a namespace whose pods are routed, and one local node of 4 cores."""
    bridge.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": {GATE: "enabled"}}},
    )
    with LocalNodes(bridge.control_plane, {"local-1": {"cpu": "4", "memory": "8Gi"}}):
        yield bridge
    bridge.kubectl("delete", "namespace", SPACE, "--wait=false")


@pytest.fixture
def rules(world: World) -> Iterator[World]:
    """No rule is left behind."""
    yield world
    world.kubectl("delete", "routingrules", "--all")
    world.kubectl("delete", "pods", "--all", "-n", SPACE, "--wait=false", "--grace-period=0")


def rule(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "hpc-bridge.io/v1alpha1",
        "kind": "RoutingRule",
        "metadata": {"name": name},
        "spec": {"match": {"namespaces": [SPACE]}, **spec},
    }


def gated(name: str, cpu: str = "1", **spec: Any) -> Json:
    """A pod of the namespace that is routed."""
    return plain(name, SPACE, cpu=cpu, command="echo ran; sleep 1", **spec)


def route(world: World, name: str, timeout: float = 60) -> Json:
    """What the annotation says, once the gate is open."""
    opened = world.wait(
        name, lambda p: not p["spec"].get("schedulingGates"), what="released", namespace=SPACE, timeout=timeout
    )
    found: Json = json.loads(opened["metadata"]["annotations"]["status.hpc-bridge.io/route"])
    return found


def node_of(world: World, name: str, timeout: float = 60) -> str:
    bound = world.wait(name, lambda p: p["spec"].get("nodeName"), what="bound", namespace=SPACE, timeout=timeout)
    return str(bound["spec"]["nodeName"])


def explain(world: World, name: str) -> Json:
    """What the agent answers to `hpc-bridge explain pod/NAME`."""
    body = json.dumps({"namespace": SPACE, "name": name}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{world.agent.status_port}/explain", body, timeout=10) as answer:
        found: Json = json.load(answer)
    return found


def is_gated(thing: Json) -> bool:
    return GATE in [gate["name"] for gate in thing["spec"].get("schedulingGates") or []]


def test_a_pod_that_must_go_runs_on_a_cluster(rules: World) -> None:
    rules.apply(rule("must", mode="must", candidates=[{"cluster": "alpha"}, {"cluster": "beta"}]))
    rules.apply(gated("must-1"))
    decided = route(rules, "must-1")
    assert (decided["decision"], decided["rule"]) == ("cluster", "must")
    assert node_of(rules, "must-1") == f"pbs-{decided['to']}"
    rules.wait_phase("must-1", "Succeeded", namespace=SPACE)
    message = rules.wait_event("must-1", "Routed", namespace=SPACE)
    assert f"released to cluster {decided['to']}" in message
    bound = rules.pod("must-1", SPACE)
    assert bound["spec"]["nodeSelector"] == {"type": "virtual-kubelet", "hpc-bridge.io/cluster": decided["to"]}
    assert [t for t in bound["spec"]["tolerations"] if "tolerationSeconds" in t] == []
    until(lambda: status_of(rules, "must").get("routed") == 1, "the rule counts it", 30)


def status_of(world: World, name: str) -> Json:
    found: Json = world.get("routingrule", name).get("status", {})
    return found


def generation_known(world: World, name: str) -> int:
    accepted = condition({"status": status_of(world, name)}, "Accepted")
    return int(accepted.get("observedGeneration", 0))


def test_a_pod_that_can_go_stays_where_there_is_room(rules: World) -> None:
    rules.apply(rule("can"), gated("stays"))
    decided = route(rules, "stays")
    assert (decided["to"], decided["local"]["node"]) == ("local", "local-1")
    assert node_of(rules, "stays") == "local-1"
    assert "local node local-1 can take it now" in rules.wait_event("stays", "Routed", namespace=SPACE)


def test_a_pod_that_can_go_goes_when_the_local_cluster_does_not_take_it(rules: World) -> None:
    rules.apply(rule("can", localWait="4s", candidates=[{"cluster": "alpha"}]), gated("big", "6"))
    waits = rules.wait_event("big", "RoutingWaits", namespace=SPACE)
    assert "for 4 s only the local cluster may take it; then alpha may" in waits
    decided = route(rules, "big")
    assert (decided["to"], node_of(rules, "big")) == ("alpha", "pbs-alpha")
    created = parse_rfc3339(rules.pod("big", SPACE)["metadata"]["creationTimestamp"])
    assert (parse_rfc3339(decided["at"]) or 0) - (created or 0) >= 3
    assert "nodeSelector" not in rules.pod("big", SPACE)["spec"]


def test_a_released_pod_that_nobody_took_gets_a_cluster_later(rules: World) -> None:
    """It seemed to fit: the scheduler knew better (here: a volume claim that is not there would do the same)."""
    rules.apply(rule("can", localWait="6s", candidates=[{"cluster": "alpha"}]))
    spread = {"labelSelector": {"matchLabels": {"spread": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}}
    for name in ("apart-1", "apart-2"):
        thing = gated(name, affinity=apart)
        thing["metadata"]["labels"] = {"spread": "x"}
        rules.apply(thing)
    until(lambda: {node_of_now(rules, name) for name in ("apart-1", "apart-2")} == {"local-1", "pbs-alpha"}, "both", 60)


def node_of_now(world: World, name: str) -> str:
    return str(world.pod(name, SPACE)["spec"].get("nodeName", ""))


def test_a_rule_keeps_pods_local(rules: World) -> None:
    rules.apply(rule("never", mode="never"), gated("local"))
    assert route(rules, "local")["to"] == "local"
    assert node_of(rules, "local") == "local-1"


def test_a_pod_without_a_rule_is_released_at_once(rules: World) -> None:
    rules.apply(gated("no-rule"))
    assert route(rules, "no-rule", timeout=10)["to"] == "local"
    assert "no rule is for it" in rules.wait_event("no-rule", "Routed", namespace=SPACE)


@pytest.fixture
def full_beta(rules: World) -> World:
    """Beta has no free core, and its census says so."""
    rules.clusters["beta"].keep_busy(60)
    until(lambda: census_free(rules, "beta") == 0, "beta's census shows it", 90)
    return rules


def test_a_notebook_goes_where_it_will_start_in_time_or_is_told_that_nowhere_is_likely_to(full_beta: World) -> None:
    soon = {"mode": "must", "startWithin": "20s"}
    full_beta.apply(
        rule("soon", **soon, candidates=[{"cluster": "beta"}, {"cluster": "alpha", "penaltySeconds": 3600}])
    )
    full_beta.apply(gated("notebook"))
    decided = route(full_beta, "notebook")
    chances = {each["cluster"]: each["startsInTime"] for each in decided["candidates"]}
    assert (decided["to"], decided["note"]) == ("alpha", "")
    assert chances["alpha"] > chances["beta"]
    full_beta.apply(rule("soon", **soon, candidates=[{"cluster": "beta"}]))
    until(lambda: generation_known(full_beta, "soon") == 2, "the agent knows the new rule", 30)
    full_beta.apply(gated("late"))
    assert route(full_beta, "late")["to"] == "beta"
    message = full_beta.wait_event("late", "Routed", namespace=SPACE)
    assert "nowhere is it likely to start within 20 s" in message


def test_a_full_cluster_gets_nothing_when_the_other_has_room(full_beta: World) -> None:
    rules = full_beta
    rules.apply(rule("start", mode="must", objective="earliestStart"))
    rules.apply(*(gated(f"free-{n}", "4") for n in range(4)))
    decided = [route(rules, f"free-{n}") for n in range(4)]
    assert {each["to"] for each in decided} == {"alpha"}
    beta = next(each for each in decided[0]["candidates"] if each["cluster"] == "beta")
    assert (beta["fitsNow"], beta["fitsEver"]) == (False, True)
    assert beta["wait"]["p50"] > decided[0]["candidates"][0]["wait"]["p50"]
    assert "ncpus" in beta["waitsFor"][0]


def census_free(world: World, cluster: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{world.agent.status_port}/clusters", timeout=10) as answer:
        found = json.load(answer)
    return min(
        (queue["freeCores"] for each in found["clusters"] if each["name"] == cluster for queue in each["queues"]),
        default=-1,
    )


def test_the_gate_of_kueue_comes_first(rules: World) -> None:
    rules.apply(rule("must", mode="must", candidates=[{"cluster": "alpha"}]))
    rules.apply(gated("queued", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    assert "kueue.x-k8s.io/admission" in rules.wait_event("queued", "RoutingWaits", namespace=SPACE)
    assert is_gated(rules.pod("queued", SPACE))
    gates = rules.pod("queued", SPACE)["spec"]["schedulingGates"]
    index = [gate["name"] for gate in gates].index("kueue.x-k8s.io/admission")
    patch = [{"op": "remove", "path": f"/spec/schedulingGates/{index}"}]
    rules.kubectl("patch", "pod", "queued", "-n", SPACE, "--type=json", "-p", json.dumps(patch))
    assert route(rules, "queued")["to"] == "alpha"


def test_a_rule_that_is_edited_holds_for_pods_still_gated(rules: World) -> None:
    rules.apply(rule("edited", localWait="1h", candidates=[{"cluster": "alpha"}]), gated("edits", "6"))
    assert "then alpha may" in rules.wait_event("edits", "RoutingWaits", namespace=SPACE)
    rules.apply(rule("edited", localWait="1s", candidates=[{"cluster": "beta"}]))
    assert route(rules, "edits")["to"] == "beta"


def test_an_unknown_cluster_in_a_rule(rules: World) -> None:
    rules.apply(rule("typo", mode="must", candidates=[{"cluster": "alhpa"}, {"cluster": "alpha"}]))
    until(lambda: status_of(rules, "typo").get("conditions"), "conditions", 30)
    accepted = condition({"status": status_of(rules, "typo")}, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "UnknownCluster")
    assert "spec.candidates[0].cluster" in accepted["message"]
    rules.apply(gated("typo"))
    assert route(rules, "typo")["to"] == "alpha"


def test_a_pod_that_contradicts_every_candidate_is_released_with_the_reason(rules: World) -> None:
    rules.apply(rule("must", mode="must", localWait="3s"), gated("mars", nodeSelector={"planet": "mars"}))
    decided = route(rules, "mars")
    assert (decided["decision"], decided["to"]) == ("local", "local")
    assert "its nodeSelector asks for planet=mars (node pbs-alpha)" in decided["why"]
    assert "planet=mars" in rules.wait_event("mars", "Routed", namespace=SPACE)


def test_explain_says_where_a_pod_goes(rules: World) -> None:
    rules.apply(rule("where", localWait="5s", candidates=[{"cluster": "beta"}, {"cluster": "alpha"}]))
    rules.apply(gated("asked", "12"))
    rules.wait_event("asked", "RoutingWaits", namespace=SPACE)
    before = explain(rules, "asked")
    assert (before["decision"], before["to"], before["recorded"]) == ("wait", "local", None)
    best, other = before["candidates"]
    assert (best["cluster"], best["rank"], other["cluster"], other["rank"]) == ("alpha", 1, "beta", None)
    assert other["refused"] == ["asks ncpus 12, the largest host has 8"]
    decided = route(rules, "asked")
    assert decided["to"] == "alpha"
    assert node_of(rules, "asked") == "pbs-alpha"
    after = explain(rules, "asked")
    assert after["recorded"] == decided
    assert after["node"] == "pbs-alpha"
