"""Where volumes appear in containers, and which paths of the cluster may."""

from __future__ import annotations

from typing import Any

import pytest
from plancases import INSTANCE, NODE, cluster, config_map, container, first, frozen, pod, reasons, secret

from bridge.plan import MissingInput, freeze, plan

VOLUMES: list[dict[str, Any]] = [
    {"name": "empty", "emptyDir": {}},
    {"name": "none"},
    {"name": "cm", "configMap": {"name": "cm"}},
    {"name": "sec", "secret": {"secretName": "s"}},
    {"name": "own", "downwardAPI": {"items": []}},
]


def mounted(*mounts: dict[str, Any], volumes: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """A pod with these volumes, and these mounts in its container."""
    return pod(containers=[container(volumeMounts=list(mounts), **fields)], volumes=volumes or VOLUMES)


def entries(given: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """`mounts` in pod.json."""
    found: list[dict[str, Any]] = first(frozen(given, config_map(data={}), secret(k=b"v"), **settings))["mounts"]
    return found


def test_paths() -> None:
    names = ["empty", "none", "cm", "sec", "own"]
    given = mounted(*({"name": name, "mountPath": f"/mnt/{name}"} for name in names))
    assert [(m["source"], m["path"], m["absolute"], m["sub_path"]) for m in entries(given)] == [
        ("volumes/empty", "/mnt/empty", False, None),
        ("volumes/none", "/mnt/none", False, None),
        ("volumes/cm", "/mnt/cm", False, None),
        ("secrets/volumes/sec", "/mnt/sec", False, None),
        ("volumes/own", "/mnt/own", False, None),
    ]


def test_read_only() -> None:
    mounts = [{"name": name, "mountPath": "/x"} for name in ("empty", "cm", "sec", "own")]
    mounts.append({"name": "empty", "mountPath": "/y", "readOnly": True})  # type: ignore[dict-item]
    assert [m["read_only"] for m in entries(mounted(*mounts))] == [False, True, True, True, True]


def test_sub_paths() -> None:
    env = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    given = mounted(
        {"name": "empty", "mountPath": "/a", "subPath": "x/y"},
        {"name": "empty", "mountPath": "/b", "subPathExpr": "logs/$(POD)-$$(POD)"},
        env=env,
    )
    assert [m["sub_path"] for m in entries(given)] == ["x/y", "logs/hello-$(POD)"]


@pytest.mark.parametrize("path", ["/abs", "../up", "a/../../b", "a\0b"])
def test_sub_paths_stay_inside(path: str) -> None:
    given = mounted({"name": "empty", "mountPath": "/a", "subPath": path})
    assert reasons(given) == [("spec.containers[0].volumeMounts[0].subPath", "UnsupportedPodField")]
    key = {"name": "P", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}
    expanded = mounted({"name": "empty", "mountPath": "/a", "subPathExpr": "$(P)"}, env=[key], volumes=VOLUMES[:1])
    with pytest.raises(MissingInput):
        frozen(expanded, config_map(data={"k": path}))


@pytest.mark.parametrize(("path", "accepted"), [("data", "/data"), ("/a/./b", "/a/./b"), ("//x", "/x")])
def test_mount_paths_are_made_absolute(path: str, accepted: str) -> None:
    assert [m["path"] for m in entries(mounted({"name": "empty", "mountPath": path}))] == [accepted]


@pytest.mark.parametrize("path", ["/", "//", ".", "/a/..", "../.."])
def test_nothing_is_mounted_over_the_root(path: str) -> None:
    given = mounted({"name": "empty", "mountPath": path})
    assert reasons(given) == [("spec.containers[0].volumeMounts[0].mountPath", "UnsupportedPodField")]


@pytest.mark.parametrize("expression", ["$(NIX)", "$(S)"])
def test_sub_paths_need_known_variables_that_are_no_secrets(expression: str) -> None:
    variable = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    with pytest.raises(MissingInput, match=r"missing value for NIX|would show a Secret"):
        entries(mounted({"name": "empty", "mountPath": "/a", "subPathExpr": expression}, env=[variable]))


def test_a_mount_needs_its_volume() -> None:
    given = mounted({"name": "nix", "mountPath": "/a"})
    assert reasons(given) == [("spec.containers[0].volumeMounts[0].name", "UnsupportedPodField")]


ALLOWED = [{"path": "/scratch/shared"}, {"path": "/data", "readOnly": True}, {"path": "/data/rw"}]


@pytest.mark.parametrize(
    ("path", "read_only", "accepted"),
    [
        ("/scratch/shared", False, True),
        ("/scratch/shared/", False, True),
        ("/scratch/shared/a b/c", False, True),
        ("/scratch/sharedother", False, False),
        ("/scratch", False, False),
        ("/scratch/shared/../secret", False, False),
        ("//scratch/shared", True, False),
        ("scratch/shared", False, False),
        ("/", True, False),
        ("/data/x", False, False),
        ("/data/x", True, True),
        ("/data/rw/x", False, True),
        ("/scratch/shared/\0", False, False),
    ],
)
def test_host_paths(path: str, read_only: bool, accepted: bool) -> None:
    volumes = [{"name": "h", "hostPath": {"path": path, "type": "Directory"}}]
    given = mounted({"name": "h", "mountPath": "/h", "readOnly": read_only}, volumes=volumes)
    refused = [] if accepted else [("spec.volumes[0].hostPath.path", "UnsupportedPodField")]
    assert reasons(given, hostPaths=ALLOWED) == refused
    if accepted:
        (entry,) = entries(given, hostPaths=ALLOWED)
        assert (entry["source"], entry["absolute"], entry["type"]) == (path.rstrip("/"), True, "Directory")
        assert entry["read_only"] is read_only


def test_host_paths_carry_the_directory_that_lets_them_in() -> None:
    """The narrowest that allows this very mount; podrun keeps links from leading out of it."""
    wanted = [("/scratch/shared/a", False), ("/data/x", True), ("/data/rw/y", False), ("/data/rw/y", True)]
    volumes = [{"name": f"v{n}", "hostPath": {"path": path}} for n, (path, _) in enumerate(wanted)]
    mounts = [{"name": f"v{n}", "mountPath": f"/m{n}", "readOnly": ro} for n, (_, ro) in enumerate(wanted)]
    found = entries(mounted(*mounts, volumes=volumes), hostPaths=ALLOWED)
    assert [m["allowed"] for m in found] == ["/scratch/shared", "/data", "/data/rw", "/data/rw"]
    given = mounted(mounts[0], volumes=volumes[:1])
    planned = plan(given, cluster(hostPaths=ALLOWED))
    with pytest.raises(MissingInput, match="no more"):
        freeze(given, planned, {}, node=NODE, instance=INSTANCE, cluster=cluster(), account="default")


def test_no_host_path_without_an_allow_list() -> None:
    given = mounted(volumes=[{"name": "h", "hostPath": {"path": "/etc"}}])
    assert reasons(given) == [("spec.volumes[0].hostPath.path", "UnsupportedPodField")]
