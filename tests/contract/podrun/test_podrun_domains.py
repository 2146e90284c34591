"""A pod that requires one NUMA domain: it runs there, or the job is handed back before anything was started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from podrunkit import Pod, container

CPUS = sorted(os.sched_getaffinity(0))


def domains(pod: Pod, *cpulists: str) -> None:
    """Let podrun see a host with these domains."""
    folder: Path = pod.spool / "nodes"
    for number, cpulist in enumerate(cpulists):
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}" / "cpulist").write_text(cpulist + "\n")
    pod.environment["HPC_BRIDGE_NUMA_NODES"] = str(folder)


def halves() -> tuple[str, str]:
    if len(CPUS) < 2:
        pytest.skip("one CPU cannot be in two domains")
    return ",".join(map(str, CPUS[:1])), ",".join(map(str, CPUS[1:]))


def test_one_domain_will_do(pod: Pod) -> None:
    domains(pod, "0-8191", "8192-9000")
    status = pod.write(container("main", "echo well"), numa={"require": True, "vnodes": False}).run()
    assert status["result"] == "Succeeded"
    assert pod.output() == b"well\n"
    assert (status["numa"]["domains"], status["numa"]["of"], status["numa"]["confined"]) == (1, 2, True)


def test_several_are_handed_back_before_anything_starts(pod: Pod) -> None:
    domains(pod, *halves())
    pod.write(container("main", "echo never"), numa={"require": True, "vnodes": False}, setup=["touch $HOME/setup"])
    status = pod.run()
    assert (status["phase"], status["result"], status["reason"]) == ("Ended", "Failed", "NUMASplit")
    assert f"{os.uname().nodename}: in 2 of the 2 NUMA domains" in status["message"]
    assert pod.state()["state"] == "waiting"
    assert not pod.path("logs/main/0.log").exists()
    assert not (pod.spool / "setup").exists()
    assert pod.process is not None
    assert pod.process.returncode == 1


@pytest.mark.parametrize("numa", [{"require": True, "vnodes": True}, {"require": False}, {}])
def test_who_does_not_ask_or_has_a_vnode_runs(pod: Pod, numa: dict[str, bool]) -> None:
    domains(pod, *halves())
    assert pod.write(container("main", "exit 0"), numa=numa).run()["result"] == "Succeeded"
