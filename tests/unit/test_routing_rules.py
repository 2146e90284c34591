"""Which rule decides about a pod, what labels say, and the conditions of rules."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.api import names
from bridge.api.routing import CandidateSpec, Rule, RuleProblem, parse_rule
from bridge.routing.rules import BUILT_IN, Transfer, accepted, candidates, match, moves, shadowed, summary

Json = dict[str, Any]
KNOWN = {"alpha": {"workq", "long"}, "beta": {"workq"}, "gamma": set[str]()}
GENOMICS = {"metadata": {"name": "lab", "labels": {"team": "genomics", "site": "a"}}}


def rule(name: str = "r", *, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Rule:
    metadata = {"name": name, "generation": 3, "creationTimestamp": created}
    parsed = parse_rule({"metadata": metadata, "spec": spec})
    assert isinstance(parsed, Rule), parsed
    return parsed


def pod(cpu: str = "4", **labels: str) -> Json:
    named = {{"route": names.ROUTE, "transfer": names.TRANSFER}.get(k, k): v for k, v in labels.items()}
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return {"metadata": {"name": "p", "labels": named}, "spec": {"containers": [container]}}


def selector(**labels: str) -> Json:
    return {"matchLabels": labels}


def needs(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize(
    ("wanted", "is_for"),
    [
        ({}, True),
        ({"namespaces": ["lab"]}, True),
        ({"namespaces": ["other", "lab"]}, True),
        ({"namespaces": ["other"]}, False),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": selector(team="genomics")}, True),
        ({"namespaceSelector": selector(team="genomics", site="b")}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "lab"}}}, True),
        ({"namespaceSelector": needs("team", "In", "physics", "genomics")}, True),
        ({"namespaceSelector": needs("team", "NotIn", "physics")}, True),
        ({"namespaceSelector": needs("team", "NotIn", "genomics")}, False),
        ({"namespaceSelector": needs("absent", "NotIn", "x")}, True),
        ({"namespaceSelector": needs("team", "Exists")}, True),
        ({"namespaceSelector": needs("absent", "Exists")}, False),
        ({"namespaceSelector": needs("absent", "DoesNotExist")}, True),
        ({"namespaceSelector": needs("team", "DoesNotExist")}, False),
        ({"labelSelector": selector(app="blast")}, True),
        ({"labelSelector": selector(app="other")}, False),
        ({"labelSelector": needs("app", "Exists")}, True),
        ({"minRequests": {"cpu": "4"}}, True),
        ({"minRequests": {"cpu": 4}}, True),
        ({"minRequests": {"cpu": "4001m"}}, False),
        ({"maxRequests": {"cpu": "4"}}, True),
        ({"maxRequests": {"cpu": "3999m"}}, False),
        ({"minRequests": {"cpu": "2"}, "maxRequests": {"memory": "512Mi"}}, False),
        ({"minRequests": {"nvidia.com/gpu": "1"}}, False),
        ({"minRequests": {"nvidia.com/gpu": "0"}}, True),
        ({"maxRequests": {"nvidia.com/gpu": "0"}}, True),
        ({"namespaces": ["lab"], "labelSelector": selector(app="other")}, False),
    ],
)
def test_matching(wanted: Json, is_for: bool) -> None:
    found = match(pod(app="blast"), GENOMICS, [rule(match=wanted)])
    assert (found.rule is not None) is is_for
    assert found.mode == ("can" if is_for else "never")


NAMES = {"namespaces": ["lab"]}
ONE = {"namespaceSelector": selector(team="genomics")}
TWO = {"namespaceSelector": selector(team="genomics"), "labelSelector": selector(app="blast")}
SIZED = {**ONE, "minRequests": {"cpu": "1"}}
OLD, YOUNG = "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("winner", "loser", "why"),
    [
        (rule("b", match=NAMES), rule("a", match=TWO, created=OLD), "names the namespace"),
        (rule("b", match=TWO), rule("a", match=ONE, created=OLD), "asks for more labels (2, this rule 1)"),
        (rule("b", match=TWO), rule("a", match=SIZED, created=OLD), "asks for more labels (2, this rule 1)"),
        (rule("b", match=SIZED), rule("a", match=ONE), "sets more limits on requests (1, this rule 0)"),
        (rule("b", match=ONE), rule("a"), "asks for more labels (1, this rule 0)"),
        (rule("b", created=OLD), rule("a", created=YOUNG), "is as specific and older"),
        (rule("a"), rule("b"), "is as specific and as old, and comes first by name"),
    ],
)
def test_the_more_specific_rule_wins_in_any_order(winner: Rule, loser: Rule, why: str) -> None:
    for rules in ([winner, loser], [loser, winner]):
        found = match(pod(app="blast"), GENOMICS, rules)
        assert found.rule is winner
        assert found.losers == ((loser.name, f"rule {winner.name} {why}"),)


CAN, MUST, NEVER = rule("r"), rule("r", mode="must"), rule("r", mode="never")


@pytest.mark.parametrize(
    ("labels", "rules", "rule_name", "mode", "transfer"),
    [
        ({}, [], None, "never", None),
        ({}, [CAN], "r", "can", None),
        ({}, [MUST], "r", "must", None),
        ({}, [NEVER], "r", "never", None),
        ({"route": "can"}, [], "built-in", "can", None),
        ({"route": "must"}, [], "built-in", "must", None),
        ({"route": "never"}, [], None, "never", None),
        ({"route": "never"}, [MUST], None, "never", None),
        ({"route": "must"}, [NEVER], "r", "never", None),
        ({"route": "must"}, [CAN], "r", "must", None),
        ({"route": "can"}, [MUST], "r", "can", None),
        ({"route": "perhaps"}, [], None, "never", None),
        ({"route": "perhaps"}, [MUST], "r", "must", None),
        ({"transfer": "can"}, [], "built-in", "must", "can"),
        ({"transfer": "must"}, [], "built-in", "must", "must"),
        ({"transfer": "cooperative"}, [], "built-in", "must", "cooperative"),
        ({"transfer": "cooperative"}, [CAN], "r", "must", "cooperative"),
        ({"transfer": "must"}, [NEVER], "r", "never", None),
        ({"transfer": "perhaps"}, [], None, "never", None),
        ({"transfer": "must", "route": "can"}, [], "built-in", "can", None),
        ({"transfer": "must", "route": "never"}, [], None, "never", None),
        ({"transfer": "cooperative", "route": "perhaps"}, [], "built-in", "must", "cooperative"),
    ],
)
def test_labels(
    labels: dict[str, str], rules: list[Rule], rule_name: str | None, mode: str, transfer: str | None
) -> None:
    found = match(pod(**labels), GENOMICS, rules)
    assert (found.rule and found.rule.name, found.mode, found.transfer) == (rule_name, mode, transfer)
    wrong = {k: v for k, v in labels.items() if v == "perhaps"}
    for label in wrong:
        assert {"route": names.ROUTE, "transfer": names.TRANSFER}[label] + "=perhaps ignored" in found.why


@pytest.mark.parametrize(
    ("labels", "rules", "why"),
    [
        ({}, [], "no rule is for it, and it has no label hpc-bridge.io/route"),
        ({"route": "never"}, [CAN], "its label hpc-bridge.io/route=never keeps it on the local cluster"),
        ({}, [NEVER], "rule r keeps it on the local cluster"),
        ({}, [CAN], "rule r is for it, mode can by the rule"),
        ({"route": "must"}, [CAN], "rule r is for it, mode must by its label hpc-bridge.io/route=must"),
        (
            {"transfer": "can"},
            [],
            "its label hpctransfer=can asks for it, and no rule is for it: the built-in rule over all clusters",
        ),
    ],
)
def test_why(labels: dict[str, str], rules: list[Rule], why: str) -> None:
    assert match(pod(**labels), GENOMICS, rules).why == why


@pytest.mark.parametrize("namespace", ["kube-system", "bridge"])
def test_pods_of_the_system_and_of_the_bridge_are_never_routed(namespace: str) -> None:
    given = {"metadata": {"name": namespace, "labels": {"team": "genomics"}}}
    found = match(pod(route="must"), given, [CAN], system=("kube-system", "bridge"))
    assert (found.rule, found.mode) == (None, "never")
    assert found.why == f"pods of namespace {namespace} are never routed"


def test_a_rule_that_names_the_bridges_namespace_is_not_used_for_others_either() -> None:
    refused = rule(match={"namespaces": ["bridge", "lab"]})
    assert match(pod(), GENOMICS, [refused], system=("kube-system", "bridge")).rule is None


@pytest.mark.parametrize(
    ("transfer", "share", "fits_now", "away"),
    [
        ("must", 0.1, True, True),
        ("can", 0.7, False, False),
        ("can", 0.701, True, True),
        ("can", None, True, True),
        ("cooperative", 0.9, True, False),
        ("cooperative", 0.1, False, True),
    ],
)
def test_hpctransfer(transfer: Transfer, share: float | None, fits_now: bool, away: bool) -> None:
    assert moves(transfer, share=share, fits_now=fits_now) is away


@pytest.mark.parametrize(
    ("given", "usable", "told"),
    [
        ([], ["alpha", "beta", "gamma"], "all clusters"),
        ([{"cluster": "beta"}, {"cluster": "alpha", "queue": "long"}], ["beta", "alpha/long"], "beta, alpha/long"),
        ([{"cluster": "delta"}, {"cluster": "beta"}], ["beta"], "delta, beta"),
        ([{"cluster": "delta"}], [], "delta"),
        ([{"cluster": "beta", "queue": "long"}, {"cluster": "beta"}], ["beta"], "beta/long, beta"),
        ([{"cluster": "gamma", "queue": "long"}], ["gamma/long"], "gamma/long"),
    ],
)
def test_candidates(given: list[Json], usable: list[str], told: str) -> None:
    made = rule(candidates=given)
    assert [f"{c.cluster}/{c.queue}" if c.queue else c.cluster for c in candidates(made, KNOWN)] == usable
    assert summary(made.spec) == told


def test_the_built_in_rule_is_over_all_clusters() -> None:
    assert candidates(BUILT_IN, {"b": (), "a": ()}) == tuple(
        CandidateSpec.model_validate({"cluster": name}) for name in ("a", "b")
    )


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({}, "Accepted", ""),
        ({"candidates": [{"cluster": "alpha", "queue": "long"}]}, "Accepted", ""),
        ({"candidates": [{"cluster": "gamma", "queue": "any"}]}, "Accepted", ""),
        (
            {"candidates": [{"cluster": "alpha"}, {"cluster": "delta"}]},
            "UnknownCluster",
            "candidates skipped: spec.candidates[1].cluster: no cluster delta in bridge.yaml (there: alpha, beta, "
            "gamma)",
        ),
        (
            {"candidates": [{"cluster": "alpha", "queue": "fast"}]},
            "UnknownQueue",
            "candidates skipped: spec.candidates[0].queue: no queue fast on alpha (there: long, workq)",
        ),
        (
            {"match": {"namespaces": ["lab", "hpc-bridge"]}},
            "SystemNamespace",
            "the rule is not used: spec.match.namespaces[1]: pods of hpc-bridge and kube-system must never wait for "
            "the bridge; leave them out",
        ),
        (
            {"match": {"namespaceSelector": needs("kubernetes.io/metadata.name", "In", "kube-system")}},
            "SystemNamespace",
            "the rule is not used: spec.match.namespaceSelector (kubernetes.io/metadata.name): pods of hpc-bridge and "
            "kube-system must never wait for the bridge; leave them out",
        ),
    ],
)
def test_accepted(spec: Json, reason: str, message: str) -> None:
    status = "True" if reason == "Accepted" else "False"
    assert accepted(rule(**spec), KNOWN) == [
        {"type": "Accepted", "status": status, "reason": reason, "message": message, "observedGeneration": 3}
    ]


@pytest.mark.parametrize(
    ("spec", "field", "said"),
    [
        ({"mode": "may"}, "spec.mode", "input should be 'can', 'must' or 'never'"),
        ({"match": {"minRequests": {"cpu": "-1"}}}, "spec.match.minRequests.cpu", "is not a quantity of zero or more"),
        ({"match": {"minRequests": {"cpu": True}}}, "spec.match.minRequests.cpu", "valid string"),
        ({"match": {"minRequests": {"cpu": "1e999"}}}, "spec.match.minRequests.cpu", "is not a quantity"),
        ({"localWait": "2x"}, "spec.localWait", "is not a duration"),
        ({"localWait": "31d"}, "spec.localWait", "less than or equal to 2592000"),
        ({"startWithin": 0}, "spec.startWithin", "greater than 0"),
        ({"quantile": 1}, "spec.quantile", "less than or equal to 0.99"),
        ({"candidates": [{"cluster": "A b"}]}, "spec.candidates[0].cluster", "should match pattern"),
        ({"candidates": [{}]}, "spec.candidates[0].cluster", "required"),
        ({"candidates": {"cluster": "alpha"}}, "spec.candidates", "valid tuple"),
        ({"later": 1}, "spec.later", "not permitted"),
        ({"match": None}, "spec.match", "valid dictionary"),
    ],
)
def test_a_rule_that_the_schema_would_refuse_says_why(spec: Json, field: str, said: str) -> None:
    found = parse_rule({"metadata": {"name": "r", "generation": 2}, "spec": spec})
    assert isinstance(found, RuleProblem)
    assert [path for path, _ in found.problems] == [field]
    assert said in found.problems[0][1]
    (condition,) = accepted(found, KNOWN)
    assert (condition["status"], condition["reason"], condition["observedGeneration"]) == ("False", "InvalidSpec", 2)
    assert condition["message"].startswith(f"the rule is not used: {field}: ")


def test_shadowed() -> None:
    assert shadowed(rule(), []) == {
        "type": "Shadowed",
        "status": "False",
        "reason": "MostSpecific",
        "message": "",
        "observedGeneration": 3,
    }
    made = shadowed(rule(), [("lab/a", "rule q is as specific and older"), ("lab/b", "rule q names the namespace")])
    assert (made["status"], made["reason"]) == ("True", "MoreSpecificRule")
    assert made["message"] == "gave way for 2 pods, last for lab/b: rule q names the namespace"
