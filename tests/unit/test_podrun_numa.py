"""The NUMA domains that a job may use: the kernel's lists, hosts of several kinds, and what is told of a split."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbs_adapter.remote import podrun_numa
from pbs_adapter.remote.podrun_numa import Given, look, numbers, split

TWO = {0: frozenset(range(8)), 1: frozenset(range(8, 16))}
ONE = {0: frozenset(range(16))}


def host(tmp_path: Path, cpus: str, mems: str, **nodes: str) -> Given:
    """What is read on a host whose node folders have these CPU lists."""
    folder = tmp_path / "node"
    for name, cpulist in nodes.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "cpulist").write_text(cpulist + "\n")
    (folder / "online").write_text("0-1\n") if folder.exists() else None
    status = (
        f"Name:\tx\nCpus_allowed:\tffff\nCpus_allowed_list:\t{cpus}\nMems_allowed:\t3\nMems_allowed_list:\t{mems}\n"
    )
    (tmp_path / "status").write_text(status)
    return look(str(folder), str(tmp_path / "status"))


def test_the_lists_are_read(tmp_path: Path) -> None:
    given = host(tmp_path, "0-3,8", "0-1", node0="0-7", node1="8-15", node2="")  # node2: memory only
    assert given == Given("0-3,8", "0-1", TWO)
    assert given.shown() == {"cpus": "0-3,8", "mems": "0-1", "domains": 2, "of": 2, "confined": True}


def test_a_kernel_without_numa_is_one_domain(tmp_path: Path) -> None:
    given = host(tmp_path, "0-3", "0")
    assert given.domains == {}
    assert split(given, by_vnodes=False) == ""
    assert given.shown()["confined"] is False


def test_this_machine_can_be_read() -> None:
    given = look()
    assert numbers(given.cpus)


@pytest.mark.parametrize(
    ("cpus", "mems", "domains", "by_vnodes", "said"),
    [
        ("0-7", "0", TWO, False, ""),
        ("0-3", "0-1", TWO, False, ""),  # memory is not fenced, as PBS ships it
        ("8-15", "0-1", TWO, True, ""),
        ("0-15", "0-1", ONE, False, ""),
        ("0-15", "0-1", TWO, True, ""),  # PBS keeps books of vnodes and confines nobody
        ("0-15", "0-1", TWO, False, "in 2 of the 2 NUMA domains"),
        ("6-9", "0-1", TWO, False, "in 2 of the 2 NUMA domains"),
        ("6-9", "0-1", TWO, True, "in 2 of the 2 NUMA domains"),  # confined, and not as PBS's books say
        ("0-3", "1", TWO, False, "of NUMA domain 0, without its memory"),
        ("", "", TWO, False, "in 0 of the 2 NUMA domains"),
    ],
)
def test_what_is_split(cpus: str, mems: str, domains: dict[int, frozenset[int]], by_vnodes: bool, said: str) -> None:
    text = split(Given(cpus, mems, domains), by_vnodes)
    assert text.endswith(said)
    assert bool(text) == bool(said)
    if said:
        assert f"CPUs {cpus} and memory of nodes {mems} on " in text


def test_another_folder_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node3").mkdir()
    (tmp_path / "node3" / "cpulist").write_text("0-4095\n")
    monkeypatch.setenv("HPC_BRIDGE_NUMA_NODES", str(tmp_path))
    assert podrun_numa.look().used == {3}
