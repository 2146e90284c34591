"""Variables: every source, the kubelet's order and expansion, and values that arrive byte for byte."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from plancases import cluster, config_map, container, environment, file, first, frozen, pod, reasons, secret, shown

from bridge.plan import MissingInput, plan
from bridge.plan.values import Value, expand, plain


def env(*variables: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A pod whose one container has these variables."""
    return pod(containers=[container(env=list(variables), **fields)])


def ref(name: str, kind: str, /, **source: Any) -> dict[str, Any]:
    """A variable with valueFrom."""
    return {"name": name, "valueFrom": {kind: source}}


def test_values() -> None:
    given = env({"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}, {"name": "C", "value": "é\n"})
    assert environment(frozen(given)) == {"A": b"2", "B": b"", "C": "é\n".encode()}
    assert first(frozen(given))["env"][0] == ["HOSTNAME", "hello"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(X)", "1"),
        ("$(X)$(Y)", "1two"),
        ("$$(X)", "$(X)"),
        ("$$$(X)", "$1"),
        ("$$$$(X)", "$$(X)"),
        ("$(NO)", "$(NO)"),
        ("$(X", "$(X"),
        ("$()", "$()"),
        ("$", "$"),
        ("a$", "a$"),
        ("$$", "$"),
        ("$X", "$X"),
        ("${X}", "${X}"),
        ("$(X) \\", "1 \\"),
        ("$(HAS)", "$(X)"),
        ("$é$(X)", "$é1"),
        ("`id`$(id)\"'\n", "`id`$(id)\"'\n"),
        ("$($(X))", "$($(X))"),
        ("\\$(X)", "\\1"),
    ],
)
def test_expansion_is_kubernetes(text: str, expected: str) -> None:
    variables = {"X": plain("1"), "Y": plain("two"), "HAS": plain("$(X)")}
    assert expand(plain(text), variables)[0] == plain(expected)


def test_expansion_sees_what_came_before() -> None:
    given = env({"name": "LATE", "value": "$(A)"}, {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(A)"})
    assert environment(frozen(given)) == {"LATE": b"$(A)", "A": b"1", "B": b"11"}


def test_config_map_key() -> None:
    given = env(ref("A", "configMapKeyRef", name="cm", key="k"))
    assert environment(frozen(given, config_map(data={"k": "v $(A)"}))) == {"A": b"v $(A)"}


def test_secret_key() -> None:
    given = env(
        ref("A", "secretKeyRef", name="s", key="k"), {"name": "B", "value": "x$(A)"}, {"name": "C", "value": "y"}
    )
    request = frozen(given, secret(k=b"canary-secret"))
    assert environment(request) == {"A": b"canary-secret", "B": b"xcanary-secret", "C": b"y"}
    assert b"canary" not in file(request, "pod.json")
    assert base64.b64encode(b"xcanary-secret") in file(request, "secrets/values.json")
    assert {f.path: f.mode for f in request.files} == {"pod.json": 0o600, "secrets/values.json": 0o600}
    assert "canary" not in repr(request)


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xfe\x01",
        bytes(range(1, 256)),
        b"line\nline\n\n",
        b"\"'`\\",
        b"ends with a backslash\\",
        b"$(id)$$`id`${HOME}",
        b"x" * 100_000,
        b" spaces \t",
        b"",
    ],
)
def test_bytes_arrive_unchanged(value: bytes) -> None:
    given = env(ref("A", "secretKeyRef", name="s", key="k"), args=["$(A)", "-$(A)-"])
    request = frozen(given, secret(k=value))
    assert environment(request) == {"A": value}
    assert [shown(request, word) for word in first(request)["argv"][1:]] == [value, b"-" + value + b"-"]


def test_lone_surrogates_and_other_odd_texts() -> None:
    given = env({"name": "A", "value": "\ud800"}, {"name": "B", "value": "\U0001f600"})
    assert environment(frozen(given)) == {"A": b"\xed\xa0\x80", "B": "\U0001f600".encode()}


def test_whole_objects() -> None:
    sources = [
        {"configMapRef": {"name": "cm"}},
        {"prefix": "P_", "secretRef": {"name": "s"}},
        {"prefix": "Q_", "configMapRef": {"name": "cm"}},
    ]
    given = env({"name": "a", "value": "own $(P_x)"}, envFrom=sources)
    request = frozen(given, config_map(data={"a": "1", "b.c-d": "2"}, binary={"bin": b"3"}), secret(x=b"hidden"))
    assert environment(request) == {
        "a": b"own hidden",
        "b.c-d": b"2",
        "P_x": b"hidden",
        "Q_a": b"1",
        "Q_b.c-d": b"2",
    }
    assert b"hidden" not in file(request, "pod.json")


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (ref("A", "configMapKeyRef", name="nix", key="k"), 'configmap "nix" not found in namespace default'),
        (ref("A", "configMapKeyRef", name="cm", key="nix"), "couldn't find key nix in ConfigMap default/cm"),
        (ref("A", "configMapKeyRef", name="cm", key="bin"), "couldn't find key bin in ConfigMap default/cm"),
        (ref("A", "secretKeyRef", name="nix", key="k"), 'secret "nix" not found in namespace default'),
        (ref("A", "secretKeyRef", name="s", key="nix"), "couldn't find key nix in Secret default/s"),
        (ref("A", "secretKeyRef", name="s", key="nul"), "variable A of container main has a NUL byte"),
    ],
)
def test_missing_references(variable: dict[str, Any], message: str) -> None:
    with pytest.raises(MissingInput, match=message.replace("(", r"\(")):
        frozen(env(variable), config_map(data={}, binary={"bin": b"x"}), secret(nul=b"a\0b"))


