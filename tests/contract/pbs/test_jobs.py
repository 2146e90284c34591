"""How jobs live and die under the embedded PBS: processes, signals, files, restarts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pbs_adapter.minipbs import Config, Host, Queue

from .runner import RECORDINGS, minipbs
from .shapes import job_shape
from .site import Site, alive, eventually

CONFIG = Config(
    server="alpha",
    hosts=(Host("alpha", 16, 64 << 30, numa=2),),
    queues=(Queue("workq"),),
    resources_default={"walltime": "01:00:00"},
    kill_delay=1.0,
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with minipbs(CONFIG) as runner:
        yield Site(runner)


SHOW = """#!/usr/bin/python3
import json, os
print(json.dumps([os.getpid(), os.getsid(0), os.getcwd(), dict(os.environ)]))
"""


def test_program_is_the_session_leader_with_moms_environment(site: Site) -> None:
    program = site.script("show.py", SHOW)
    options = "-N env -v A=1,B='x y' -A acct -j oe -koed -o $HOME/env.out"
    job = site.ok(f"export SECRET=1; qsub {options} -- $HOME/{program}")
    ended = site.state(job, "F")
    pid, sid, cwd, env = json.loads((site.home / "env.out").read_text())
    assert pid == sid
    assert "SECRET" not in env
    expected = {
        "A": "1", "B": "x y", "PBS_JOBID": job, "PBS_JOBNAME": "env", "PBS_ENVIRONMENT": "PBS_BATCH", "NCPUS": "1",
        "OMP_NUM_THREADS": "1", "PBS_O_WORKDIR": str(site.home), "PBS_ACCOUNT": "acct",
    }  # fmt: skip
    assert expected.items() <= env.items()
    assert {"PBS_NODEFILE", "PBS_JOBDIR", "PBS_JOBCOOKIE", "TMPDIR", "HOME", "PBS_O_HOST"} <= env.keys()
    assert cwd == env["HOME"]
    assert os.geteuid() or ended["jobdir"] == cwd
    assert not Path(env["TMPDIR"]).exists()


def test_nodefile_has_a_line_for_each_mpi_process(site: Site) -> None:
    select = "select=2:ncpus=2:mpiprocs=2"
    job = site.ok(f"qsub -l {select} -j oe -koed -o $HOME/nodes.out -- /bin/bash -c 'cat $PBS_NODEFILE'")
    site.state(job, "F")
    assert (site.home / "nodes.out").read_text() == "alpha\n" * 4


def test_output_is_visible_while_the_job_runs(site: Site) -> None:
    job = site.ok("qsub -j oe -koed -o $HOME/live.out -- /bin/sh -c 'echo begun; sleep 60'")
    eventually(lambda: (site.home / "live.out").exists() and (site.home / "live.out").read_text() == "begun\n")
    assert site.job(job)["job_state"] == "R"
    site.ok(f"qdel {job}")


def test_output_is_delivered_at_the_end(site: Site) -> None:
    site.script("two.sh", "#!/bin/bash\necho out; echo err >&2\n")
    job = site.ok("qsub -N two two.sh")
    site.state(job, "F", 92)
    seq = job.partition(".")[0]
    assert (site.home / f"two.o{seq}").read_text() == "out\n"
    assert (site.home / f"two.e{seq}").read_text() == "err\n"
    assert (site.home / f"two.o{seq}").stat().st_mode & 0o777 == 0o600


def test_script_without_interpreter_and_directives(site: Site) -> None:
    job = site.ok("printf '#PBS -N named -l select=1:ncpus=3\\n#PBS -j oe\\necho $NCPUS; exit 4\\n' | qsub")
    ended = site.state(job, "F", 93)
    assert (ended["Job_Name"], ended["Resource_List"]["ncpus"], ended["Exit_status"]) == ("named", 3, 4)
    assert (site.home / f"named.o{job.partition('.')[0]}").read_text() == "3\n"


TRAPPED = """#!/usr/bin/python3
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
signal.signal(signal.SIGTERM, lambda *_: {action})
with open("{pids}.new", "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename("{pids}.new", "{pids}")
while True:
    time.sleep(0.05)
"""


def trapped(site: Site, name: str, action: str) -> tuple[str, int, int]:
    """A running job that does `action` on SIGTERM, with a plain child: job id and both pids."""
    pids = site.home / f"{name}.pids"
    site.script(name, TRAPPED.format(action=action, pids=pids))
    job = site.ok(f"qsub -N {name} -j oe -koed -o $HOME/{name}.out -- $HOME/{name}")
    eventually(pids.exists)
    leader, child = (int(pid) for pid in pids.read_text().split())
    site.running(job)
    return job, leader, child


def test_qdel_signals_every_process_and_kills_after_kill_delay(site: Site) -> None:
    job, leader, child = trapped(site, "stubborn", "None")
    site.ok(f"qdel {job}")
    eventually(lambda: not alive(child))
    marked = site.job(job)
    assert marked["job_state"] in "RF"
    assert marked["comment"].endswith(f"and terminated by {site.runner.alice}@alpha")
    ended = site.state(job, "F", 91)
    assert ended["Exit_status"] == 256 + signal.SIGKILL
    assert not alive(leader)


def test_qdel_of_a_program_that_exits_by_itself(site: Site) -> None:
    job, _, _ = trapped(site, "polite", "sys.exit(143)")
    site.ok(f"qdel {job}")
    assert site.state(job, "F", 91)["Exit_status"] == 143


def test_qdel_of_a_script_hides_the_status_of_what_it_ran(site: Site) -> None:
    site.script("hidden.sh", "#!/bin/bash\ntrap 'exit 7' TERM\nsleep 60 & wait\n")
    job = site.ok("qsub -S /bin/bash hidden.sh")
    site.until(job, lambda one: "session_id" in one)
    site.ok(f"qdel {job}")
    assert site.state(job, "F", 91)["Exit_status"] == 256 + signal.SIGTERM


def test_qsig_reaches_every_process(site: Site) -> None:
    job, leader, child = trapped(site, "signalled", "None")
    site.ok(f"qsig -s SIGUSR1 {job}")
    eventually(lambda: not alive(leader) and not alive(child))
    assert site.state(job, "F", 93)["Exit_status"] == 256 + signal.SIGUSR1
    assert site.sh(f"qsig -s NOSUCH {job}").exit_status == 35


def test_walltime_ends_a_job(site: Site) -> None:
    job = site.ok("qsub -l walltime=1 -j oe -koed -o $HOME/wall.out -- /bin/sleep 60")
    ended = site.state(job, "F", 93)
    assert ended["Exit_status"] == -29
    assert ended["comment"].endswith(" and exceeded resource walltime")
    assert (site.home / "wall.out").read_text() == "=>> PBS: job killed: walltime 1 exceeded limit 1\n"


def test_leftover_processes_end_with_the_job(site: Site) -> None:
    job = site.ok("qsub -j oe -koed -o $HOME/left.out -- /bin/sh -c 'sleep 600 & echo $!'")
    site.state(job, "F", 92)
    assert not alive(int((site.home / "left.out").read_text()))


def test_program_that_cannot_start(site: Site) -> None:
    job = site.ok("qsub -j oe -koed -o $HOME/none.out -- /nonexistent/program")
    assert site.state(job, "F", 93)["Exit_status"] == -1


def test_suspend_and_resume_are_for_managers(site: Site) -> None:
    job, leader, _ = trapped(site, "suspended", "sys.exit(0)")
    if os.geteuid() == 0:
        assert site.sh(f"qsig -s suspend {job}").exit_status == 159
    site.ok(f"qsig -s suspend {job}", user="root")
    assert site.state(job, "S", 43)
    eventually(lambda: Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    site.ok(f"qsig -s resume {job}", user="root")
    site.running(job)
    site.ok(f"qdel {job}")
    site.state(job, "F", 91)


def test_dates_are_written_in_the_callers_zone(site: Site) -> None:
    job = site.ok("qsub -h -- /bin/true")
    here = json.loads(site.ok(f"TZ=Asia/Tokyo qstat -f -F json {job}"))["Jobs"][job]["ctime"]
    utc = json.loads(site.ok(f"TZ=UTC qstat -f -F json {job}"))["Jobs"][job]["ctime"]
    assert (int(here[11:13]) - int(utc[11:13])) % 24 == 9
    site.ok(f"qdel {job}")


def test_state_E_has_the_recorded_shape() -> None:
    recorded = json.loads(json.loads((RECORDINGS / "main" / "jobs_live.json").read_text())["stdout"])["Jobs"]
    exiting = next(job for job in recorded.values() if job["job_state"] == "E")
    with minipbs(Config(hosts=(Host("pbs-x", 4),), server="pbs-x", dialect="main", end_delay=5.0,
                        resources_default={"walltime": "01:00:00"}), suffix="e") as runner:  # fmt: skip
        site = Site(runner)
        job = site.ok("printf 'sleep 1\\n' | qsub -N stdin -l select=1:ncpus=1")
        seen = {**job_shape(site.state(job, "E", 53)), "exec_vnode": ""}
        assert seen == {**job_shape(exiting), "exec_vnode": "", "comment": seen["comment"]}
        assert site.sh(f"qdel {job}").exit_status == 168


def test_restart_keeps_queued_running_and_ended_jobs(site: Site) -> None:
    site.script("brief.sh", "#!/bin/bash\nuntil [ -e go ]; do sleep 0.05; done; exit 5\n")
    lasting = site.ok("qsub -N lasting -l select=1:ncpus=2 -- /bin/sleep 600")
    ending = site.ok("qsub -N ending brief.sh")
    held = site.ok("qsub -N held -h -v A=1 brief.sh")
    array = site.ok("qsub -N many -J 0-3 -- /bin/sleep 600")
    before = {job: site.running(job) for job in (lasting, ending, array.replace("[]", "[2]"))}
    site.server.stop()
    assert site.sh("qstat").exit_status == 255
    (site.home / "go").touch()
    pid = before[lasting].get("session_id")
    site.server.start()
    assert site.state(ending, "F", 93)["Exit_status"] == 5
    again = site.running(lasting)
    assert (again["exec_vnode"], again["exec_host"]) == (before[lasting]["exec_vnode"], before[lasting]["exec_host"])
    assert again["ctime"] == before[lasting]["ctime"]
    assert pid in (None, again.get("session_id"))
    assert site.job(held)["Variable_List"]["A"] == 1
    assert site.job(array)["array_state_count"] == "Queued:0 Running:4 Exiting:0 Expired:0"
    site.ok(f"qrls {held}")
    assert site.state(held, "F")["Exit_status"] == 5  # its script came through as well
    next_job = site.ok("qsub -h brief.sh")
    assert int(next_job.partition(".")[0]) > int(array.partition("[")[0])
    for job in (lasting, array, next_job):
        site.ok(f"qdel '{job}'")
    site.state(lasting, "F", 91)


def test_stopping_for_good_leaves_no_process(site: Site) -> None:
    with minipbs(CONFIG, suffix="s") as runner:
        other = Site(runner)
        pids = []
        for number in range(5):
            out = other.home / f"{number}.out"
            other.ok(
                f"qsub -j oe -koed -o {out} -- /bin/sh -c 'trap \"\" TERM; echo $$; while true; do sleep 0.1; done'"
            )
        for number in range(5):
            out = other.home / f"{number}.out"
            eventually(lambda out=out: out.exists() and out.read_text().strip().isdigit())  # type: ignore[misc]
            pids.append(int(out.read_text()))
        server = runner.server.pid
    assert not alive(server)
    assert not any(alive(pid) for pid in pids)


def test_arrays_start_in_order_and_fill_what_is_free(site: Site) -> None:
    array = site.ok("qsub -N wide -J 0-5 -l select=1:ncpus=6 -- /bin/sleep 600")
    site.until(array, lambda job: job.get("array_state_count") == "Queued:4 Running:2 Exiting:0 Expired:0")
    assert site.job(array)["array_indices_remaining"] == "2-5"
    assert site.job(array.replace("[]", "[5]"))["job_state"] == "Q"
    for index, left in ((0, "Queued:3 Running:2 Exiting:0 Expired:1"), (4, "Queued:2 Running:2 Exiting:0 Expired:2")):
        subjob = array.replace("[]", f"[{index}]")
        site.ok(f"qdel '{subjob}'")
        site.until(array, lambda job, left=left: job.get("array_state_count") == left)  # type: ignore[misc]
    site.ok(f"qdel '{array}'")
    assert site.state(array, "F", 91)["array_state_count"] == "Queued:0 Running:0 Exiting:0 Expired:0"
