"""What one small pod may cost the agent: measured, with everything that multiplies a few lines of a manifest."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import tracemalloc
from typing import Any

import pytest
from plancases import INSTANCE, NODE, cluster, container, pod

from bridge.kube.clock import SystemClock
from bridge.plan import MissingInput, freeze, plan
from bridge.plan.model import TooLarge
from bridge.plan.values import LONGEST, expand, plain
from bridge.pods.inputs import InputSource
from pbs_adapter.cluster_convert import files_head
from pbs_adapter.models import JobRequest

Json = dict[str, Any]
MEGABYTE = 1 << 20
MOST = 16 * MEGABYTE


class Store:
    """Every ConfigMap is a text of a megabyte, every Secret as much; names that start with `keys` have many keys."""

    def __init__(self) -> None:
        self.read = 0

    async def get(self, path: str) -> Json:
        """An object made anew, as one that came over the network."""
        self.read += 1
        name = path.rpartition("/")[2]
        if "/secrets/" in path:
            return {"metadata": {"name": name}, "data": {"k": base64.b64encode(b"s" * (MEGABYTE * 3 // 4)).decode()}}
        if name.startswith("keys"):
            return {"metadata": {"name": name}, "data": {f"k{n}": "" for n in range(60_000)}}
        if name.startswith("odd"):
            return {"metadata": {"name": name}, "data": {f"k{n}": "\x01" * (120 << 10) for n in range(8)}}
        return {"metadata": {"name": name}, "data": {"k": "x" * MEGABYTE}}

    async def create(self, path: str, body: Json) -> Json:
        """A token."""
        return {"status": {"token": "t"}}


def prepared(thing: Json) -> JobRequest:
    """All that the agent does with a pod until its job is handed to the cluster's connection."""
    where = cluster()
    planned = plan(thing, where)
    assert planned.refusals == ()
    source = InputSource(Store(), SystemClock())  # type: ignore[arg-type]
    found = asyncio.run(source.gather(thing, planned.inputs))
    request = freeze(thing, planned, found, node=NODE, instance=INSTANCE, cluster=where, account="default")
    files_head(request.files, request.volumes)
    return request


def variables(*values: str, **more: Any) -> Json:
    """A container's variables A, B, C …"""
    return container(env=[{"name": chr(65 + n), "value": value} for n, value in enumerate(values)], **more)


def volumes(kind: str, *refs: Json) -> Json:
    """A pod with a volume for each reference."""
    return pod(volumes=[{"name": f"v{n}", kind: ref} for n, ref in enumerate(refs)])


