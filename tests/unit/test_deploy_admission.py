"""The two ways to set the gate say the same, use the names of the code, and can keep no pod from being made."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import yaml

from bridge.api import names
from bridge.api.settings import Agent
from bridge.kube.identity import node_user
from bridge.routing.rules import SYSTEM
from bridge.setup.manifests import NAME
from bridge.setup.neighbours import AGENT, REAL_NODE, REQUIRED

DEPLOY = Path(__file__).parents[2] / "deploy"
Json = dict[str, Any]
ROUTE = {"key": names.ROUTE, "operator": "In", "values": ["can", "must"]}
TRANSFER = {"key": names.TRANSFER, "operator": "In", "values": ["can", "must", "cooperative"]}
ENABLED = {"namespaceSelector": {"matchLabels": {names.ROUTING_LABEL: "enabled"}}}


def objects(path: str, kind: str) -> list[Json]:
    return [thing for thing in yaml.safe_load_all((DEPLOY / path).read_text()) if thing["kind"] == kind]


def test_the_admission_policy() -> None:
    for policy in objects("routing/gate.yaml", "MutatingAdmissionPolicy"):
        spec = policy["spec"]
        assert spec["failurePolicy"] == "Ignore"
        assert [mutation["patchType"] for mutation in spec["mutations"]] == ["ApplyConfiguration"]
        (left_out,) = spec["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert (left_out["operator"], tuple(left_out["values"])) == ("NotIn", SYSTEM)
    bindings = objects("routing/gate.yaml", "MutatingAdmissionPolicyBinding")
    gate = [b["spec"]["matchResources"] for b in bindings if b["spec"]["policyName"] == "hpc-bridge-gate"]
    assert gate == [
        ENABLED,
        {"objectSelector": {"matchExpressions": [ROUTE]}},
        {"objectSelector": {"matchExpressions": [TRANSFER]}},
    ]
    assert f'schedulingGates{{name: "{names.GATE}"}}' in (DEPLOY / "routing/gate.yaml").read_text()


def test_kyvernos_policy_has_the_same_effect() -> None:
    (policy,) = objects("kyverno/gate.yaml", "ClusterPolicy")
    assert policy["spec"]["failurePolicy"] == "Ignore"
    gate, transfer = policy["spec"]["rules"]
    matched = [each["resources"] for each in gate["match"]["any"]]
    assert all(each.pop("kinds") == ["Pod"] and each.pop("operations") == ["CREATE"] for each in matched)
    assert matched == [
        ENABLED,
        {"selector": {"matchExpressions": [ROUTE]}},
        {"selector": {"matchExpressions": [TRANSFER]}},
    ]
    never = {"resources": {"selector": {"matchLabels": {names.ROUTE: "never"}}}}
    assert gate["exclude"]["any"] == [{"resources": {"namespaces": [*SYSTEM]}}, never]
    others = f"(request.object.spec.schedulingGates || `[]`)[?name != '{names.GATE}']"
    gates = f'{{{{ [{others}, `[{{"name": "{names.GATE}"}}]`][] }}}}'
    assert gate["mutate"]["patchStrategicMerge"] == {"spec": {"schedulingGates": gates}}
    assert transfer["exclude"]["any"] == [{"resources": {"namespaces": [*SYSTEM]}}]


NAMESPACE = Agent.model_validate({}).namespace
ROUTER = f"system:serviceaccount:{NAMESPACE}:{NAME}"


def test_the_guard_knows_the_agent() -> None:
    (policy,) = objects("admission/protect.yaml", "ValidatingAdmissionPolicy")
    (account,) = objects("base/service-account.yaml", "ServiceAccount")
    assert (account["metadata"]["name"], account["metadata"]["namespace"]) == (NAME, NAMESPACE)
    router, node = policy["spec"]["matchConditions"]
    assert router["expression"] == f"request.userInfo.username != '{ROUTER}'"
    assert node_user("") in node["expression"]
    for validation in policy["spec"]["validations"]:
        assert names.STATUS_PREFIX in validation["expression"]
        assert names.STATUS_PREFIX in validation["message"]


def test_daemon_sets_are_kept_off_by_the_same_words_everywhere() -> None:
    (policy,) = objects("admission/daemonsets.yaml", "MutatingAdmissionPolicy")
    assert policy["spec"]["failurePolicy"] == "Ignore"
    (opts_out,) = policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
    assert opts_out == {"key": names.DAEMON_SET_LABEL, "operator": "NotIn", "values": [names.DAEMON_SET_ALLOWED]}
    real = next(v["expression"] for v in policy["spec"]["variables"] if v["name"] == "real")
    assert ast.literal_eval(real) == REAL_NODE
    (twin,) = objects("kyverno/daemonsets.yaml", "ClusterPolicy")
    assert twin["spec"]["failurePolicy"] == "Ignore"
    for rule in twin["spec"]["rules"]:
        allowed = {"resources": {"selector": {"matchLabels": {names.DAEMON_SET_LABEL: names.DAEMON_SET_ALLOWED}}}}
        assert rule["exclude"]["any"] == [allowed]
    first, second = twin["spec"]["rules"]
    required = first["mutate"]["patchStrategicMerge"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert required == {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [REAL_NODE]}]}}
    added = [yaml.safe_load(each["patchesJson6902"])[0]["value"] for each in second["mutate"]["foreach"]]
    assert added == [REAL_NODE, [REAL_NODE]]


def test_who_asks_for_a_volume_on_a_cluster_is_warned_and_no_more() -> None:
    (policy,) = objects("admission/volumes.yaml", "ValidatingAdmissionPolicy")
    (binding,) = objects("admission/volumes.yaml", "ValidatingAdmissionPolicyBinding")
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Ignore", ["Warn"])
    assert f"'{names.CLUSTER_LABEL}' in object.spec.nodeSelector" in policy["spec"]["matchConditions"][0]["expression"]


def test_the_routers_patches_are_bounded() -> None:
    policies = objects("routing/policy.yaml", "ValidatingAdmissionPolicy")
    bindings = objects("routing/policy.yaml", "ValidatingAdmissionPolicyBinding")
    assert [b["spec"] for b in bindings] == [
        {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]} for policy in policies
    ]
    for policy in policies:
        assert policy["spec"]["failurePolicy"] == "Fail"
        (only,) = policy["spec"]["matchConditions"]
        assert only["expression"] == f"request.userInfo.username == '{ROUTER}'"
    text = (DEPLOY / "routing/policy.yaml").read_text()
    for name in (names.GATE, names.CLUSTER_TAINT, names.UNREACHABLE_TAINT, names.PREFIX, names.STATUS_PREFIX):
        assert f"'{name}'" in text
    assert f"'{names.NODE_TYPE_LABEL}', '{names.CLUSTER_LABEL}'" in text


def test_nothing_that_only_makes_life_easier_keeps_a_pod_from_being_made() -> None:
    for path in ("admission/keep.yaml", "admission/tolerations.yaml"):
        for policy in objects(path, "MutatingAdmissionPolicy"):
            assert policy["spec"]["failurePolicy"] == "Ignore"


def listed(folder: str) -> list[str]:
    found: list[str] = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]
    return found


def test_all_that_is_shipped_is_applied_but_what_old_versions_need_instead() -> None:
    assert listed(".") == ["base", "node", "routing", "admission"]
    for folder in listed("."):
        there = {path.name for path in (DEPLOY / folder).glob("*.yaml")} - {"kustomization.yaml", "bridge.yaml"}
        assert set(listed(folder)) == there


def test_rights_lie_where_they_are_needed() -> None:
    """Without deploy/routing nobody may list pods or nodes, and nowhere may the agent's own identity see a Secret."""
    for file in DEPLOY.glob("*/*.yaml"):
        for thing in yaml.safe_load_all(file.read_text()):
            if thing.get("kind") not in ("ClusterRole", "Role"):
                continue
            for rule in thing["rules"]:
                assert not {"secrets", "serviceaccounts/token", "*", "pods/status", "nodes/status"} & {
                    *rule["resources"]
                }
                assert not {"delete", "deletecollection", "*", "escalate", "bind"} & {*rule["verbs"]}
                if {"pods", "nodes"} & {*rule["resources"]}:
                    assert file.parent.name == "routing"


def test_the_agent_is_not_the_first_to_go() -> None:
    (deployment,) = objects("base/deployment.yaml", "Deployment")
    (priority,) = objects("base/availability.yaml", "PriorityClass")
    (budget,) = objects("base/availability.yaml", "PodDisruptionBudget")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == priority["metadata"]["name"] == AGENT
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert (budget["spec"]["maxUnavailable"], deployment["spec"]["replicas"]) == (1, 2)
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "512Mi"}
