"""Changes of a pod whose job is submitted, and restarts of the agent meanwhile: what reaches the job, what does not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from embedded import LOST
from test_pods_loop import Stage, annotated, made, running, settings, stage, started

from bridge.api import names
from bridge.kube import paths
from bridge.kube.clock import rfc3339
from bridge.kube.errors import Forbidden
from bridge.pods import live
from bridge.pods.record import Record
from pbs_adapter.errors import Permanent
from pbs_adapter.models import Observation, PbsView, Seen

Json = dict[str, Any]
DOWNWARD = {"items": [{"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['tekton.dev/ready']"}}]}


def with_volume(thing: Json, **volume: Any) -> Json:
    thing["spec"]["volumes"] = [*thing["spec"].get("volumes", []), {"name": f"v{len(volume)}"} | volume]
    return thing


def config(s: Stage, **data: str) -> None:
    s.kube.objects[paths.config_map("default", "cm")] = {"metadata": {"name": "cm"}, "data": data}


def volumes(s: Stage, *, since: float = 0.0) -> list[dict[str, bytes]]:
    """Contents of all volumes written, one after the other."""
    written = [each for at, _, _, given in s.pbs.written if at >= since for each in given]
    return [{file.path: file.content for file in each.files} for each in written]


def limits(s: Stage) -> list[Json]:
    return [
        json.loads(file.content) for _, _, files, _ in s.pbs.written for file in files if file.path == "limits.json"
    ]


def generation(s: Stage, thing: Json, number: int, **spec: Any) -> None:
    """Somebody changes the spec."""
    thing["spec"] |= spec
    s.kube.change(thing, generation=number)


def conditions(thing: Json) -> dict[str, Json]:
    return {c["type"]: c for c in thing["status"]["conditions"]}


# Files


async def test_volumes_are_refreshed_after_a_restart() -> None:
    s = stage()
    s.pbs.connect()
    config(s, k="1")
    thing = with_volume(made("live"), configMap={"name": "cm"})
    async with s.agent(settings()):
        thing = await started(s, thing)
    config(s, k="2")
    async with s.agent(settings()):
        await s.clock.advance(32)
        assert volumes(s)[-1] == {"k": b"2"}
        config(s, k="3")
        await s.clock.advance(70)
        assert volumes(s)[-1] == {"k": b"3"}


async def test_a_pod_that_would_be_refused_today_is_refreshed_too() -> None:
    s = stage()
    s.pbs.connect()
    config(s, k="1")
    thing = with_volume(made("live"), configMap={"name": "cm"})
    async with s.agent(settings()):
        thing = await started(s, thing)
    thing["metadata"]["annotations"][names.PREFIX + "note"] = "hello"
    config(s, k="2")
    async with s.agent(settings()):
        await s.clock.advance(32)
        assert volumes(s)[-1] == {"k": b"2"}


async def test_volumes_are_refreshed_after_an_answer_was_lost() -> None:
    s = stage()
    s.pbs.connect()
    s.pbs.failure = LOST
    config(s, k="1")
    async with s.agent(settings()):
        thing = await s.kube.add(with_volume(made("live"), configMap={"name": "cm"}))
        await s.clock.advance(1)
        s.runs(thing)
        config(s, k="2")
        await s.clock.advance(40)
        assert volumes(s)[-1] == {"k": b"2"}


async def test_five_hundred_pods_of_before_are_not_refreshed_at_once() -> None:
    s = stage()
    s.pbs.connect()
    config(s, k="1")
    for number in range(500):
        thing = annotated(with_volume(made(f"p{number}"), configMap={"name": "cm"}))
        s.pbs.put("default", running(f"uid-of-p{number}"))
        await s.kube.add(thing)
    async with s.agent(settings()):
        await s.clock.advance(40)
        times = sorted(at for at, *_ in s.pbs.written)
        assert len(times) == 500
        assert max(sum(second <= at < second + 1 for at in times) for second in range(40)) < 60


async def test_an_annotation_reaches_its_file_within_three_seconds() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, with_volume(made("tekton"), downwardAPI=DOWNWARD))
        await s.clock.advance(20)
        before = len(s.pbs.written)
        asked = s.clock.monotonic()
        s.kube.change(thing, annotations=thing["metadata"]["annotations"] | {"tekton.dev/ready": "READY"})
        await s.clock.advance(3)
        assert volumes(s, since=asked) == [{"ready": b"READY"}]
        s.kube.change(thing, annotations=thing["metadata"]["annotations"] | {"other": "x"})
        await s.clock.advance(3)
        assert len(s.pbs.written) == before + 1


async def test_inputs_that_are_forbidden_leave_the_volumes_and_are_told_once() -> None:
    s = stage()
    s.pbs.connect()
    config(s, k="1")
    async with s.agent(settings()):
        await started(s, with_volume(made("live"), configMap={"name": "cm"}))

        async def get(path: str) -> Json:
            raise Forbidden(403, "Forbidden", "no relationship found")

        s.kube.get = get  # type: ignore[method-assign]
        await s.clock.advance(250)
        assert not s.pbs.written
        assert s.events.reasons("live").count("CreateContainerConfigError") == 1


# Deadline


async def test_a_deadline_that_is_set_later_reaches_podrun() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, made("changing"))
        generation(s, thing, 2, activeDeadlineSeconds=600)
        await s.clock.advance(2)
        assert limits(s) == [{"version": 1, "activeDeadlineSeconds": 600}]
        await s.clock.advance(15)
        assert thing["status"]["observedGeneration"] == 2
        generation(s, thing, 3, activeDeadlineSeconds=60)
        await s.clock.advance(300)
        assert [each["activeDeadlineSeconds"] for each in limits(s)] == [600, 60]


async def test_a_generation_is_observed_once_podrun_can_know_of_the_deadline() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, made("changing"))
        s.pbs.disconnect()
        await s.clock.advance(30)
        generation(s, thing, 2, activeDeadlineSeconds=60)
        await s.clock.advance(60)
        assert thing["status"]["observedGeneration"] == 1
        s.pbs.connect()
        await s.clock.advance(60)
        assert limits(s)
        assert thing["status"]["observedGeneration"] == 2


@pytest.mark.parametrize("known", [True, False])
async def test_a_deadline_that_was_set_while_no_agent_ran_reaches_podrun(known: bool) -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, made("changing"))
    if known:
        generation(s, thing, 2, activeDeadlineSeconds=60)
    async with s.agent(settings()):
        await s.clock.advance(40)
        assert [each["activeDeadlineSeconds"] for each in limits(s)] == ([60] if known else [])


async def test_a_deadline_that_the_cluster_refuses_is_told() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await started(s, made("changing"))

        async def write(*_: object) -> None:
            raise Permanent("the pod has ended")

        s.pbs.write = write  # type: ignore[method-assign]
        generation(s, thing, 2, activeDeadlineSeconds=60)
        await s.clock.advance(20)
        assert s.events.reasons("changing").count("ChangeNotApplied") == 1


# What a job cannot follow


@pytest.mark.parametrize("restart", [False, True])
async def test_another_image_is_told_and_not_shown(restart: bool) -> None:
    s = stage()
    s.pbs.connect()
    today = settings(images=[{"image": "*"}])
    async with s.agent(today):
        thing = await started(s, made("changing"))
        main = thing["status"]["containerStatuses"][0]
        assert (main["image"], main["imageID"]) == ("sh", "pbs://host")
        if not restart:
            generation(s, thing, 2, containers=[thing["spec"]["containers"][0] | {"image": "other:2"}])
            await s.clock.advance(20)
    if restart:
        generation(s, thing, 2, containers=[thing["spec"]["containers"][0] | {"image": "other:2"}])
        async with s.agent(today):
            await s.clock.advance(20)
    main = thing["status"]["containerStatuses"][0]
    assert (main["image"], main["imageID"], main["restartCount"]) == ("sh", "pbs://host", 0)
    assert s.events.reasons("changing").count("ChangeNotApplied") == 1
    assert thing["status"]["observedGeneration"] == 2


async def test_a_resize_is_infeasible_until_it_is_taken_back() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = made("changing")
        one = thing["spec"]["containers"][0] | {"resources": {"requests": {"cpu": "1"}}}
        thing["spec"]["containers"] = [one]
        thing = await started(s, thing)
        assert "PodResizePending" not in conditions(thing)
        assert "resources" not in thing["status"]["containerStatuses"][0]
        generation(s, thing, 2, containers=[one | {"resources": {"requests": {"cpu": "2"}}}])
        await s.clock.advance(15)
        pending = conditions(thing)["PodResizePending"]
        assert (pending["status"], pending["reason"]) == ("True", "Infeasible")
        assert thing["status"]["containerStatuses"][0]["resources"] == {"requests": {"cpu": "1"}}
        assert len(s.pbs.submitted) == 1
    async with s.agent(settings()):
        await s.clock.advance(15)
        assert conditions(thing)["PodResizePending"]["status"] == "True"
        generation(s, thing, 3, containers=[one])
        await s.clock.advance(15)
        assert conditions(thing)["PodResizePending"]["status"] == "False"


async def test_a_change_before_the_submission_is_submitted() -> None:
    """The plan and what is frozen are of one and the same pod."""
    s = stage()
    async with s.agent(settings()):  # no connection yet
        thing = await s.kube.add(made("changing"))
        await s.clock.advance(5)
        one = thing["spec"]["containers"][0] | {"resources": {"requests": {"cpu": "3"}}}
        generation(s, thing, 2, containers=[one], activeDeadlineSeconds=77)
        await s.clock.advance(5)
        s.pbs.connect()
        await s.clock.advance(60)
        (job,) = s.pbs.submitted
        assert job.options.ncpus == 3
        assert json.loads(job.files[0].content)["active_deadline"] == 77
        s.runs(thing)
        await s.clock.advance(40)
        assert not s.pbs.written
        assert "PodResizePending" not in conditions(thing)


@pytest.mark.parametrize("when", ["before", "while it runs"])
async def test_a_debug_container_waits_and_says_why(when: str) -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = made("debugged")
        debugger = [{"name": "debugger", "image": "busybox"}]
        if when == "before":
            thing["spec"]["ephemeralContainers"] = debugger
        thing = await started(s, thing)
        if when != "before":
            generation(s, thing, 2, ephemeralContainers=debugger)
            await s.clock.advance(15)
        (shown,) = thing["status"]["ephemeralContainerStatuses"]
        assert shown["name"] == "debugger"
        assert shown["state"]["waiting"]["reason"] == "UnsupportedPodField"
        assert thing["status"]["phase"] == "Running"
        assert "ChangeNotApplied" in s.events.reasons("debugged")
        await s.clock.advance(20)
        count = len(s.kube.statuses)
        await s.clock.advance(120)
        assert len(s.kube.statuses) == count


async def test_what_reaches_a_job_that_waits_in_pbs() -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = await s.kube.add(made("queued"))
        await s.clock.advance(3)
        view = PbsView(Seen.PRESENT, 0.0, "Q", queue="workq")
        s.pbs.put("default", Observation("uid-of-queued", job_id="1.alpha", pbs=view))
        await s.clock.advance(10)
        generation(s, thing, 2, activeDeadlineSeconds=60)
        await s.clock.advance(3)
        assert limits(s) == [{"version": 1, "activeDeadlineSeconds": 60}]


# Deletion


async def test_a_job_that_outlives_an_ended_pod_is_ended_although_its_object_went_first() -> None:
    """The object of a pod that has ended goes at once, also before anything is known of the cluster."""
    s = stage()
    thing = await s.kube.add(annotated(made("outlived", phase="Failed")))
    s.runs(thing)
    async with s.agent(settings()):
        await s.clock.advance(5)
        s.kube.change(thing, deletionTimestamp=rfc3339(s.clock.time()), deletionGracePeriodSeconds=0)
        await s.clock.advance(5)
        assert not s.is_there("outlived")
        s.pbs.connect()
        await s.clock.advance(10)
        assert ("cancel", "uid-of-outlived", False) in s.pbs.calls


@pytest.mark.parametrize("ends", ["deleted without grace", "terminal", "forced"])
async def test_nobody_gets_less_than_two_seconds(ends: str) -> None:
    s = stage()
    s.pbs.connect()
    async with s.agent(settings()):
        thing = made("short")
        thing["spec"]["terminationGracePeriodSeconds"] = 0
        thing = await started(s, thing)
        if ends == "deleted without grace":
            s.kube.change(thing, deletionTimestamp=rfc3339(s.clock.time()), deletionGracePeriodSeconds=0)
        elif ends == "forced":
            s.kube.remove(thing)
        else:
            thing["status"]["phase"] = "Failed"
            s.kube.change(thing)
        await s.clock.advance(120)
        assert s.pbs.cancels
        assert min(grace for _, _, grace, _ in s.pbs.cancels) == 2


def test_a_field_that_is_named_a_thousand_times_is_read_once() -> None:
    """An author may give a pod large annotations after it was submitted; each look would have taken a minute."""
    items = [{"path": f"a{n}", "fieldRef": {"fieldPath": "metadata.annotations"}} for n in range(2000)]
    thing = with_volume(made("live"), downwardAPI={"items": items})
    thing["metadata"]["annotations"]["a"] = "x" * 250_000
    began = time.process_time()
    live.submitted(thing, Record())
    assert time.process_time() - began < 1
