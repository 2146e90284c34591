"""Can a job ever run? Hosts of several vnodes, queue and server limits, routing."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.plan import fit
from bridge.plan.fit import Fits
from pbs_adapter.models import Census, JobOptions
from pbs_adapter.remote.parse import Limits, Queue, Server, Vnode

Gi = 1 << 30
LIMITS = Limits((), (), {}, {}, ())


def server(**resources_max: Any) -> Server:
    fields: dict[str, Any] = dict.fromkeys(Server._fields)
    return Server(**fields | {"default_queue": "workq", "resources_max": resources_max, "limits": LIMITS})


def queue(name: str, *destinations: str, **resources_max: Any) -> Queue:
    fields: dict[str, Any] = dict.fromkeys(Queue._fields)
    own = {"name": name, "resources_max": resources_max, "route_destinations": destinations, "limits": LIMITS}
    return Queue(**fields | own)


def vnode(name: str, ncpus: int = 8, mem: int = 16 * Gi, queue: str = "", **available: Any) -> Vnode:
    fields: dict[str, Any] = dict.fromkeys(Vnode._fields)
    own = {"name": name, "host": name.split("[")[0], "ncpus": ncpus, "mem": mem, "queue": queue}
    return Vnode(**fields | own | {"available": {"ncpus": ncpus, "mem": mem} | available})


def census(*vnodes: Vnode, queues: tuple[Queue, ...] = (queue("workq"),), **server_max: Any) -> Census:
    return Census(0, server(**server_max), queues, vnodes, {})


TWO = (vnode("n1[0]"), vnode("n1[1]"), vnode("n2", 4, 64 * Gi))


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        (JobOptions(16, Gi, 60), census(*TWO), ""),
        (JobOptions(4, 64 * Gi, 60), census(*TWO), ""),
        (JobOptions(17, Gi, 60), census(*TWO), "asks ncpus 17, the largest host has 16"),
        (JobOptions(1, 65 * Gi, 60), census(*TWO), "asks mem 65Gi, the largest host has 64Gi"),
        (JobOptions(16, 64 * Gi, 60), census(*TWO), "asks ncpus 16, mem 64Gi on one host, and no host has all of it"),
        (JobOptions(1, Gi, 60, {"ngpus": 2}), census(vnode("g", ngpus=1)), "asks ngpus 2, the largest host has 1"),
        (JobOptions(1, Gi, 60, {"ngpus": 2}), census(*TWO), ""),  # no host reports it: PBS decides
        (JobOptions(1, Gi, 60, {"scratch": "5kb"}), census(*TWO), ""),
        (JobOptions(1, Gi, 60), census(), ""),
        (JobOptions(1, Gi, 7200), census(*TWO, queues=(queue("workq", walltime=3600),)),
         "asks walltime 7200s, queue workq allows at most 3600s"),
        (JobOptions(1, Gi, 7200, queue="long"), census(*TWO, queues=(queue("workq", walltime=60), queue("long"))), ""),
        (JobOptions(9, Gi, 60),
         census(*TWO, queues=(queue("workq", "a", "b@x"), queue("a", ncpus=4), queue("b", ncpus=8))),
         "asks ncpus 9, queue a allows at most 4"),
        (JobOptions(8, Gi, 60), census(*TWO, queues=(queue("workq", "a", "b@x"), queue("a", ncpus=4), queue("b"))), ""),
        (JobOptions(2, Gi, 60), census(*TWO, ncpus=1), "asks ncpus 2, the server allows at most 1"),
        (JobOptions(1, Gi, 60), census(vnode("n", 2, queue="other")), ""),
        (JobOptions(4, Gi, 60), census(vnode("n", 8, queue="other"), vnode("m", 2)),
         "asks ncpus 4, the largest host has 2"),
    ],
)  # fmt: skip
def test_fit(options: JobOptions, where: Census, message: str) -> None:
    found = fit(options, where)
    assert (found.message, found.ever) == (message, not message)


def test_what_pbs_refuses_is_told_from_what_it_lets_wait_for_ever() -> None:
    found = fit(JobOptions(17, Gi, 7200), census(*TWO, queues=(queue("workq", walltime=3600),)))
    assert found.over == ("asks walltime 7200s, queue workq allows at most 3600s",)
    assert found.too_big == ("asks ncpus 17, the largest host has 16",)
    assert found.message == "; ".join(found.over + found.too_big)


def test_a_newer_census_is_asked_anew() -> None:
    fits, small, large = Fits(), census(vnode("a", 4)), census(vnode("a", 4), vnode("b", 8))
    assert not fits.of(JobOptions(8, Gi, 60), small).ever
    assert fits.of(JobOptions(8, Gi, 60), small) is fits.of(JobOptions(8, Gi, 60), small)
    assert fits.of(JobOptions(4, Gi, 60), small).ever
    assert fits.of(JobOptions(8, Gi, 60), large).ever
