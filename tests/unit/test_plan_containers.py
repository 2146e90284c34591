"""What podrun is told of each container."""

from __future__ import annotations

from typing import Any

import pytest
from plancases import cluster, config_map, container, document, first, frozen, pod, reasons, secret, shown

from bridge.plan import MissingInput, plan


def test_order_and_kinds() -> None:
    given = pod(containers=[container("z"), container("a")], initContainers=[container("i2"), container("i1")])
    entries = document(frozen(given))["containers"]
    assert [(c["name"], c["kind"]) for c in entries] == [("i2", "init"), ("i1", "init"), ("z", "app"), ("a", "app")]


@pytest.mark.parametrize(
    ("image", "rules", "refused"),
    [
        ("busybox:1.36", ["busybox:*"], False),
        ("docker.io/library/busybox:1", ["busybox:*"], True),
        ("registry.example.org/a/b@sha256:0", ["registry.example.org/*"], False),
        ("alpine", ["busybox:*", "alp?ne"], False),
        ("ALPINE", ["alpine"], True),
        ("alpine", [], True),
    ],
)
def test_images(image: str, rules: list[str], refused: bool) -> None:
    given = pod(containers=[container(image=image)])
    settings: dict[str, Any] = {"images": [{"image": rule} for rule in rules]}
    assert reasons(given, **settings) == ([("spec.containers[0].image", "ImageNotMapped")] if refused else [])
    if not refused:
        entry = first(frozen(given, **settings))
        assert (entry["image"], entry["runtime"], entry["image_id"]) == (image, "host", "host")


def test_argv() -> None:
    nasty = ["a b", "", "$(N)", "$$(N)", "$(NIX)", "`id`", "x\\", "new\nline", "';id;'"]
    given = pod(containers=[container(command=["/bin/sh", "-c"], args=nasty, env=[{"name": "N", "value": "1 2"}])])
    expected = ["/bin/sh", "-c", "a b", "", "1 2", "$(N)", "$(NIX)", "`id`", "x\\", "new\nline", "';id;'"]
    assert first(frozen(given))["argv"] == expected


def test_argv_made_from_a_secret_is_not_in_pod_json() -> None:
    variable = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    request = frozen(pod(containers=[container(args=["-p$(S)", "$$(S)"], env=[variable])]), secret(k=b"canary"))
    command, password, escaped = first(request)["argv"]
    assert (command, escaped) == ("true", "$(S)")
    assert shown(request, password) == b"-pcanary"
    assert b"canary" not in request.files[0].content


@pytest.mark.parametrize("fields", [{"command": None}, {"command": []}, {"command": None, "args": ["x"]}])
def test_a_container_needs_a_command(fields: dict[str, Any]) -> None:
    assert reasons(pod(containers=[container(**fields)])) == [("spec.containers[0].command", "UnsupportedPodField")]


def test_working_directory() -> None:
    assert first(frozen(pod(containers=[container(workingDir="/data/$(X)")])))["cwd"] == "/data/$(X)"
    assert first(frozen(pod()))["cwd"] is None


def test_termination_message() -> None:
    own = container(terminationMessagePath="/tmp/m", terminationMessagePolicy="FallbackToLogsOnError")
    entries = document(frozen(pod(containers=[own, container("plain")])))["containers"]
    keys = ("termination_message_path", "termination_message_policy")
    assert [[c[k] for k in keys] for c in entries] == [
        ["/tmp/m", "FallbackToLogsOnError"],
        ["/dev/termination-log", "File"],
    ]


def test_read_only_root() -> None:
    entries = [container(securityContext={"readOnlyRootFilesystem": True}), container("b", securityContext={})]
    assert [c["read_only_root"] for c in document(frozen(pod(containers=entries)))["containers"]] == [True, False]


def test_resources_of_a_container() -> None:
    sized = container(resources={"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Mi"}})
    entries = document(frozen(pod(containers=[sized, container("plain")]), memory="2Gi"))["containers"]
    assert [c["resources"] for c in entries] == [
        {"cpu_millis": 1000, "memory": 1 << 30},
        {"cpu_millis": 1000, "memory": 2 << 30},
    ]


APPTAINER: dict[str, Any] = {
    "images": [{"image": "tool:*", "runtime": "apptainer", "path": "/apps/tool.sif"}, {"image": "busybox:*"}],
    "imagePaths": ["/apps/images", "/scratch/images/"],
}


@pytest.mark.parametrize(
    ("image", "path"),
    [
        ("tool:1", "/apps/tool.sif"),
        ("busybox:1", None),
        ("/apps/images/x.sif", "/apps/images/x.sif"),
        ("/scratch/images/a/dir", "/scratch/images/a/dir"),
    ],
)
def test_images_as_files(image: str, path: str | None) -> None:
    entry = first(frozen(pod(containers=[container(image=image)]), **APPTAINER))
    assert (entry["runtime"], entry["image_path"]) == ("host" if path is None else "apptainer", path)
    assert entry["image_id"] == (path or "host")


@pytest.mark.parametrize(
    "image",
    [
        "/apps/images",
        "/apps/images/../x.sif",
        "/apps/images//x",
        "/apps/imagesx/y",
        "docker://x",
        "/etc/passwd",
        "ubuntu",
    ],
)
def test_other_images_are_refused(image: str) -> None:
    given = pod(containers=[container(image=image)])
    assert reasons(given, **APPTAINER) == [("spec.containers[0].image", "ImageNotMapped")]
    refusal = plan(given, cluster(**APPTAINER)).refusals[0]
    assert "not pulled from registries" in refusal.message
    assert "/apps/images or /scratch/images/" in refusal.message


def test_an_image_brings_its_command() -> None:
    plain = first(frozen(pod(containers=[container(image="tool:1", command=None, args=["a", "$(N)"])]), **APPTAINER))
    assert (plain["argv"], plain["image_command"]) == (["a", "$(N)"], True)
    bare = first(frozen(pod(containers=[container(image="tool:1", command=None)]), **APPTAINER))
    assert (bare["argv"], bare["image_command"]) == ([], True)
    own = first(frozen(pod(containers=[container(image="tool:1", args=["x"])]), **APPTAINER))
    assert (own["argv"], own["image_command"]) == (["true", "x"], False)


@pytest.mark.parametrize("name", ["a.b", "1X", "with-dash", "UID", "é"])
def test_variables_that_apptainer_cannot_set(name: str) -> None:
    entry = container(image="tool:1", env=[{"name": name, "value": "x"}])
    assert reasons(pod(containers=[entry]), **APPTAINER) == [("spec.containers[0].env[0]", "UnsupportedPodField")]
    assert reasons(pod(containers=[entry | {"image": "busybox:1"}]), **APPTAINER) == []
    whole = container(image="tool:1", envFrom=[{"configMapRef": {"name": "cm"}}])
    with pytest.raises(MissingInput, match="apptainer cannot set a variable"):
        frozen(pod(containers=[whole]), config_map(data={name: "x"}), **APPTAINER)


def test_gpus_are_told() -> None:
    resources = {"nvidia.com/gpu": "ngpus", "amd.com/gpu": "ngpus"}
    entries = [
        container(image="tool:1", resources={"limits": {"nvidia.com/gpu": 1}}),
        container("b", image="tool:1", resources={"limits": {"amd.com/gpu": "2"}}),
        container("c", image="tool:1", resources={"limits": {"nvidia.com/gpu": 0}}),
    ]
    frozen_pod = document(frozen(pod(containers=entries), resources=resources, **APPTAINER))
    assert [c["gpus"] for c in frozen_pod["containers"]] == ["nvidia", "amd", ""]
