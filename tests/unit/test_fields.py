"""The table of fields: complete for Kubernetes 1.36, each row backed by a test, a refusal that happens, or a reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from openapi_fields import dump, paths, read, types
from plancases import cluster, container, pod, reasons

from bridge.plan import plan
from bridge.plan.fields import TABLE, examine, is_group, verdict
from bridge.plan.verdicts import Honoured, Ignored, Refused

TESTS = Path(__file__).parents[1]
PATHS = paths(read((TESTS / "unit/fixtures/podspec-1.36.txt").read_text()))


_REQUIRED: dict[str, dict[str, Any]] = {
    "initContainers": {"name": "i", "image": "busybox:1", "command": ["true"]},
    "volumes": {"name": "v"},
    "volumeMounts": {"name": "v", "mountPath": "/v"},
    "env": {"name": "E"},
}


def nested(path: str, value: Any) -> dict[str, Any]:
    """A spec with `value` at a table path and everything else that it then needs."""
    for part in reversed(path.split(".")):
        name = part.removesuffix("[]")
        if part.endswith("[]") and not isinstance(value, list):
            value = [_REQUIRED.get(name, {}) | value if isinstance(value, dict) else value]
        value = {name: value}
    spec: dict[str, Any] = {"volumes": [{"name": "v"}], **value}
    return spec | {"containers": [container() | own for own in spec.get("containers", [{}])]}


def test_every_field_of_the_schema_has_a_row() -> None:
    without = [path for path in PATHS if verdict(path) is None and not is_group(path)]
    assert without == []
    assert len(PATHS) > 1000


def test_every_row_is_a_field_of_the_schema() -> None:
    assert [path for path in TABLE if path not in PATHS] == []


def test_fixture_survives_its_own_form() -> None:
    known = {"PodSpec": {"a[]": "B", "c": ""}, "B": {"d{}": ""}}
    assert read(dump(known)) == known
    assert paths(known) == ["a[]", "a[].d{}", "c"]
    document = {"components": {"schemas": {"P": {"properties": {
        "x": {"allOf": [{"$ref": "#/components/schemas/Q"}]}, "y": {"type": "array", "items": {"type": "string"}}}},
        "Q": {"properties": {"z": {"additionalProperties": {"type": "string"}}}}}}}  # fmt: skip
    assert types(document, "P") == {"P": {"x": "Q", "y[]": ""}, "Q": {"z{}": ""}}


@pytest.mark.parametrize("test", sorted({row.test for row in TABLE.values() if isinstance(row, Honoured)}))
def test_honoured_fields_name_a_test_that_exists(test: str) -> None:
    name, _, function = test.partition("::")
    assert re.search(rf"^(async )?def {function}\(", (TESTS / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", [path for path, row in TABLE.items() if isinstance(row, Refused)])
def test_refused_fields_are_refused(path: str) -> None:
    row = TABLE[path]
    assert isinstance(row, Refused)
    planned = plan({"metadata": {}, "spec": nested(path, row.tried)}, cluster())
    field = "spec." + re.sub(r"\[\](?=.)", "[0]", path).removesuffix("[]")
    assert (field, row.message) in [(r.field, r.message) for r in planned.refusals]
    for accepted in row.accepts:
        assert reasons({"metadata": {}, "spec": nested(path, accepted)}) == []


def test_ignored_fields_have_reasons_of_their_own() -> None:
    rows = {id(row): row.reason for row in TABLE.values() if isinstance(row, Ignored)}
    assert len(set(rows.values())) == len(rows)
    assert all(reason.endswith(".") for reason in rows.values())


def test_ignored_fields_change_nothing() -> None:
    bare = plan(pod(), cluster())
    spec: dict[str, Any] = {
        "affinity": {"nodeAffinity": {}}, "tolerations": [{"operator": "Exists"}], "schedulerName": "x",
        "nodeSelector": {"a": "b"}, "imagePullSecrets": [{"name": "x"}], "enableServiceLinks": True, "priority": 5,
        "preemptionPolicy": "Never", "subdomain": "x", "automountServiceAccountToken": False, "nodeName": "n",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip
    inner = container(
        imagePullPolicy="Always", ports=[{"containerPort": 80}], resizePolicy=[{"resourceName": "cpu"}],
        securityContext={"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True},
    )  # fmt: skip
    assert plan(pod(containers=[inner], **spec), cluster()) == bare


def test_what_the_api_server_fills_in_is_never_refused() -> None:
    filled = container(
        imagePullPolicy="IfNotPresent", resources={}, terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File", securityContext={},
        volumeMounts=[{"mountPath": "/var/run/secrets/x", "name": "kube-api-access-1", "readOnly": True}],
        env=[{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
    )  # fmt: skip
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
        {"downwardAPI": {"items": [
            {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}]}},
    ]  # fmt: skip
    given = pod(
        containers=[filled], dnsPolicy="ClusterFirst", enableServiceLinks=True, nodeName="pbs-alpha",
        preemptionPolicy="PreemptLowerPriority", priority=0, restartPolicy="Always", schedulerName="default-scheduler",
        securityContext={}, serviceAccount="default", serviceAccountName="default", terminationGracePeriodSeconds=30,
        tolerations=[{"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        volumes=[{"name": "kube-api-access-1", "projected": {"defaultMode": 420, "sources": sources}}],
    )  # fmt: skip
    assert reasons(given) == []


def test_a_field_from_the_future_is_refused() -> None:
    refused, malformed = examine({"containers": [container(warpDrive=True)], "newThing": {"x": 1}})
    assert [r.field for r in refused] == ["spec.containers[0].warpDrive", "spec.newThing"]
    assert malformed == []


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"containers": {}}, "spec.containers", "must be a list"),
        ({"containers": [5]}, "spec.containers[0]", "must be a mapping"),
        ({"containers": [{"image": "x"}]}, "spec.containers[0].name", "is missing"),
        (
            {"containers": [container(env=[{"name": "A", "value": 5}])]},
            "spec.containers[0].env[0].value",
            "must be text",
        ),
        ({"containers": [container(command="ls")]}, "spec.containers[0].command", "must be a list"),
        ({"containers": [container(args=[1])]}, "spec.containers[0].args[0]", "must be text"),
        ({"containers": [container()], "activeDeadlineSeconds": True}, "spec.activeDeadlineSeconds", "a whole number"),
        (
            {"containers": [container()], "volumes": [{"name": "v", "emptyDir": []}]},
            "spec.volumes[0].emptyDir",
            "mapping",
        ),
        ({"containers": [container(resources={"limits": []})]}, "spec.containers[0].resources.limits", "mapping"),
        (
            {"containers": [container(volumeMounts=[{"name": "v"}])]},
            "spec.containers[0].volumeMounts[0].mountPath",
            "mis",
        ),
        ({}, "spec.containers", "is missing"),
        (
            {"containers": [container(resources={"limits": {"cpu": "x"}})]},
            "spec.containers[0].resources.limits[cpu]",
            "x",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_raises(spec: dict[str, Any], field: str, message: str) -> None:
    planned = plan({"metadata": {"name": "p"}, "spec": spec}, cluster())
    assert [r.field for r in planned.refusals] == [field]
    assert message in planned.refusals[0].message


@pytest.mark.parametrize(
    "odd", [None, [], 5, "x", {}, {"metadata": 3}, {"spec": 3}, {"metadata": {"labels": 1}, "spec": []}]
)
def test_no_pod_makes_plan_raise(odd: Any) -> None:
    assert plan(odd, cluster()).refusals


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"os": {"name": "windows"}}, "PodOSNotSupported"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "SysctlForbidden"),
    ],
)
def test_the_kubelets_own_reasons_are_used_where_it_has_them(spec: dict[str, Any], reason: str) -> None:
    planned = plan(pod(**spec), cluster())
    assert (planned.reason, len(planned.refusals)) == (reason, 1)
