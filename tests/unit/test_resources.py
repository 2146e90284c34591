"""What a pod asks of PBS: sizes, times, and annotations that must not become anything else."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from plancases import annotated, cluster, container, pod, reasons

from bridge.plan import plan, quantity
from bridge.plan.resources import JOB_OVERHEAD
from pbs_adapter.models import JobOptions

Mi, Gi = 1 << 20, 1 << 30


def options(given: dict[str, Any], **settings: Any) -> JobOptions:
    """The options of a pod that is not refused."""
    planned = plan(given, cluster(**settings))
    assert planned.message == ""
    return planned.options


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("1", 1), (2, 2), (0.5, "1/2"), ("1.5", "3/2"), (".5", "1/2"), ("5.", 5), ("+1", 1),
        ("100m", "1/10"), ("1u", "1/1000000"), ("1n", "1/1000000000"), ("1k", 1000), ("2M", 2 * 10**6), ("1G", 10**9),
        ("1T", 10**12), ("1P", 10**15), ("1E", 10**18), ("1Ki", 1024), ("1.5Mi", 3 << 19), ("1Gi", Gi),
        ("1Ti", 1 << 40), ("1Pi", 1 << 50), ("1Ei", 1 << 60), ("1e3", 1000), ("1E3", 1000), ("1e-3", "1/1000"),
        ("12E2", 1200), ("-0", 0),
    ],
)  # fmt: skip
def test_quantities(text: object, value: int | str) -> None:
    assert quantity.parse(text) == Fraction(value)


@pytest.mark.parametrize(
    "text", ["", "x", "1K", "1 Gi", "1gi", "-1", "1e999999999", "٣", "1Gi\n", "0x10", "1..5", True, None, "1,5", "."]
)
def test_quantities_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match=r"quantity|negative"):
        quantity.parse(text)


def sized(name: str = "c", **pairs: str) -> dict[str, Any]:
    """A container with requests_cpu=…, limits_memory=… and so on."""
    resources: dict[str, dict[str, str]] = {}
    for key, value in pairs.items():
        side, _, resource = key.partition("_")
        resources.setdefault(side, {})[resource.replace("__", "-")] = value
    return container(name, resources=resources)


@pytest.mark.parametrize(
    ("apps", "init", "ncpus", "mem"),
    [
        ([container()], [], 1, Gi),
        ([sized(requests_cpu="100m", requests_memory="64Mi")], [], 1, 64 * Mi),
        ([sized(requests_cpu="1001m")], [], 2, Gi),
        ([sized(requests_cpu="600m"), sized("d", requests_cpu="600m")], [], 2, 2 * Gi),
        ([sized(requests_cpu="500m"), sized("d", requests_cpu="500m")], [], 1, 2 * Gi),
        ([sized(limits_cpu="3")], [], 3, Gi),
        ([sized(requests_cpu="1", limits_cpu="4")], [], 1, Gi),
        ([sized(requests_memory="1Mi", limits_memory="2Gi")], [], 1, 2 * Gi),
        ([sized(limits_memory="1G")], [], 1, 10**9),
        ([sized(requests_cpu="1")], [sized("i", requests_cpu="4", limits_memory="8Gi")], 4, 8 * Gi),
        ([sized(requests_cpu="3"), sized("d", requests_cpu="2")], [sized("i", requests_cpu="4")], 5, 2 * Gi),
        ([sized(requests_memory="1500m")], [], 1, 2),
    ],
)
def test_chunk(apps: list[dict[str, Any]], init: list[dict[str, Any]], ncpus: int, mem: int) -> None:
    chosen = options(pod(containers=apps, initContainers=init))
    assert (chosen.ncpus, chosen.mem_bytes) == (ncpus, mem + JOB_OVERHEAD)


def test_overhead() -> None:
    chosen = options(
        pod(containers=[sized(requests_cpu="1", limits_memory="1Gi")], overhead={"cpu": "250m", "memory": "64Mi"})
    )
    assert (chosen.ncpus, chosen.mem_bytes) == (2, Gi + 64 * Mi + JOB_OVERHEAD)


def test_memory_volumes_count_as_memory() -> None:
    volumes = [
        {"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "b", "emptyDir": {"medium": "Memory"}},
        {"name": "c", "emptyDir": {"sizeLimit": "5Gi"}},
    ]
    assert options(pod(containers=[sized(limits_memory="1Gi")], volumes=volumes)).mem_bytes == 2 * Gi + JOB_OVERHEAD


def test_extended_resources() -> None:
    settings = {"resources": {"nvidia.com/gpu": "ngpus", "ephemeral-storage": "scratch_local"}}
    gpu = {"limits": {"nvidia.com/gpu": "2", "ephemeral-storage": "1G"}, "requests": {"nvidia.com/gpu": "2"}}
    given = pod(containers=[container(resources=gpu), container("d", resources={"limits": {"nvidia.com/gpu": "1"}})])
    assert options(given, **settings).resources == {"ngpus": 3, "scratch_local": "976563kb"}
    assert reasons(given) == [("spec.containers[0].resources.requests", "UnsupportedPodField")]


def test_resources_without_a_place_in_pbs() -> None:
    assert reasons(pod(containers=[sized(limits_hugepages__2Mi="4Mi")]))[0][1] == "UnsupportedPodField"
    none = pod(containers=[container(resources={"limits": {"example.com/fpga": "0"}})])
    assert options(none).resources == {}
    assert options(pod(containers=[sized(requests_ephemeral__storage="1Gi")])).resources == {}


@pytest.mark.parametrize(
    ("spec", "annotation", "seconds"),
    [
        ({}, None, 3600),
        ({"activeDeadlineSeconds": 100}, None, 100),
        ({"activeDeadlineSeconds": 100}, "2h", 100),
        ({}, "90", 90),
        ({}, "90s", 90),
        ({}, "15m", 900),
        ({}, "2h", 7200),
        ({}, "1h30m", 5400),
        ({}, "01:30:00", 5400),
        ({}, "100:00:00", 360000),
        ({}, "2d", 172800),
    ],
)
def test_walltime(spec: dict[str, Any], annotation: str | None, seconds: int) -> None:
    metadata = {"annotations": {"hpc-bridge.io/walltime": annotation}} if annotation else {}
    given = pod(metadata=metadata, terminationGracePeriodSeconds=10, **spec)
    assert options(given, walltimeMargin="2m").walltime == seconds + 10 + 120


def test_priority() -> None:
    settings = {"priorityClasses": {"urgent": 500, "low": -500}}
    found = [options(pod(priorityClassName=n), **settings).priority for n in ("urgent", "low", "other", "")]
    assert found == [500, -500, None, None]


def test_queue() -> None:
    assert options(pod()).queue is None
    assert options(pod(), queue="workq").queue == "workq"
    assert options(annotated(queue="long"), queue="workq", queues=["long"]).queue == "long"
    assert options(annotated(queue="workq"), queue="workq").queue == "workq"


def test_project_and_accounting() -> None:
    maps = {"projects": {"default": "p1"}, "accounting": {"default": "a1", "other": "a2"}}
    chosen = options(pod(), **maps)
    assert (chosen.project, chosen.accounting) == ("p1", "a1")
    chosen = options(annotated(project="mine", account="a.b@c"), allowProjectAnnotation=True, **maps)
    assert (chosen.project, chosen.accounting) == ("mine", "a.b@c")
    assert options(pod(metadata={"namespace": "nix"}), **maps).project is None


@pytest.mark.parametrize(
    "place", ["free", "pack", "scatter:excl", "vscatter:shared:group=switch", "excl", "group=rack"]
)
def test_place(place: str) -> None:
    assert options(annotated(place=place)).place == place


CANARIES = [
    "; touch /tmp/canary", "$(touch canary)", "`id`", "a b", "a\nb", "a\n", "x\\", "'", '"', "a,b", "a:b=c", "-q", "é",
    "a" * 300, "", "\0", "a;b", "a|b", "a@b c", "\ud800", "../x", "-", "%s", "*", "~", "{}", "٣",
]  # fmt: skip


@pytest.mark.parametrize("value", CANARIES)
@pytest.mark.parametrize("key", ["queue", "walltime", "project", "account", "place"])
def test_annotations_that_may_not_reach_pbs(key: str, value: str) -> None:
    settings = {"queue": "workq", "queues": ["long"], "allowProjectAnnotation": True}
    assert reasons(annotated(**{key: value}), **settings) == [
        (f"metadata.annotations[hpc-bridge.io/{key}]", "InvalidAnnotation")
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("queue", "nix", "queues that pods may name here: long, workq"),
        ("walltime", "0", "write seconds, 90s, 15m, 2h, 1h30m or HH:MM:SS"),
        ("walltime", "99999d", "at most ten years"),
        ("walltime", "-5", "write seconds"),
        ("project", "p", "allowProjectAnnotation"),
        ("account", "a", "allowProjectAnnotation"),
        ("place", "everywhere", "write free, pack, scatter or vscatter"),
        ("wall-time", "1h", "is not known; known are hpc-bridge.io/queue"),
    ],
)
def test_refused_annotations_say_what_would_be_right(key: str, value: str, message: str) -> None:
    planned = plan(annotated(**{key: value}), cluster(queue="workq", queues=["long"]))
    assert [r.reason for r in planned.refusals] == ["InvalidAnnotation"]
    assert message in planned.message


def test_annotations_of_others_are_left_alone() -> None:
    notes = {
        "status.hpc-bridge.io/job-id": "12;rm",
        "example.com/hpc-bridge.io/queue": "x",
        "kubectl.kubernetes.io/x": "y",
    }
    assert options(pod(metadata={"annotations": notes})).queue is None


def test_an_annotation_that_is_no_text() -> None:
    given = pod(metadata={"annotations": {"hpc-bridge.io/walltime": 3600}})
    assert "must be text; quote it" in plan(given, cluster()).message
