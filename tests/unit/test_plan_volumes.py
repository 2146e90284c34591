"""Volumes whose content the bridge writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plancases import (
    INSTANCE,
    NODE,
    UID,
    cluster,
    config_map,
    container,
    contents,
    frozen,
    pod,
    reasons,
    secret,
    volume,
)

from bridge.plan import InputRef, MissingInput, freeze, plan, token_request


def with_volume(**source: Any) -> dict[str, Any]:
    """A pod with one volume `v`."""
    return pod(volumes=[{"name": "v", **source}])


BYTES = bytes(range(256))
CM = config_map(data={"a": "text\n", "b": "x"}, binary={"bin": BYTES})


def test_config_map() -> None:
    files = volume(frozen(with_volume(configMap={"name": "cm"}), CM), "v")
    assert files.root == "volumes/v"
    assert contents(files) == {"a": b"text\n", "b": b"x", "bin": BYTES}


def test_secret() -> None:
    request = frozen(with_volume(secret={"secretName": "s"}), secret(k=BYTES, pem=b"-----BEGIN\nX==\n"))
    files = volume(request, "v")
    assert files.root == "secrets/volumes/v"
    assert contents(files) == {"k": BYTES, "pem": b"-----BEGIN\nX==\n"}
    assert [f.path for f in request.files] == ["pod.json"]


def test_items() -> None:
    chosen = {"name": "cm", "items": [{"key": "bin", "path": "deep/er/file"}, {"key": "a", "path": "./a"}]}
    assert contents(volume(frozen(with_volume(configMap=chosen), CM), "v")) == {"deep/er/file": BYTES, "a": b"text\n"}


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../b"])
def test_items_stay_inside(path: str) -> None:
    given = with_volume(configMap={"name": "cm", "items": [{"key": "a", "path": path}]})
    assert [field for field, _ in reasons(given)] == [f"spec.volumes[0].configMap.items[{path}]"]


def test_a_file_may_have_a_newline_in_its_name_but_no_nul() -> None:
    """Kubernetes' own suite has such names; a file system takes them, and they never stand in an option."""
    for path, taken in (("path/to/data\n", True), ("a\0b", False)):
        volume = {"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": path}]}}
        assert (not plan(pod(volumes=[volume]), cluster()).refusals) is taken


def test_modes() -> None:
    items = [{"key": "a", "path": "a", "mode": 0o400}, {"key": "b", "path": "b"}]
    own = {"name": "cm", "defaultMode": 0o750, "items": items}
    assert {f.path: f.mode for f in volume(frozen(with_volume(configMap=own), CM), "v").files} == {
        "a": 0o400,
        "b": 0o750,
    }
    files = volume(frozen(with_volume(secret={"secretName": "s"}), secret(k=b"x")), "v").files
    assert [f.mode for f in files] == [0o644]
    sources = [{"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0}]}}]
    projected = with_volume(projected={"defaultMode": 0o440, "sources": [*sources, {"configMap": {"name": "cm"}}]})
    modes = {f.path: f.mode for f in volume(frozen(projected, CM), "v").files}
    assert modes == {"n": 0, "a": 0o440, "b": 0o440, "bin": 0o440}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMap": {"name": "nix"}}, 'configmap "nix" not found'),
        ({"secret": {"secretName": "nix"}}, 'secret "nix" not found'),
        ({"configMap": {"name": "cm", "items": [{"key": "nix", "path": "p"}]}}, "non-existent key: nix"),
    ],
)
def test_missing(source: dict[str, Any], message: str) -> None:
    with pytest.raises(MissingInput, match=message):
        frozen(with_volume(**source), CM)


def test_optional() -> None:
    gone = with_volume(configMap={"name": "nix", "optional": True})
    assert volume(frozen(gone), "v").files == ()
    key = with_volume(configMap={"name": "cm", "optional": True, "items": [{"key": "nix", "path": "p"}]})
    assert volume(frozen(key, CM), "v").files == ()
    assert volume(frozen(with_volume(secret={"secretName": "nix", "optional": True})), "v").files == ()


