"""Queues, limits, users: what a site's configuration does to jobs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

import pytest

from pbs_adapter.minipbs import Config, Host, Queue

from .runner import account, minipbs
from .site import Site, eventually

CONFIG = Config(
    server="beta",
    dialect="main",
    hosts=(Host("beta", 8, 32 << 30),),
    queues=(
        Queue("route", type="Route", route_destinations=("short", "long")),
        Queue("short", resources_max={"walltime": "00:10:00"}, max_queued="[u:PBS_GENERIC=2]", priority=10),
        Queue("long", resources_min={"walltime": "00:10:01"}, max_run="[u:PBS_GENERIC=1]"),
        Queue("workq", max_run="[o:PBS_ALL=3]", resources_default={"walltime": "00:01:00"}),
        Queue("named", max_queued="[u:pbsuser=1]"),
    ),
    default_queue="route",
    users=("pbsuser",),
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with minipbs(CONFIG) as runner:
        yield Site(runner)


@pytest.fixture(autouse=True)
def _empty(site: Site) -> Iterator[None]:
    yield
    site.sh("for id in $(qselect); do qdel $id; done", user="root")
    eventually(lambda: not site.ok("qselect"))


def test_routing_queue_sends_jobs_on(site: Site) -> None:
    short = site.ok("qsub -h -l walltime=00:05:00 -- /bin/true")
    long = site.ok("qsub -h -l walltime=01:00:00 -- /bin/true")
    site.ok(f"qrls {short} {long}")
    assert site.state(short, "F")["queue"] == "short"
    assert site.state(long, "F")["queue"] == "long"


def test_routing_waits_while_the_destination_is_full(site: Site) -> None:
    blocker = site.ok("qsub -q workq -l ncpus=8 -- /bin/sleep 60")
    jobs = [site.ok("qsub -l walltime=00:05:00 -- /bin/sleep 60") for _ in range(3)]
    assert [site.job(job)["queue"] for job in jobs] == ["short", "short", "route"]
    site.ok(f"qdel {jobs[0]}")
    site.until(jobs[2], lambda job: job["queue"] == "short")
    site.ok(f"qdel {blocker}")


def test_jobs_beyond_the_limits_of_a_queue_are_refused(site: Site) -> None:
    for _ in range(2):
        site.ok("qsub -h -q short -l walltime=60 -- /bin/true")
    result = site.sh("qsub -h -q short -l walltime=60 -- /bin/true")
    assert (result.exit_status, result.stderr) == (38, b"qsub: would exceed queue generic's per-user limit\n")
    assert site.sh("qsub -q long -l walltime=60 -- /bin/true").exit_status == 188
    site.ok("qsub -h -q named -- /bin/true", user="pbsuser")
    result = site.sh("qsub -h -q named -- /bin/true", user="pbsuser")
    assert result.stderr == b"qsub: Maximum number of jobs for user pbsuser already in queue named\n"
    site.ok("qsub -h -q named -- /bin/true")


def test_running_limits_make_jobs_wait(site: Site) -> None:
    first = site.ok("qsub -q long -l walltime=3600 -- /bin/sleep 60")
    second = site.ok("qsub -q long -l walltime=3600 -- /bin/sleep 60")
    other = site.ok("qsub -q long -l walltime=3600 -- /bin/sleep 60", user="pbsuser")
    site.running(first)
    site.running(other)
    comment = "Not Running: User has reached queue long running job limit."
    site.until(second, lambda job: job.get("comment") == comment)
    site.ok(f"qdel {first}")
    site.running(second)
    jobs = [site.ok("qsub -q workq -- /bin/sleep 60") for _ in range(4)]
    site.until(jobs[3], lambda job: job.get("comment") == "Not Running: Queue workq job limit has been reached.")


def test_queue_priority_comes_before_order_of_submission(site: Site) -> None:
    blocker = site.ok("qsub -q workq -l ncpus=8 -- /bin/sleep 60")
    site.running(blocker)
    early = site.ok("qsub -q workq -l ncpus=8 -- /bin/sleep 60")
    late = site.ok("qsub -q short -l ncpus=8 -l walltime=60 -- /bin/sleep 60")
    site.ok(f"qdel {blocker}")
    site.running(late)
    assert site.job(early)["job_state"] == "Q"


def test_dependencies(site: Site) -> None:
    first = site.ok("qsub -q workq -h -- /bin/true")
    after = site.ok(f"qsub -q workq -W depend=afterok:{first} -- /bin/true")
    never = site.ok(f"qsub -q workq -W depend=afternotok:{first} -- /bin/true")
    assert site.state(after, "H", 22)["Hold_Types"] == "s"
    assert "depend" in site.job(first)
    site.ok(f"qrls {first}")
    site.state(after, "F", 92)
    assert "Exit_status" not in site.state(never, "F", 91)
    late = site.ok(f"qsub -q workq -W depend=afterany:{first} -- /bin/true")
    site.state(late, "F", 92)


def test_execution_time_moves_a_job_from_W_to_Q(site: Site) -> None:
    job = site.ok("qsub -q workq -a $(date -d '+2 seconds' +%Y%m%d%H%M.%S) -- /bin/true")
    site.state(job, "F", 92)


def test_users_may_not_touch_each_others_jobs(site: Site) -> None:
    job = site.ok("qsub -q workq -h -- /bin/true", user="pbsuser")
    if os.geteuid() == 0:
        for command in ("qdel", "qhold", "qrls", "qalter -l walltime=5", "qmove named", "qsig"):
            assert site.sh(f"{command} {job}").exit_status == 159, command
    assert site.job(job)["Job_Owner"] == "pbsuser@beta"
    assert job in site.ok("qstat -u pbsuser")
    assert not site.ok(f"qstat -u {site.runner.alice}")


def test_jobs_run_as_their_owners(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run jobs as two different users")
    with account("t") as other:
        env = {"PATH": f"{site.runner.prefix}/bin:/usr/bin:/bin"}
        job = other.call("qsub -q workq -j oe -koed -o $HOME/id.out -- /usr/bin/id -un", env).text.strip()
        site.state(job, "F", 92)
        assert (other.home / "id.out").read_text().strip() == other.name
        assert (other.home / "id.out").stat().st_uid == other.uid
        assert site.sh(f"qdel {job}").exit_status == 35
        mine = site.ok("qsub -q workq -h -- /bin/true")
        assert other.call(f"qdel {mine}", env).exit_status == 159
        assert site.sh("qsub -q workq -- /bin/true", user="root").exit_status == 175
        assert pwd.getpwnam(other.name).pw_uid == other.uid


def test_history_can_be_switched_off(site: Site) -> None:
    site.server.fault("history", "off")
    try:
        job = site.ok("qsub -q workq -- /bin/true")
        eventually(lambda: site.sh(f"qstat {job}").exit_status == 153)
        result = site.sh("qstat -x")
        assert result.exit_status == 0
        assert result.stderr == b"qstat: PBS is not configured to maintain job history beta\n"
    finally:
        site.server.fault("history", "on")


def test_qmgr_prints_and_lists(site: Site) -> None:
    assert "set queue short resources_max.walltime = 00:10:00" in site.ok("qmgr -c 'print server'")
    assert "    max_run = [u:PBS_GENERIC=1]" in site.ok("qmgr -c 'list queue long'")
    assert "    state = free" in site.ok("qmgr -c 'l n beta'")
    assert site.sh("qmgr -c 'set server scheduling=false'").exit_status == 1


def test_qalter_changes_what_is_asked_for(site: Site) -> None:
    job = site.ok("qsub -q workq -h -l select=1:ncpus=99 -- /bin/true")
    site.ok(f"qalter -N renamed -p 7 -l select=1:ncpus=2:mem=1gb -l walltime=120 {job}")
    altered = site.job(job)
    assert (altered["Job_Name"], altered["Priority"]) == ("renamed", 7)
    assert altered["Resource_List"] == {
        "mem": "1gb", "ncpus": 2, "nodect": 1, "place": "free", "select": "1:ncpus=2:mem=1gb", "walltime": "00:02:00",
    }  # fmt: skip
    assert site.sh(f"qalter -l walltime=xyz {job}").exit_status == 166
