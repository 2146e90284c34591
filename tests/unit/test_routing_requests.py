"""What a pod as a whole requests: the scheduler's arithmetic (KEP-753 for sidecars, KEP-2837 for whole pods)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from bridge.routing.requests import requests

Json = dict[str, Any]


def app(**requested: Any) -> Json:
    return {"resources": {"requests": requested}}


def sidecar(**requested: Any) -> Json:
    return {**app(**requested), "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({}, None),
        ({"containers": [{}]}, None),
        ({"containers": [app(cpu="1"), app(cpu="500m")]}, "3/2"),
        ({"containers": [app(cpu=1)], "initContainers": [app(cpu="3"), app(cpu="2")]}, "3"),
        ({"containers": [app(cpu="1")], "initContainers": [app(cpu="500m")]}, "1"),
        ({"containers": [app(cpu="1")], "initContainers": [sidecar(cpu="2")]}, "3"),
        ({"containers": [app(cpu="1")], "initContainers": [sidecar(cpu="2"), app(cpu="4")]}, "6"),
        ({"containers": [app(cpu="1")], "initContainers": [app(cpu="4"), sidecar(cpu="2")]}, "4"),
        ({"containers": [app(cpu="1")], "initContainers": [app(cpu="2"), sidecar(cpu="2"), sidecar(cpu="2")]}, "5"),
        ({"containers": [app(cpu="1")], "overhead": {"cpu": "250m"}}, "5/4"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, "2"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, "1"),
        ({"containers": [app(cpu="1")], "resources": {"requests": {"cpu": "6"}}}, "6"),
        ({"containers": [app(cpu="1")], "resources": {"limits": {"cpu": "6"}}, "overhead": {"cpu": "1"}}, "7"),
        ({"containers": None, "initContainers": None}, None),
    ],
)
def test_requests(spec: Json, cpu: str | None) -> None:
    assert requests({"spec": spec}).get("cpu") == (None if cpu is None else Fraction(cpu))


def test_resources_are_counted_apart() -> None:
    spec = {"containers": [app(cpu="1", memory="1Gi")], "initContainers": [app(memory="2Gi"), app(gpu="1")]}
    assert requests({"spec": spec}) == {"cpu": 1, "memory": 2 << 30, "gpu": 1}


def test_what_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        requests({"spec": {"containers": [app(cpu="much")]}})