def test_downward_api() -> None:
    fields = {"name": "metadata.name", "labels": "metadata.labels", "one": "metadata.annotations['a']"}
    items: list[dict[str, Any]] = [{"path": path, "fieldRef": {"fieldPath": field}} for path, field in fields.items()]
    cpu = {"resource": "limits.cpu", "containerName": "main", "divisor": "1m"}
    items.append({"path": "cpu", "resourceFieldRef": cpu})
    metadata = {"labels": {"b": 'q"\n\t\\é\x01\u200b', "a": "1"}, "annotations": {"a": "x\ny"}}
    inner = container(resources={"limits": {"cpu": "1500m"}})
    given = pod(containers=[inner], metadata=metadata, volumes=[{"name": "v", "downwardAPI": {"items": items}}])
    assert contents(volume(frozen(given), "v")) == {
        "name": b"hello",
        "labels": b'a="1"\nb="q\\"\\n\\t\\\\\xc3\xa9\\x01\\u200b"',
        "one": b"x\ny",
        "cpu": b"1500",
    }


@pytest.mark.parametrize("path", ["status.podIP", "spec.nodeName", "status.hostIP"])
def test_downward_api_files_know_only_what_does_not_change(path: str) -> None:
    given = with_volume(downwardAPI={"items": [{"path": "x", "fieldRef": {"fieldPath": path}}]})
    assert [field for field, _ in reasons(given)] == ["spec.volumes[0].downwardAPI.items[x]"]


API_ACCESS = {
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"secret": {"name": "s", "items": [{"key": "k", "path": "k"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
}


def test_api_access() -> None:
    authority = config_map("kube-root-ca.crt", data={"ca.crt": "CA\n"})
    request = frozen(with_volume(projected=API_ACCESS), authority, secret(k=b"v"), token="canary-token")
    files = volume(request, "v")
    assert files.root == "secrets/volumes/v"
    assert contents(files) == {"token": b"canary-token", "ca.crt": b"CA\n", "k": b"v", "namespace": b"default"}
    assert b"canary" not in request.files[0].content


def test_projected_without_secrets_is_no_secret() -> None:
    given = with_volume(projected={"sources": [{"configMap": {"name": "cm"}}]})
    assert volume(frozen(given, CM), "v").root == "volumes/v"


def test_later_sources_win() -> None:
    other = config_map("other", data={"a": "second"})
    given = with_volume(projected={"sources": [{"configMap": {"name": "cm"}}, {"configMap": {"name": "other"}}]})
    assert contents(volume(frozen(given, CM, other), "v"))["a"] == b"second"


def test_token_references() -> None:
    sources = [{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}]
    given = pod(volumes=[{"name": "v", "projected": {"sources": sources}}], serviceAccountName="robot")
    (ref,) = plan(given, cluster()).inputs
    assert ref == InputRef("Token", "robot", audience="vault", expiration=600)
    assert token_request(given, ref)["spec"] == {
        "audiences": ["vault"],
        "expirationSeconds": 600,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "hello", "uid": UID},
    }
    with pytest.raises(MissingInput, match="no token for service account default/robot"):
        frozen(given)


def test_empty_dir() -> None:
    given = pod(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {"medium": "Memory"}}])
    assert [(v.root, v.files) for v in frozen(given).volumes] == [("volumes/a", ()), ("volumes/b", ())]


def test_references_are_listed_once_and_optional_only_when_all_uses_are() -> None:
    sources = [
        {"configMapRef": {"name": "a", "optional": True}},
        {"configMapRef": {"name": "b", "optional": True}},
        {"secretRef": {"name": "a"}},
    ]
    given = pod(
        containers=[container(envFrom=sources)],
        initContainers=[
            container("i", env=[{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}}])
        ],
        volumes=[{"name": "v", "configMap": {"name": "b", "optional": True}}],
    )
    refs = plan(given, cluster()).inputs
    assert [(r.kind, r.name, r.optional) for r in refs] == [
        ("ConfigMap", "a", False),
        ("ConfigMap", "b", True),
        ("Secret", "a", False),
    ]


def test_pod_json_and_names_of_a_whole_request() -> None:
    given, where = with_volume(configMap={"name": "cm"}), cluster(setup=["module load x"])
    planned = plan(given, where)
    inputs = {InputRef("ConfigMap", "cm"): CM}
    request = freeze(given, planned, inputs, node=NODE, instance=INSTANCE, cluster=where, account="acc")
    assert request.name == f"hello.{UID}.{INSTANCE}"
    assert (request.ref.account, request.ref.uid, request.comment) == ("acc", UID, "pod default/hello")
    written = json.loads(request.files[0].content)
    del written["containers"]
    assert written == {
        "version": 1, "uid": UID, "namespace": "default", "name": "hello", "hostname": "hello", "node": "pbs-alpha",
        "cluster": "alpha", "restart_policy": "Always", "grace": 30, "active_deadline": None, "walltime": 3690,
        "end_margin": 20, "kill_delay": None, "setup": ["module load x"], "isolation": "required",
    }  # fmt: skip
