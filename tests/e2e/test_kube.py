"""The Kubernetes client, reflector, recorder and leader against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from waiting import kubectl, running, until

from bridge.kube import Json, errors, paths
from bridge.kube.client import KubeClient, connect
from bridge.kube.events import Recorder
from bridge.kube.leader import Leader
from bridge.kube.reflector import Reflector
from bridge.testbed.control_plane import ControlPlane

CONFIG_MAPS = "/api/v1/namespaces/{}/configmaps"


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """A client with all rights."""
    async with connect(str(control_plane.admin_kubeconfig)) as client:
        yield client


@pytest.fixture
async def namespace(kube: KubeClient) -> AsyncIterator[str]:
    """A namespace of the test's own, with its default ServiceAccount."""
    name = f"kube-{uuid4().hex[:8]}"
    await kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
    await until(lambda: exists(kube, f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    yield name
    await kube.delete(paths.namespace(name))


async def exists(kube: KubeClient, path: str) -> bool:
    try:
        await kube.get(path)
    except errors.NotFound:
        return False
    return True


def pod(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}


async def test_errors_are_what_the_server_means(kube: KubeClient, namespace: str) -> None:
    with pytest.raises(errors.NotFound):
        await kube.get(paths.config_map(namespace, "missing"))
    made = await kube.create(paths.pods(namespace), pod("a"))
    with pytest.raises(errors.Conflict) as exists_error:
        await kube.create(paths.pods(namespace), pod("a"))
    assert exists_error.value.exists
    with pytest.raises(errors.Conflict):
        await kube.patch(
            paths.pod_status(namespace, "a"), {"metadata": {"uid": str(uuid4())}, "status": {"phase": "Failed"}}
        )
    with pytest.raises(errors.Conflict):
        await kube.delete(paths.pod(namespace, "a"), uid=str(uuid4()), grace=0)
    with pytest.raises(errors.Invalid):
        await kube.patch(paths.pod(namespace, "a"), {"spec": {"nodeName": "x"}})
    assert (await kube.get(paths.pod(namespace, "a")))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_status_patch_keeps_conditions_of_others(kube: KubeClient, namespace: str) -> None:
    uid = (await kube.create(paths.pods(namespace), pod("a")))["metadata"]["uid"]
    for type_ in ("example.com/theirs", "Initialized"):
        body = {"metadata": {"uid": uid}, "status": {"conditions": [{"type": type_, "status": "True"}]}}
        await kube.patch(paths.pod_status(namespace, "a"), body)
    conditions = (await kube.get(paths.pod(namespace, "a")))["status"]["conditions"]
    assert {c["type"] for c in conditions} >= {"example.com/theirs", "Initialized"}


async def test_a_service_account_is_held_to_its_rights(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    file = await asyncio.to_thread(
        control_plane.service_account_kubeconfig, namespace, "default", tmp_path / "kubeconfig"
    )
    async with connect(str(file)) as limited:
        with pytest.raises(errors.Forbidden):
            await limited.list(paths.pods())


async def test_the_reflector_follows_through_a_restart_of_the_server(
    control_plane: ControlPlane, kube: KubeClient, namespace: str
) -> None:
    path = CONFIG_MAPS.format(namespace)
    await kube.create(path, {"metadata": {"name": "old"}})
    told: list[tuple[str, str]] = []
    reflector = Reflector(kube, path, on_change=lambda kind, thing: told.append((kind, thing["metadata"]["name"])))
    async with running(reflector.run()):
        await until(reflector.synced.is_set)
        await kube.create(path, {"metadata": {"name": "big"}, "data": {"x": "y" * 900_000}})
        await until(lambda: ("ADDED", "big") in told)
        await asyncio.to_thread(control_plane.restart_apiserver)
        await kube.delete(f"{path}/old")
        await kube.patch(f"{path}/big", {"data": {"z": "1"}})
        await until(lambda: ("DELETED", "old") in told and ("MODIFIED", "big") in told)
        assert {thing["metadata"]["name"] for thing in reflector.items.values()} == {"big", "kube-root-ca.crt"}


async def test_events_are_shown_and_counted(control_plane: ControlPlane, kube: KubeClient, namespace: str) -> None:
    made = await kube.create(paths.pods(namespace), pod("a"))
    recorder = Recorder(kube, "hpc-bridge", "here")

    async def counted(number: int) -> bool:
        items, _ = await kube.list(paths.events(namespace), field_selector="reason=PBSSubmitted")
        return [event["count"] for event in items] == [number]

    async with running(recorder.run()):
        for number in (1, 2):
            recorder.event(made, "Normal", "PBSSubmitted", "job 12.alpha")
            await until(lambda number=number: counted(number))  # type: ignore[misc]
    shown = await kubectl(control_plane, "describe", "pod", "a", "-n", namespace)
    assert "PBSSubmitted" in shown
    assert "job 12.alpha" in shown


async def test_the_lease_moves_from_leader_to_leader(kube: KubeClient, namespace: str) -> None:
    led: list[tuple[str, int]] = []

    def process(identity: str) -> Coroutine[Any, Any, None]:
        async def lead(epoch: int) -> None:
            led.append((identity, epoch))
            await asyncio.Event().wait()

        return Leader(kube, namespace, "bridge", identity, 10).run(lead)

    async with AsyncExitStack() as second:
        async with running(process("one")):
            await until(lambda: len(led) == 1)
            await second.enter_async_context(running(process("two")))
            lease = await kube.get(paths.lease(namespace, "bridge"))
            assert lease["spec"]["holderIdentity"] == "one"
        await until(lambda: len(led) == 2)
        assert led[1] == ("two", led[0][1] + 1)
        await kube.delete(paths.lease(namespace, "bridge"))
        await until(lambda: len(led) == 3)
        assert led[2][1] > led[1][1]
