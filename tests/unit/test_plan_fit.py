"""Can a job ever run? Hosts of several vnodes, queue and server limits, routing."""

from __future__ import annotations

import pytest
from complexes import Gi, census, queue, vnode

from bridge.plan import fit
from bridge.plan.fit import Fits
from pbs_adapter.models import Census, JobOptions
from pbs_adapter.remote.parse import Queue


def capped(name: str, **most: int) -> Queue:
    return queue(name, resources_max=most)


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
        (JobOptions(1, Gi, 7200), census(*TWO, queues=(capped("workq", walltime=3600),)),
         "asks walltime 7200s, queue workq allows at most 3600s"),
        (JobOptions(1, Gi, 7200, queue="long"), census(*TWO, queues=(capped("workq", walltime=60), queue("long"))), ""),
        (JobOptions(9, Gi, 60),
         census(*TWO, queues=(queue("workq", "a", "b@pbs"), capped("a", ncpus=4), capped("b", ncpus=8))),
         "asks ncpus 9, queue b allows at most 8"),
        (JobOptions(8, Gi, 60),
         census(*TWO, queues=(queue("workq", "a", "b@pbs"), capped("a", ncpus=4), queue("b"))), ""),
        (JobOptions(2, Gi, 60), census(*TWO, resources_max={"ncpus": 1}), "asks ncpus 2, the server allows at most 1"),
        (JobOptions(1, Gi, 60), census(vnode("n", 2, queue="other")), ""),
        (JobOptions(8, Gi, 60, place="vscatter"), census(*TWO), ""),
        (JobOptions(9, Gi, 60, place="vscatter:excl"), census(*TWO), "asks ncpus 9, the largest vnode has 8"),
        (JobOptions(4, Gi, 60), census(vnode("n", 8, queue="other"), vnode("m", 2)),
         "asks ncpus 4, the largest host has 2"),
    ],
)  # fmt: skip
def test_fit(options: JobOptions, where: Census, message: str) -> None:
    found = fit(options, where)
    assert (found.message, found.ever) == (message, not message)


def test_what_pbs_refuses_is_told_from_what_it_lets_wait_for_ever() -> None:
    found = fit(JobOptions(17, Gi, 7200), census(*TWO, queues=(capped("workq", walltime=3600),)))
    assert found.over == ("asks walltime 7200s, queue workq allows at most 3600s",)
    assert found.too_big == ("asks ncpus 17, the largest host has 16",)
    assert found.message == "; ".join(found.over + found.too_big)


def test_a_newer_census_is_asked_anew() -> None:
    fits, small, large = Fits(), census(vnode("a", 4)), census(vnode("a", 4), vnode("b", 8))
    assert not fits.of(JobOptions(8, Gi, 60), small).ever
    assert fits.of(JobOptions(8, Gi, 60), small) is fits.of(JobOptions(8, Gi, 60), small)
    assert fits.of(JobOptions(4, Gi, 60), small).ever
    assert fits.of(JobOptions(8, Gi, 60), large).ever
