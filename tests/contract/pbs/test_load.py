"""minipbs under load: jobs without processes of their own, and many jobs of another user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pbs_adapter.bundle import zipapp
from pbs_adapter.minipbs import Config, Host

from .runner import minipbs
from .site import Site, eventually

CONFIG = Config(
    server="alpha",
    hosts=(Host("alpha", 64, 64 << 30),),
    resources_default={"walltime": "01:00:00"},
    kill_delay=1.0,
    simulate=True,
    users=("carol",),
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with minipbs(CONFIG) as runner:
        yield Site(runner)


def submit(site: Site, uid: str, *commands: str, walltime: int = 600) -> tuple[str, Path]:
    """A pod directory made and submitted as the helper does; the job's id, and the directory."""
    name, content = zipapp("podrun")
    folder = site.home / "spool" / "pods" / uid
    containers = [
        {"name": f"c{n}", "runtime": "host", "argv": ["/bin/sh", "-c", line]} for n, line in enumerate(commands)
    ]
    document = {"version": 1, "uid": uid, "name": uid, "restart_policy": "Never", "containers": containers}
    site.ok(f"mkdir -p {folder}; chmod 700 spool")
    for path, data in ((folder / "pod.json", json.dumps(document).encode()), (site.home / name, content)):
        path.write_bytes(data)
        path.chmod(0o644)
    options = f"-r n -j oe -koed -o {folder}/job.out -l select=1:ncpus=1:mem=1gb -l walltime={walltime}"
    return site.ok(f"qsub {options} -- /usr/bin/python3 {site.home}/{name} {folder}"), folder


def shown(folder: Path) -> dict[str, str]:
    """status.json as it is now."""
    try:
        found: dict[str, str] = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {"phase": ""}
    return found


def test_jobs_run_and_end_in_one_program(site: Site) -> None:
    jobs = [submit(site, f"pod-{n}", f"echo {n}; sleep 0.5; exit {n}") for n in range(3)]
    ended = [site.state(job, "F") for job, _ in jobs]
    assert [job["Exit_status"] for job in ended] == [0, 1, 2]
    assert [shown(folder)["result"] for _, folder in jobs] == ["Succeeded", "Failed", "Failed"]
    assert len({job["session_id"] for job in ended}) == 1


def test_qdel_ends_a_simulated_job_with_its_last_status(site: Site) -> None:
    job, folder = submit(site, "deleted", "sleep 1000")
    eventually(lambda: shown(folder)["phase"] == "Running")
    site.ok(f"qdel {job}")
    assert site.state(job, "F")["Exit_status"] == 143
    assert shown(folder)["reason"] == "PBSJobDeleted"


def test_walltime_ends_a_simulated_job(site: Site) -> None:
    job, folder = submit(site, "overdue", "sleep 1000", walltime=1)
    assert site.state(job, "F")["Exit_status"] == -29
    assert shown(folder)["reason"] == "PBSJobDeleted"


def test_other_commands_are_real_processes(site: Site) -> None:
    job = site.ok("qsub -j oe -o /dev/null -l select=1:ncpus=1 -- /bin/sh -c 'exit 5'")
    assert site.state(job, "F")["Exit_status"] == 5


def test_twenty_thousand_jobs_of_another_user(site: Site) -> None:
    site.server.fill("carol", 20_000)
    assert len(site.ok("qselect -u carol").split()) == 20_000
    assert site.ok("qstat -u $(id -un) -w") == ""
    with pytest.raises(ValueError, match="Unknown queue"):
        site.server.fill("carol", 1, "-q", "nowhere")