def test_optional_references() -> None:
    given = env(
        ref("A", "configMapKeyRef", name="nix", key="k", optional=True),
        ref("B", "secretKeyRef", name="s", key="nix", optional=True),
        {"name": "C", "value": "$(A)"},
        envFrom=[
            {"configMapRef": {"name": "nix", "optional": True}},
            {"secretRef": {"name": "nix", "optional": True}},
        ],
    )
    assert environment(frozen(given, secret())) == {"C": b"$(A)"}


def test_fields() -> None:
    paths = {
        "NAME": ("metadata.name", "hello"),
        "NAMESPACE": ("metadata.namespace", "default"),
        "UID": ("metadata.uid", "6a0ff6f4-6a3e-4a86-9a51-0a4c1f9d8b0e"),
        "LABEL": ("metadata.labels['app.kubernetes.io/name']", 'quo"ted'),
        "NO_LABEL": ("metadata.labels['nix']", ""),
        "NOTE": ("metadata.annotations['example.com/x']", "a\nb"),
        "NODE": ("spec.nodeName", "pbs-alpha"),
        "ACCOUNT": ("spec.serviceAccountName", "robot"),
        "HOST": ("status.hostIP", "192.0.2.7"),
        "HOSTS": ("status.hostIPs", "192.0.2.7"),
    }
    variables = [ref(name, "fieldRef", fieldPath=path) for name, (path, _) in paths.items()]
    metadata = {"labels": {"app.kubernetes.io/name": 'quo"ted'}, "annotations": {"example.com/x": "a\nb"}}
    given = pod(containers=[container(env=variables)], metadata=metadata, serviceAccountName="robot")
    assert environment(frozen(given)) == {name: value.encode() for name, (_, value) in paths.items()}


@pytest.mark.parametrize("path", ["status.podIP", "status.podIPs", "metadata.labels", "spec.nix", "metadata.labels[x]"])
def test_fields_that_cannot_be_given(path: str) -> None:
    assert reasons(env(ref("A", "fieldRef", fieldPath=path))) == [("spec.containers[0].env[0]", "UnsupportedPodField")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "limits.cpu", "divisor": "0"}, "2"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "limits.memory"}, "134217728"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "128"),
        ({"resource": "limits.memory", "divisor": "1Gi"}, "1"),
        ({"resource": "requests.memory", "divisor": "1Mi"}, "128"),
        ({"resource": "requests.ephemeral-storage"}, "0"),
        ({"resource": "limits.cpu", "containerName": "other"}, "3"),  # what PBS gives: 0.25 + 2 CPUs, rounded up
        ({"resource": "requests.cpu", "containerName": "other"}, "2"),
        ({"resource": "limits.memory", "containerName": "other", "divisor": "1Mi"}, "1152"),
    ],
)
def test_container_resources(source: dict[str, Any], expected: str) -> None:
    sizes = {"limits": {"cpu": "1500m", "memory": "128Mi"}, "requests": {"cpu": "250m"}}
    other = container("other", resources={"requests": {"cpu": 2}})
    given = pod(containers=[container(env=[ref("A", "resourceFieldRef", **source)], resources=sizes), other])
    assert environment(frozen(given)) == {"A": expected.encode()}


@pytest.mark.parametrize(
    "source",
    [
        {"resource": "limits.nvidia.com/gpu"},
        {"resource": "cpu"},
        {"resource": "limits.ephemeral-storage"},
        {"resource": "limits.cpu", "divisor": "x"},
        {"resource": "limits.cpu", "containerName": "nix"},
    ],
)
def test_resources_that_cannot_be_given(source: dict[str, Any]) -> None:
    assert reasons(env(ref("A", "resourceFieldRef", **source)))[0][0] == "spec.containers[0].env[0]"


def test_a_secret_is_not_shown_by_repr() -> None:
    assert "hidden" not in repr(Value(b"hidden", secret=True))


def test_broken_base64_waits_like_a_missing_key() -> None:
    broken = {"metadata": {"name": "s"}, "data": {"k": "***"}}
    with pytest.raises(MissingInput, match="not base64"):
        frozen(env(ref("A", "secretKeyRef", name="s", key="k")), broken)


API = {"apiServer": {"host": "k8s.example.org", "port": 6443}}


def test_the_api_server_is_told_where_the_settings_know_it() -> None:
    assert environment(frozen(pod(), **API)) == {
        "KUBERNETES_SERVICE_HOST": b"k8s.example.org", "KUBERNETES_SERVICE_PORT": b"6443",
    }  # fmt: skip
    assert environment(frozen(pod())) == {}
    own = container(
        env=[
            {"name": "KUBERNETES_SERVICE_HOST", "value": "mine"},
            {"name": "URL", "value": "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"},
        ]
    )
    found = environment(frozen(pod(containers=[own], enableServiceLinks=False), **API))
    assert (found["KUBERNETES_SERVICE_HOST"], found["URL"]) == (b"mine", b"mine:6443")


def test_a_pod_that_means_to_ask_the_api_server_is_told_when_it_cannot() -> None:
    """An Argo step: its sidecar talks to the API server, of which a compute node has no address."""
    ((reason, text),) = plan(pod(serviceAccountName="workflow"), cluster()).notes
    assert reason == "NoAPIServerAddress"
    assert "ServiceAccount workflow" in text
    assert plan(pod(serviceAccountName="workflow"), cluster(**API)).notes == ()
    for name in ("default", ""):
        assert plan(pod(serviceAccountName=name), cluster()).notes == ()
