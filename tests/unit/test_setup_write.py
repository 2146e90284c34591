"""The bridge.yaml that `init` prints: right for the loader, each choice with its reason, safe against odd answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from censuses import census

from bridge.api.load import load
from bridge.api.settings import Cluster
from bridge.setup.look import Findings, Place
from bridge.setup.queues import choose, limits, unusable
from bridge.setup.shell import Answer
from bridge.setup.write import Login, bridge_yaml
from pbs_adapter.remote.parse import Limit, Queue

GIB = 1 << 30
HOME = Place("HOME", "/home/alice", "nfs4", 75 * GIB)
LOCAL = replace(HOME, kind="ext4")
SCRATCH = Place("SCRATCH", "/scratch/alice", "lustre", 900 * GIB)
FINDINGS = Findings(
    user="alice",
    groups=("users",),
    census=census(),
    pbs_exec="/opt/pbs",
    pbs_configured=True,
    python=("python3", "3.6.8"),
    system_python="3.6.8",
    bubblewrap=Answer(0, b""),
    runtimes={"apptainer": "apptainer version 1.3.1"},
    places=(HOME, SCRATCH),
)


def queue(**fields: object) -> Queue:
    """The recorded queue workq with some fields changed."""
    return next(q for q in FINDINGS.census.queues if q.name == "workq")._replace(**fields)  # type: ignore[arg-type]


def with_queues(*queues: Queue) -> Findings:
    return replace(FINDINGS, census=replace(FINDINGS.census, queues=queues))


def written(tmp_path: Path, seen: Findings) -> tuple[str, Cluster]:
    """The text, and the cluster that the loader makes of it."""
    for name in ("key", "known_hosts"):
        (tmp_path / name).touch(mode=0o600)
    login = Login("login1", 2222, "alice", str(tmp_path / "key"), str(tmp_path / "known_hosts"))
    text = bridge_yaml(login, seen, "2026-11-30")
    (tmp_path / "bridge.yaml").write_text(text)
    (cluster,) = load(tmp_path / "bridge.yaml").clusters
    return text, cluster


def test_a_cluster_as_it_was_recorded(tmp_path: Path) -> None:
    text, cluster = written(tmp_path, FINDINGS)
    assert cluster.name == FINDINGS.census.server.name
    assert (cluster.spool, cluster.queue, cluster.walltime, cluster.pbs_exec) == ("~/.hpc-bridge", "workq", 3600, None)
    assert cluster.queues[0] == "workq"
    assert "closed" not in cluster.queues
    assert "1 host of 64 cores, 256 GiB, in 2 NUMA domains" in text
    assert "queue closed: not usable: takes no jobs" in text
    assert "apptainer (apptainer version 1.3.1)" in text
    assert "runtime: apptainer" in text
    assert "runtime: apptainer" not in written(tmp_path, replace(FINDINGS, runtimes={}))[0]
    assert cluster.accounts[0].namespaces == ("default",)


@pytest.mark.parametrize(
    ("places", "spool", "reason"),
    [
        ((HOME, SCRATCH), "~/.hpc-bridge", "$HOME is nfs4 with 75 GiB free\n"),
        ((LOCAL, SCRATCH), "/scratch/alice/.hpc-bridge", "$SCRATCH is lustre with 900 GiB free\n"),
        ((LOCAL,), "~/.hpc-bridge", "it looks local to the login node"),
        ((), "~/.hpc-bridge", "no candidate was found"),
    ],
)
def test_spool(tmp_path: Path, places: tuple[Place, ...], spool: str, reason: str) -> None:
    text, cluster = written(tmp_path, replace(FINDINGS, places=places))
    assert cluster.spool == spool
    assert reason in text


@pytest.mark.parametrize(("most", "walltime"), [(3600, 3510), (7200, 3600), (100, 60), (3690, 3600)])
def test_the_default_walltime_fits_the_queue(tmp_path: Path, most: int, walltime: int) -> None:
    assert written(tmp_path, with_queues(queue(resources_max={"walltime": most})))[1].walltime == walltime


def test_programs_in_odd_places(tmp_path: Path) -> None:
    odd = replace(FINDINGS, pbs_configured=False, python=("/usr/libexec/platform-python", "3.6.8"), system_python="")
    text, cluster = written(tmp_path, odd)
    assert (cluster.pbs_exec, cluster.python) == ("/opt/pbs", "/usr/libexec/platform-python")
    assert "name the compute nodes' Python" in text
    assert "none of 3.6 or newer was found" in written(tmp_path, replace(FINDINGS, python=None))[0]


def test_a_cluster_without_a_queue_for_us(tmp_path: Path) -> None:
    text, cluster = written(tmp_path, with_queues(queue(enabled=False)))
    assert (cluster.queue, cluster.queues) == (None, ())
    assert "no queue is usable by this account" in text


def test_what_a_cluster_says_stays_a_comment_or_a_value(tmp_path: Path) -> None:
    evil = "x\nclusters: []\n#\x1b[2J"
    host = dict.fromkeys(("hostname", "os", "arch"), "a b")
    seen = with_queues(queue(name=evil))
    seen = replace(
        seen, census=replace(seen.census, server=seen.census.server._replace(name=evil, version=evil), host=host)
    )
    seen = replace(seen, places=(replace(SCRATCH, path="/s # x: y"),))
    text, cluster = written(tmp_path, seen)
    assert cluster.name == "x-clusters-2j"
    assert cluster.queue is None  # qsub would not take the name
    assert "its name cannot be given to qsub" in text
    assert cluster.spool == "/s # x: y/.hpc-bridge"
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, ""),
        ({"enabled": False}, "takes no jobs"),
        ({"started": False}, "runs no jobs"),
        ({"from_route_only": True}, "from a routing queue only"),
        ({"acl_users": ("bob", "alice@*")}, ""),
        ({"acl_users": ("bob",)}, "not open to user alice"),
        ({"acl_users": ("-alice", "+*")}, "not open to user alice"),
        ({"acl_users": ()}, "not open to user alice"),
        ({"acl_groups": ("users",)}, ""),
        ({"acl_groups": ("staff",)}, "not open to the account's groups"),
    ],
)
def test_usable(fields: dict[str, object], problem: str) -> None:
    found = unusable(queue(**fields), "alice", ["users"])
    assert problem in found
    assert bool(found) == bool(problem)


def test_a_limit_of_no_job_is_no_queue_and_others_are_told() -> None:
    bare = queue().limits
    none = queue(limits=bare._replace(max_queued=(Limit("u", "alice", 0),)))
    assert "no job" in unusable(none, "alice", [])
    some = queue(
        limits=bare._replace(max_run=(Limit("u", "PBS_GENERIC", 3),)),
        resources_max={"walltime": 3600, "mem": 4 * GIB},
        route_destinations=("a", "b"),
    )
    told = "routes to a b, mem at most 4 GiB, walltime at most 1:00:00, 3 jobs of this user may run"
    assert limits(some, "alice") == told


def test_the_servers_default_queue_comes_first() -> None:
    queues = (queue(name="other"), queue(), queue(name="closed", enabled=False))
    chosen = choose(with_queues(*queues).census, "alice", [])
    assert [each.name for each in chosen] == ["workq", "other"]
