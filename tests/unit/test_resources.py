"""What a pod asks of PBS: sizes, times, and annotations that must not become anything else."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from plancases import annotated, cluster, container, first, frozen, pod, reasons

from bridge.plan import plan, quantity
from bridge.plan.resources import JOB_OVERHEAD
from pbs_adapter.models import JobOptions, JobRef, JobRequest
from pbs_adapter.script import Site, render

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

    def needed(*apps: dict[str, Any]) -> int:
        return options(pod(containers=list(apps), volumes=volumes)).mem_bytes - JOB_OVERHEAD

    mounts = {"volumeMounts": [{"name": "a", "mountPath": "/dev/shm"}]}
    assert needed(sized(limits_memory="2Gi") | mounts) == 2 * Gi  # within the container's memory, as with a kubelet
    assert needed(sized(requests_memory="1Mi") | mounts, container("d") | mounts) == Gi + Mi
    assert needed(container() | mounts) == 2 * Gi  # nobody says how much memory: the default, and the volume
    assert needed(container()) == 2 * Gi


def test_memory_volumes_are_told_to_podrun() -> None:
    volumes = [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    volumes += [{"name": "b", "emptyDir": {"medium": "Memory"}}, {"name": "c", "emptyDir": {}}]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in "abc"]
    found = first(frozen(pod(containers=[container(volumeMounts=mounts)], volumes=volumes)))["mounts"]
    assert [(m.get("medium"), m.get("size")) for m in found] == [("Memory", 16 * Gi), ("Memory", None), (None, None)]


def test_extended_resources() -> None:
    settings = {"resources": {"nvidia.com/gpu": "ngpus", "ephemeral-storage": "scratch_local"}}
    gpu = {"limits": {"nvidia.com/gpu": "2", "ephemeral-storage": "1G"}, "requests": {"nvidia.com/gpu": "2"}}
    given = pod(containers=[container(resources=gpu), container("d", resources={"limits": {"nvidia.com/gpu": "1"}})])
    assert options(given, **settings).resources == {"ngpus": 3, "scratch_local": "976563kb"}
    assert reasons(given) == [
        ("spec.containers[0].resources.requests", "UnsupportedPodField"),
        ("spec.containers[0].resources.limits", "UnsupportedPodField"),
    ]


def test_resources_without_a_place_in_pbs() -> None:
    assert reasons(pod(containers=[sized(limits_hugepages__2Mi="4Mi")]))[0][1] == "UnsupportedPodField"
    none = pod(containers=[container(resources={"limits": {"example.com/fpga": "0"}})])
    assert options(none).resources == {}


@pytest.mark.parametrize("side", ["requests", "limits"])
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_ephemeral_storage_needs_a_place_in_pbs(kind: str, side: str) -> None:
    """The node offers none of it, so such a pod would be Pending for ever; the same for the router and `render`."""
    asking = sized("e", **{f"{side}_ephemeral__storage": "10Gi"})
    given = pod(**({"containers": [asking]} if kind == "containers" else {"initContainers": [asking]}))
    assert reasons(given) == [(f"spec.{kind}[0].resources.{side}", "UnsupportedPodField")]
    assert options(given, resources={"ephemeral-storage": "scratch"}).resources == {"scratch": f"{10 << 20}kb"}
    nothing = pod(containers=[sized(**{f"{side}_ephemeral__storage": "0"})])
    assert options(nothing).resources == {}


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
    allowed = ["free", "pack", "scatter", "vscatter", "shared", "excl", "group"]
    assert options(annotated(place=place), placements=allowed).place == place


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


@pytest.mark.parametrize("place", ["excl", "scatter:exclhost", "pack:excl:group=rack", "free:exclhost"])
def test_whole_hosts_are_not_given_unless_the_settings_say_so(place: str) -> None:
    """Quotas of Kubernetes would count the one CPU that the pod asks for."""
    assert reasons(annotated(place=place)) == [("metadata.annotations[hpc-bridge.io/place]", "InvalidAnnotation")]
    assert "placements that pods may choose" in plan(annotated(place=place), cluster()).message
    allowed = ["pack", "scatter", "free", "excl", "exclhost", "group"]
    assert options(annotated(place=place), placements=allowed).place == place
    assert reasons(annotated(place="free"), placements=[]) != []


@pytest.mark.parametrize(
    ("spec", "walltime", "field"),
    [
        ({}, None, None),
        ({}, "1h", None),
        ({"activeDeadlineSeconds": 3570}, None, None),
        ({}, "2h", "metadata.annotations[hpc-bridge.io/walltime]"),
        ({"activeDeadlineSeconds": 3600}, None, "spec.activeDeadlineSeconds"),
        ({"activeDeadlineSeconds": 10**9}, "1m", "spec.activeDeadlineSeconds"),
        ({"terminationGracePeriodSeconds": 10**8}, None, "spec.terminationGracePeriodSeconds"),
    ],
)
def test_no_more_time_than_the_settings_let_pods_have(spec: dict[str, Any], walltime: str | None, field: str) -> None:
    metadata = {"annotations": {"hpc-bridge.io/walltime": walltime}} if walltime else {}
    given = pod(metadata=metadata, **{"terminationGracePeriodSeconds": 0 if walltime else 30} | spec)
    refused = plan(given, cluster(longestWalltime="1h", walltime="30m")).refusals
    assert [refusal.field for refusal in refused] == ([field] if field else [])
    assert all("lets pods have 3600 s" in refusal.message for refusal in refused)
    assert reasons(given) == []


SITE = {
    "jobResources": {"filesystems": "home:eagle", "storage": {"team-a": "gdata/ab1+scratch/ab1", "*": "scratch"}},
    "chunkResources": {"system": "polaris", "arch": {"team-b": "v2"}},
    "groups": {"team-a": "g01", "*": "users"},
}


@pytest.mark.parametrize(
    ("namespace", "words"),
    [
        (
            "team-a",
            ["-W group_list=g01", ":system=polaris -l", "=home:eagle -l storage=gdata/ab1+scratch/ab1"],
        ),
        ("team-b", ["-W group_list=users", ":arch=v2:system=polaris", "-l filesystems=home:eagle -l storage=scratch"]),
    ],
)
def test_what_a_site_wants_with_every_job(namespace: str, words: list[str]) -> None:
    made = options(pod(metadata={"namespace": namespace}), **SITE)
    site = Site("/s/pods/u", "/s/bin/podrun.pyz", "/usr/bin/python3")
    text = render(JobRequest(JobRef("a", "u"), "n", made, ()), site)
    assert all(word in text for word in words), text


def test_what_a_pod_asks_for_is_not_overruled() -> None:
    made = options(pod(containers=[sized(limits_nvidia__gpu="1")]), resources={"nvidia-gpu": "ngpus"}, **SITE)
    assert made.resources == {"system": "polaris", "ngpus": 1}
