"""Small complexes, all of them: `place` against a placer that tries every way, and against minipbs's scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import pytest
from complexes import Gi, census, vnode

from bridge.plan.survey import Survey
from pbs_adapter.minipbs import placement as mini
from pbs_adapter.models import JobOptions
from pbs_adapter.remote.parse import Vnode

SIZE = 2  # cores and GiB of every vnode
PLACES = (None, "vscatter", "exclhost")
Domain = tuple[int, int]  # cores and GiB in use
Layout = tuple[tuple[Domain, ...], ...]  # the domains of each host


def layouts(hosts: int, domains: int, *, memory: bool) -> Iterator[Layout]:
    """Every use of so many hosts; hosts and domains are alike, so orders of hosts are left out."""
    used = [(c, m) for c in range(SIZE + 1) for m in (range(SIZE + 1) if memory else [0])]
    each = list(product(used, repeat=domains))
    for chosen in product(range(len(each)), repeat=hosts):
        if list(chosen) == sorted(chosen):
            yield tuple(each[index] for index in chosen)


def ways(host: tuple[Domain, ...], cores: int, memory: int, place: str, *, alone: bool) -> set[int]:
    """The numbers of domains that the scheduler may put one chunk on, by trying vnodes in every order."""
    exclusive, whole = "excl" in place, "exclhost" in place
    free = [(SIZE - c, SIZE - m) for c, m in host]
    taken = [c > 0 or m > 0 for c, m in host]
    if whole and any(taken):
        return set()
    ready = [i for i, (c, _) in enumerate(free) if c > 0 and not (exclusive and taken[i])]
    if any(free[i][0] >= cores and free[i][1] >= memory for i in ready):
        return {1}
    if ("vscatter" in place and not alone) or any(c >= cores and m >= memory for c, m in free):
        return set()
    found = set()
    for order in permutations(ready):
        need, used = [cores, memory], 0
        for i in order:
            given = [min(need[0], free[i][0]), min(need[1], free[i][1])]
            if any(given):
                used += 1
                need = [need[0] - given[0], need[1] - given[1]]
            if not any(need):
                found.add(used)
                break
    return found


def vnodes(layout: Layout) -> list[Vnode]:
    return [
        vnode(
            f"h{number}[{index}]", SIZE, SIZE * Gi, used=cores, used_mem=memory * Gi,
            state="job-busy" if cores == SIZE else "free",
        )
        for number, host in enumerate(layout)
        for index, (cores, memory) in enumerate(host)
    ]  # fmt: skip


def minipbs(layout: Layout) -> mini.Cluster:
    return mini.Cluster(
        [
            mini.Vnode(
                f"h{number}[{index}]", f"h{number}", {"ncpus": SIZE, "mem": SIZE * Gi},
                {"ncpus": cores, "mem": memory * Gi}, {"7.x": False} if cores or memory else {},
            )
            for number, host in enumerate(layout)
            for index, (cores, memory) in enumerate(host)
        ]
    )  # fmt: skip


def starts(cluster: mini.Cluster, cores: int, memory: int, place: str) -> bool:
    arrangement = "vscatter" if "vscatter" in place else "free"
    sharing = next((word for word in ("exclhost", "excl") if word in place), "shared")
    chunk = mini.Chunk(1, (("ncpus", cores), ("mem", memory * Gi)))
    return not isinstance(cluster.find((chunk,), mini.Place(arrangement, sharing)), mini.Refusal)


@pytest.mark.parametrize(
    ("hosts", "domains", "memory"),
    [(1, 1, True), (1, 2, True), (2, 1, True), (1, 3, False), (2, 2, False), (3, 1, False)],
)
def test_every_small_complex(hosts: int, domains: int, memory: bool) -> None:
    most = SIZE * domains + 1
    for layout in layouts(hosts, domains, memory=memory):
        survey, cluster = Survey(census(*vnodes(layout))), minipbs(layout)
        for cores, gigabytes, place in product(range(1, most + 1), range(1, most if memory else 2), PLACES):
            told = survey.place(JobOptions(cores, gigabytes * Gi, 60, place=place), None, "prefer")
            possible = set().union(*(ways(host, cores, gigabytes, place or "", alone=hosts == 1) for host in layout))
            case = f"{layout} ncpus={cores} mem={gigabytes}gb place={place}: {told}"
            assert told.now is bool(possible), case
            assert told.now is starts(cluster, cores, gigabytes, place or ""), case
            together = SIZE if "vscatter" in (place or "") and hosts > 1 else SIZE * domains
            assert told.ever is (max(cores, gigabytes) <= together), case
            if possible and domains > 1:
                fewest, largest = told.domains_now or (0, 0)
                assert fewest <= min(possible), case
                assert largest >= max(possible), case
                assert memory or (fewest, largest) == (min(possible), max(possible)), case