HOSTILE = {
    "three variables": pod(containers=[variables("x" * 1000, "$(A)" * 1000, "$(B)" * 500)]),
    "many long variables": pod(
        containers=[variables("x" * 1000, "$(A)" * 120, *["$(B)"] * 20, args=["$(B)"] * 500)]
    ),
    "arguments": pod(containers=[variables("x" * 1000, "$(A)" * 120, args=["$(B)"] * 800)]),
    "many containers": pod(
        containers=[container(f"c{n}", envFrom=[{"configMapRef": {"name": "keys"}}]) for n in range(50)]
    ),
    "many prefixes": pod(
        containers=[container(envFrom=[{"prefix": f"{n}", "configMapRef": {"name": "keys"}} for n in range(120)])]
    ),
    "control characters": pod(
        containers=[container(envFrom=[{"prefix": f"{n}", "configMapRef": {"name": "odd"}} for n in range(100)])]
    ),
    "keys of secrets": pod(
        containers=[
            container(
                env=[
                    {"name": f"A{n}", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}} for n in range(70)
                ]
            )
        ]
    ),
    "sub paths": pod(
        containers=[
            variables(
                "x" * 1000, "$(A)" * 120,
                volumeMounts=[{"name": "v", "mountPath": f"/{n}", "subPathExpr": "$(B)"} for n in range(100)],
            )
        ],
        volumes=[{"name": "v", "emptyDir": {}}],
    ),
    "one ConfigMap, many volumes": volumes("configMap", *[{"name": "c"}] * 150),
    "one Secret, many volumes": volumes("secret", *[{"secretName": "s"}] * 150),
    "many ConfigMaps": volumes("configMap", *[{"name": f"c{n}"} for n in range(140)]),
    "many Secrets": volumes("secret", *[{"secretName": f"s{n}"} for n in range(140)]),
    "many keys": volumes("configMap", *[{"name": "keys"}] * 150),
    "one key, many files": volumes(
        "configMap", {"name": "c", "items": [{"key": "k", "path": f"p{n}"} for n in range(250)]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_manifest_costs_little(name: str) -> None:
    thing = HOSTILE[name]
    assert len(json.dumps(thing)) < 9 << 10
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(TooLarge, match=r"larger than|longer than"):
            prepared(thing)
        assert tracemalloc.get_traced_memory()[1] - before < MOST
    finally:
        tracemalloc.stop()


def test_what_is_as_large_as_it_may_be_costs_little_too() -> None:
    """2 MiB of variables and arguments, 4 MiB of volumes: the limits hold what they are for."""
    spec = {
        "containers": [variables("x" * 1000, "$(A)" * 100, args=["$(B)"] * 18)],
        "volumes": [{"name": f"v{n}", "secret": {"secretName": f"s{n}"}} for n in range(5)],
    }
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        request = prepared(pod(**spec))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert sum(len(f.content) for v in request.volumes for f in v.files) > 3.7 * MEGABYTE
    assert peak < 1.5 * MOST  # the whole is there three times for a moment: read, decoded, on its way


def test_one_object_is_decoded_once_for_all_volumes() -> None:
    spec = {"volumes": [{"name": f"v{n}", "secret": {"secretName": "s"}} for n in range(5)]}
    contents = [file.content for volume in prepared(pod(**spec)).volumes for file in volume.files]
    assert len(contents) == 5
    assert all(content is contents[0] for content in contents)


def test_expansion_stops_at_what_a_program_can_be_given() -> None:
    known = {"A": plain("x" * 1000)}
    assert len(expand(plain("$(A)" * 131), known)[0].data) == 131_000 <= LONGEST
    with pytest.raises(TooLarge, match="longer"):
        expand(plain("$(A)" * 132), known)
    with pytest.raises(TooLarge):
        expand(plain("x" * (LONGEST + 1)), {})


def test_expansion_takes_no_square_of_the_text() -> None:
    text = "$(" * 500_000
    for value in (text, text + ")", ")" + text):
        began = time.process_time()
        try:
            expand(plain(value), {}, most=2 * len(value))
        finally:
            assert time.process_time() - began < 1


def test_what_is_kept_of_many_pods_is_bounded_too() -> None:
    """A hundred pods of one ConfigMap each, all within the seconds in which objects are kept."""
    source = InputSource(Store(), SystemClock())  # type: ignore[arg-type]

    async def all_of_them() -> None:
        for n in range(100):
            thing = volumes("configMap", {"name": f"c{n}"})
            await source.gather(thing, plan(thing, cluster()).inputs)

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        asyncio.run(all_of_them())
        assert tracemalloc.get_traced_memory()[1] - before < MOST
    finally:
        tracemalloc.stop()


def test_a_pod_that_is_too_large_waits_as_for_something_missing() -> None:
    assert issubclass(TooLarge, MissingInput)


def crowd(count: int) -> Json:
    """A pod of many volumes, mounts and variables that refer to containers: what is asked of each for each."""
    many = range(count)
    ref = {"resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}}
    return pod(
        containers=[
            container(
                "c",
                volumeMounts=[{"name": f"v{n}", "mountPath": f"/{n}"} for n in many],
                env=[{"name": f"A{n}", "valueFrom": ref} for n in many],
            )
        ],
        initContainers=[container(f"i{n}") for n in many],
        volumes=[{"name": f"v{n}", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}} for n in many],
    )


def test_a_spec_as_large_as_the_api_server_takes_it_holds_nobody_up() -> None:
    """A megabyte of spec is refused after a glance; the largest one that is planned takes a moment."""
    for thing, told in ((crowd(4000), "has more than 20000 values"), (crowd(900), "")):
        began = time.process_time()
        planned = plan(thing, cluster())
        assert time.process_time() - began < 3
        assert told in planned.message
        assert bool(planned.refusals) is bool(told)
