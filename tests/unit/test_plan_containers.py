"""What podrun is told of each container."""

from __future__ import annotations

from typing import Any

import pytest
from plancases import container, document, first, frozen, pod, reasons, secret, shown


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
