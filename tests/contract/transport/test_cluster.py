"""A pod's life through `PbsCluster`: real sshd, the real helper and podrun, and the embedded PBS behind them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bridge.testbed import sshd as testbed
from bridge.testbed.pbs_cluster import PbsTestCluster
from pbs_adapter import errors
from pbs_adapter.channel import Pauses
from pbs_adapter.cluster import HelperOptions, PbsCluster, Timing
from pbs_adapter.minipbs import Config, Host
from pbs_adapter.models import JobOptions, JobRef, JobRequest, LogQuery, Observation, PodFile, Seen, VolumeFiles
from pbs_adapter.transport import Transport
from pbs_adapter.transport.command import CommandTransport

from .conftest import ssh_to

INSTANCE = "8b0c1f9e-5f0d-4d0c-9d53-0c3d8a4f0001"
QUICK = Timing(ping_every=0.1, ping_deadline=4, pauses=Pauses(first=0.05, longest=0.2))


@pytest.fixture(scope="module")
def pbs() -> Iterator[PbsTestCluster]:
    if not testbed.available():
        pytest.skip("sshd is missing and cannot be installed")
    with PbsTestCluster(Config(server="gamma", hosts=(Host("gamma-n1", 4),))) as running:
        yield running


@pytest.fixture(params=["ssh", "openssh"])
def factory(request: pytest.FixtureRequest, pbs: PbsTestCluster) -> Callable[[], Transport]:
    server = pbs.sshd
    assert server is not None
    return (lambda: ssh_to(server)) if request.param == "ssh" else (lambda: CommandTransport(server.ssh_argv()))


def options(pbs: PbsTestCluster, **changes: Any) -> HelperOptions:
    settings = pbs.settings()
    made = HelperOptions(
        instance=INSTANCE,
        cluster="gamma",
        epoch=lambda: 1,
        spool=settings["spool"],
        pbs_exec=settings["pbsExec"],
        compute_python=settings["computePython"],
        poll=0.5,
        lost_after=1,
        connections_per_minute=900,
    )
    return replace(made, **changes)


@pytest.fixture
async def cluster(
    pbs: PbsTestCluster, factory: Callable[[], Transport], nothing_left: None
) -> AsyncIterator[PbsCluster]:
    made = PbsCluster({"work": factory}, options(pbs), timing=QUICK)
    await made.start()
    await made.jobs("work", "", 30)
    yield made
    await made.aclose()


def pod(script: str, **changes: Any) -> JobRequest:
    """A request to run one container."""
    uid = str(uuid.uuid4())
    container = {
        "name": "main",
        "kind": "app",
        "runtime": "host",
        "image": "busybox",
        "image_id": "host",
        "argv": ["/bin/sh", "-c", script],
        "env": [["NAME", "value"]],
        "cwd": None,
        "mounts": [],
        "termination_message_path": "/dev/termination-log",
        "termination_message_policy": "File",
        "read_only_root": False,
        "resources": {"cpu_millis": 1000, "memory": 1 << 27},
    }
    tree = {
        "version": 1,
        "uid": uid,
        "namespace": "default",
        "name": "hello",
        "hostname": "hello",
        "node": "pbs-gamma",
        "cluster": "gamma",
        "restart_policy": "Never",
        "grace": 5,
        "active_deadline": None,
        "walltime": 300,
        "end_margin": 5,
        "setup": [],
        "containers": [container],
    }
    made = JobRequest(
        JobRef("work", uid),
        f"hello.{uid}.{INSTANCE}",
        JobOptions(ncpus=1, mem_bytes=1 << 28, walltime=300),
        (PodFile("pod.json", json.dumps(tree).encode()),),
        (VolumeFiles("volumes/data", (PodFile("key", b"\0value\xff", 0o644),)),),
        comment="pod default/hello",
    )
    return replace(made, **changes)


async def observe(cluster: PbsCluster, ref: JobRef, until: Callable[[Observation], bool]) -> Observation:
    """Follow the long poll until an observation of the pod is as wanted."""
    cursor, seen = "", None
    async with asyncio.timeout(60):
        while True:
            report = await cluster.jobs(ref.account, cursor, 5)
            cursor = report.cursor
            for observation in report.observations:
                if observation.uid == ref.uid:
                    seen = observation
            if seen is not None and until(seen):
                return seen


def ended(observation: Observation) -> bool:
    return observation.status is not None and observation.status["phase"] == "Ended"


async def logs(cluster: PbsCluster, ref: JobRef, **query: Any) -> bytes:
    return b"".join([chunk async for chunk in cluster.logs(ref, LogQuery("main", **query))])


async def test_a_pod_runs_from_submission_to_removal(cluster: PbsCluster, pbs: PbsTestCluster) -> None:
    job = pod("echo hello $NAME; seq 20000; sleep 1")
    job_id = await cluster.submit(job)
    assert job_id.endswith(".gamma")
    assert await cluster.submit(job) == job_id
    await observe(cluster, job.ref, lambda o: o.status is not None and o.status["phase"] in ("Running", "Ended"))
    followed = asyncio.create_task(logs(cluster, job.ref, follow=True))
    last = await observe(cluster, job.ref, ended)
    assert last.job_id == job_id
    assert last.claimed
    assert last.status is not None
    assert last.status["result"] == "Succeeded"
    expected = b"hello value\n" + b"".join(b"%d\n" % n for n in range(1, 20001))
    assert await logs(cluster, job.ref) == expected
    assert await logs(cluster, job.ref, tail_lines=2) == b"19999\n20000\n"
    assert await followed == expected
    site = cluster.site(job.ref)
    assert site.directory == f"{pbs.spool}/{INSTANCE}/gamma/pods/{job.ref.uid}"
    assert pbs.run(f"cat {site.directory}/job.qsub").stdout.splitlines()[1] == "# pod default/hello"
    assert pbs.run(f"od -An -c {site.directory}/volumes/data/key").stdout.split() == ["\\0", *"value", "377"]
    await cluster.remove(job.ref)
    assert pbs.run(f"ls {site.directory}").returncode != 0


async def test_files_are_replaced_and_a_running_pod_is_stopped(cluster: PbsCluster, pbs: PbsTestCluster) -> None:
    job = pod("echo up; exec sleep 1000")
    await cluster.submit(job)
    await observe(cluster, job.ref, lambda o: o.status is not None and o.status["phase"] == "Running")
    await cluster.write(job.ref, (), (VolumeFiles("volumes/data", (PodFile("key", b"new"),)),))
    assert pbs.run(f"cat {cluster.site(job.ref).directory}/volumes/data/key").stdout == "new"
    with pytest.raises(errors.Permanent):
        await cluster.remove(job.ref)
    await cluster.cancel(job.ref, 1)
    last = await observe(cluster, job.ref, ended)
    assert last.stopping
    assert last.status is not None
    assert last.status["reason"] == "Stopped"


async def test_a_queued_job_is_deleted(cluster: PbsCluster) -> None:
    full = [pod("exec sleep 1000", options=JobOptions(ncpus=4, mem_bytes=1 << 28, walltime=300)) for _ in range(2)]
    for job in full:
        await cluster.submit(job)
    waiting = await observe(cluster, full[1].ref, lambda o: o.pbs.state == "Q" and o.pbs.comment != "")
    assert "Not Running" in waiting.pbs.comment
    await cluster.cancel(full[1].ref, 30)
    gone = await observe(cluster, full[1].ref, lambda o: o.pbs.seen is Seen.ABSENT)
    assert not gone.claimed
    await cluster.cancel(full[0].ref, 0, force=True)
    await observe(cluster, full[0].ref, lambda o: o.pbs.seen is Seen.ABSENT or ended(o))


async def test_refusals_are_told_in_pbss_words_or_before_pbs_is_asked(cluster: PbsCluster) -> None:
    many = JobOptions(ncpus=1, mem_bytes=1 << 28, walltime=300, queue="nosuch")
    with pytest.raises(errors.Rejected, match=r"Unknown queue"):
        await cluster.submit(pod("true", options=many))
    with pytest.raises(errors.Rejected, match="at most 15"):
        await cluster.submit(pod("true", options=replace(many, queue="workq; rm -rf ~")))
    with pytest.raises(errors.Permanent, match="no account"):
        await cluster.cancel(JobRef("other", "x"), 1)
    job = pod("true")
    await cluster.submit(job)
    await observe(cluster, job.ref, ended)
    with pytest.raises(errors.Permanent):
        [chunk async for chunk in cluster.logs(job.ref, LogQuery("sidecar"))]


async def test_the_census_is_parsed(cluster: PbsCluster, pbs: PbsTestCluster) -> None:
    census = await cluster.census()
    assert census.server.name == "gamma"
    assert [queue.name for queue in census.queues] == ["workq"]
    assert [(vnode.name, vnode.ncpus) for vnode in census.vnodes] == [("gamma-n1", 4)]
    assert {"hostname", "os", "kernel", "arch", "python"} <= set(census.host)
    assert census.account == pbs.account.name
    assert census.jobs_at > 0
    assert (await cluster.census()).jobs_at == census.jobs_at  # the list of jobs is asked for every five minutes


async def test_a_helper_that_dies_or_hangs_is_replaced(cluster: PbsCluster, pbs: PbsTestCluster) -> None:
    job = pod("exec sleep 1000")
    await cluster.submit(job)
    for fault in (signal.SIGKILL, signal.SIGSTOP):
        await cluster.jobs("work", "", 20)
        mine = pbs.run(f"pgrep -u {pbs.account.uid} -f '{pbs.spool}/bin/helper-[0-9a-f]'").stdout.split()
        following = asyncio.create_task(logs(cluster, job.ref, follow=True))
        await asyncio.sleep(0.05)
        for pid in map(int, mine):
            os.kill(pid, fault)
        assert isinstance((await asyncio.gather(following, return_exceptions=True))[0], errors.Unreachable)
        for pid in map(int, mine) if fault is signal.SIGSTOP else ():
            os.kill(pid, signal.SIGKILL)
    report = await cluster.jobs("work", "", 20)
    assert report.full
    assert job.ref.uid in [observation.uid for observation in report.observations]
    assert cluster.health()["work"].connected
    await cluster.cancel(job.ref, 0, force=True)


async def test_a_newer_leader_fences_the_older_one(
    cluster: PbsCluster, pbs: PbsTestCluster, factory: Callable[[], Transport]
) -> None:
    epoch = 1
    newer = options(pbs, instance=str(uuid.uuid4()), epoch=lambda: epoch)
    old = PbsCluster({"work": factory}, newer, timing=QUICK)
    await old.start()
    await old.jobs("work", "", 30)
    new = PbsCluster({"work": factory}, replace(newer, epoch=lambda: 2), timing=QUICK)
    await new.start()
    await new.jobs("work", "", 30)
    with pytest.raises(errors.Fenced):
        await old.submit(pod("true"))
    await old.aclose()
    third = PbsCluster({"work": factory}, newer, timing=QUICK)
    await third.start()
    with pytest.raises(errors.Fenced):
        await third.jobs("work", "", 5)
    await third.aclose()
    await new.aclose()


async def test_before_the_first_connection_everything_is_unreachable(pbs: PbsTestCluster, nothing_left: None) -> None:
    server = pbs.sshd
    assert server is not None
    lost = PbsCluster({"work": lambda: ssh_to(server, port=1)}, options(pbs), timing=QUICK)
    job = pod("true")
    with pytest.raises(errors.Unreachable):
        lost.site(job.ref)
    await lost.start()
    for call in (lost.submit(job), lost.jobs("work", "", 0.1), lost.census(), lost.remove(job.ref)):
        with pytest.raises(errors.Unreachable):
            await call
    assert not lost.health()["work"].connected
    await lost.aclose()
