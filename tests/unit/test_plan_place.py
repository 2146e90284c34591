"""Would a job run in this queue, ever and at once? Hosts, domains, limits, routing; every answer with its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from complexes import Gi, all_together, census, each, job, limits, queue, vnode

from bridge.api.settings import NumaHosts
from bridge.plan import place
from bridge.plan.fit import Places
from bridge.plan.placement import Headroom, NumaWish
from pbs_adapter.models import Census, JobOptions
from pbs_adapter.remote.parse import Limit

H2 = (vnode("h", 0, 0), vnode("h[0]"), vnode("h[1]"))
FRAGMENTED = (vnode("h[0]", used=5), vnode("h[1]", used=4))
TABLE = (NumaHosts(hosts="fat*", domains=4), NumaHosts(hosts="*", domains=2))


def ask(ncpus: int = 1, mem: int = Gi, walltime: int = 60, **options: object) -> JobOptions:
    return JobOptions(ncpus, mem, walltime, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "where", "expected"),
    [  # (now, domains_now, domains_best, domains_most, largest_now)
        (ask(8), census(*H2), (True, (1, 1), 1, 2, 16)),
        (ask(9), census(*H2), (True, (2, 2), 2, 2, 16)),
        (ask(16), census(*H2), (True, (2, 2), 2, 2, 16)),
        (ask(1, 17 * Gi), census(*H2), (True, (2, 2), 2, 2, 16)),
        (ask(1, 32 * Gi), census(*H2), (True, (2, 2), 2, 2, 16)),
        (ask(4), census(*FRAGMENTED), (True, (1, 1), 1, 2, 7)),
        (ask(5), census(*FRAGMENTED), (True, (2, 2), 1, 2, 7)),
        (ask(8), census(*FRAGMENTED), (False, None, 1, 2, 7)),
        (ask(5), census(*FRAGMENTED, vnode("k[0]"), vnode("k[1]")), (True, (1, 2), 1, 2, 16)),
        (ask(6, place="vscatter"), census(*FRAGMENTED), (True, (2, 2), 1, 2, 7)),  # there is no other host
        (ask(6, place="vscatter"), census(*FRAGMENTED, vnode("k", 1)), (False, None, 1, 1, 4)),
        (ask(4, place="vscatter"), census(*FRAGMENTED, vnode("k", 1)), (True, (1, 1), 1, 1, 4)),
        (ask(5, place="scatter:shared"), census(*FRAGMENTED), (True, (2, 2), 1, 2, 7)),
        (ask(7), census(*(vnode(f"h[{i}]", used=u) for i, u in enumerate((2, 6, 7, 7)))), (True, (2, 4), 1, 4, 10)),
        (ask(8, place="excl"), census(vnode("h[0]", used=1), vnode("h[1]")), (True, (1, 1), 1, 2, 8)),
        (ask(8, place="exclhost"), census(vnode("h[0]", used=1), vnode("h[1]")), (False, None, 1, 2, 0)),
        (ask(8), census(vnode("h[0]", used=1, sharing="force_excl"), vnode("h[1]")), (True, (1, 1), 1, 2, 8)),
        (ask(8), census(vnode("h[0]", used=1, sharing="force_exclhost"), vnode("h[1]")), (False, None, 1, 2, 0)),
        (ask(7, place="excl"), census(vnode("h", used=1, sharing="ignore_excl")), (True, None, 0, 0, 7)),
        (ask(4), census(vnode("h", state="offline")), (False, None, 0, 0, 0)),
        (ask(4), census(vnode("h", state="job-busy", used=8)), (False, None, 0, 0, 0)),
        (ask(4), census(vnode("h")), (True, None, 0, 0, 8)),
        # a vnode that is away but large enough keeps PBS from breaking the chunk over the others
        (ask(6), census(vnode("h[0]", state="offline"), *(vnode(f"h[{i}]", 4) for i in (1, 2))),
         (False, None, 1, 3, 8)),
        (ask(6), census(vnode("h[0]", 5, state="offline"), *(vnode(f"h[{i}]", 4) for i in (1, 2))),
         (True, (2, 2), 2, 3, 8)),
        (ask(4), census(vnode("h", reservations=("R1.pbs",))), (None, None, 0, 0, 8)),
        (ask(4), census(vnode("h", reservations=("R1.pbs",)), vnode("k", 4)), (True, None, 0, 0, 8)),
        (ask(9), census(*H2[1:2], vnode("h[1]", reservations=("R1.pbs",))), (None, (2, 2), 2, 2, 16)),
        (ask(1, resources={"ngpus": 2}), census(vnode("g[0]", ngpus=1), vnode("g[1]", ngpus=1)),
         (True, (2, 2), 2, 2, 16)),
        (ask(1, resources={"ngpus": 1}), census(*H2), (None, (1, 1), 1, 1, 16)),
        (ask(1, resources={"model": "b"}), census(vnode("a", 9, model="a"), vnode("b", model="b,c")),
         (True, None, 0, 0, 8)),
        (ask(9, place="group=rack"), census(*H2), (None, (2, 2), 2, 2, 16)),
        (ask(8, place="group=rack"), census(*H2), (True, (1, 1), 1, 2, 16)),
    ],
)  # fmt: skip
def test_hosts_and_domains(options: JobOptions, where: Census, expected: tuple[object, ...]) -> None:
    found = place(options, None, where)
    assert found.ever, found
    shape = (found.now, found.domains_now, found.domains_best, found.domains_most, found.largest_now)
    assert shape == expected, found
    assert bool(found.waits) == (found.now is False)
    assert bool(found.doubts) == (found.now is None)


@pytest.mark.parametrize(
    ("options", "numa", "where", "expected"),
    [  # (ever, now, domains_now, domains_best)
        (ask(8), "prefer", census(vnode("n")), (True, True, (2, 2), 2)),
        (ask(4), "prefer", census(vnode("n")), (True, True, (1, 1), 1)),
        (ask(4), "prefer", census(vnode("n", used=4)), (True, True, (1, 2), 1)),
        (ask(2), "prefer", census(vnode("n", used=3)), (True, True, (1, 1), 1)),
        (ask(3), "prefer", census(vnode("n", used=3)), (True, True, (1, 1), 1)),
        (ask(1, 5 * Gi), "prefer", census(vnode("n", used_mem=8 * Gi)), (True, True, (1, 2), 1)),
        (ask(1, 9 * Gi), "prefer", census(vnode("n")), (True, True, (2, 2), 2)),
        (ask(3), "prefer", census(vnode("fat1")), (True, True, (2, 2), 2)),
        (ask(3), "prefer", census(vnode("fat1"), vnode("n")), (True, True, (1, 2), 1)),
        (ask(4), "require", census(vnode("n")), (True, True, (1, 1), 1)),
        (ask(5), "require", census(vnode("n")), (False, False, None, 0)),
        (ask(4), "require", census(vnode("n", used=4)), (True, None, (1, 2), 1)),
        (ask(3), "require", census(vnode("fat1")), (False, False, None, 0)),
        (ask(8), "require", census(*H2), (True, True, (1, 1), 1)),
        (ask(9), "require", census(*H2), (False, False, None, 0)),
        (ask(5), "require", census(*FRAGMENTED), (True, False, None, 1)),
        (ask(9), "ignore", census(*H2), (True, True, (2, 2), 2)),
    ],
)
def test_numa_by_vnodes_or_by_the_table(
    options: JobOptions, numa: NumaWish, where: Census, expected: tuple[object, ...]
) -> None:
    found = place(options, None, where, numa=numa, domains=TABLE)
    assert (found.ever, found.now, found.domains_now, found.domains_best) == expected, found


def test_without_a_table_a_single_vnode_is_not_known_to_be_one_domain() -> None:
    found = place(ask(4), None, census(vnode("n")), numa="require")
    assert (found.ever, found.now) == (True, None)
    assert "checked where the job starts" in found.doubts[0]


ONE = vnode("h")


@pytest.mark.parametrize(
    ("options", "name", "where", "refused"),
    [
        (ask(9), None, census(ONE), "asks ncpus 9, the largest host has 8"),
        (ask(9), None, census(*H2[1:], queues=(queue(resources_max={"ncpus": 8}),)),
         "asks ncpus 9, queue workq allows at most 8"),
        (ask(walltime=60), None, census(ONE, queues=(queue(resources_min={"walltime": 3600}),)),
         "asks walltime 60s, queue workq takes at least 3600s"),
        (ask(2), None, census(ONE, resources_max={"ncpus": 1}), "asks ncpus 2, the server allows at most 1"),
        (ask(), "gpu", census(ONE), "there is no queue gpu"),
        (ask(), None, census(ONE, queues=(queue(enabled=False),)), "queue workq takes no jobs now (it is disabled)"),
        (ask(), None, census(ONE, queues=(queue(from_route_only=True),)),
         "queue workq takes jobs from routing queues only"),
        (ask(), None, census(ONE, queues=(queue(acl_users=("bob", "-alice")),)), "queue workq does not admit alice"),
        (ask(5), None, census(ONE, queues=(queue(limits=limits(run_res={"ncpus": each(4)})),)),
         "asks ncpus 5, alice may use at most 4 in queue workq"),
        (ask(1, 2 * Gi), None, census(ONE, queues=(queue(limits=limits(queued_res={"mem": each(Gi)})),)),
         "asks mem 2Gi, alice may have at most 1Gi in queue workq"),
        (ask(), None, census(ONE, queues=(queue("workq", "a"), queue("a", enabled=False))),
         "queue a takes no jobs now (it is disabled)"),
        (ask(), None, census(ONE, queues=(queue("workq", "x@pbs"),)), "there is no queue x"),
        (ask(), None, census(ONE, queues=(queue("workq", "workq"),)), "queue workq routes to no queue here"),
        (ask(5), None, census(vnode("a", 4), vnode("b", 8, queue="b"), queues=(queue(), queue("b"))),
         "asks ncpus 5, the largest host has 4"),
        (ask(2, resources={"ngpus": 1}), None, census(vnode("g", 1, ngpus=1), vnode("c", 2)),
         "asks ncpus 2, mem 1Gi, ngpus 1 on one host, and no host has all of it"),
        (ask(resources={"model": "z"}), None, census(vnode("a", model="a")),
         "asks ncpus 1, mem 1Gi, model=z, and no host has it"),
        (ask(5), None, census(ONE, resources_available={"ncpus": 4}), "asks ncpus 5, the server has at most 4"),
        (ask(9, place="vscatter"), None, census(*H2, vnode("k", 1)), "asks ncpus 9, the largest vnode has 8"),
    ],
)  # fmt: skip
def test_never(options: JobOptions, name: str | None, where: Census, refused: str) -> None:
    found = place(options, name, where)
    assert (found.ever, found.now, found.largest_now) == (False, False, 0)
    assert "; ".join(found.refused) == refused


@pytest.mark.parametrize(
    ("options", "where", "waits"),
    [
        (ask(4), census(vnode("h", used=5)), "asks ncpus 4, the most free in one host is 3"),
        (ask(4, 4 * Gi), census(vnode("a", used=5), vnode("b", used_mem=14 * Gi)),
         "asks ncpus 4, mem 4Gi on one host, and no host has all of it free now"),
        (ask(5, place="vscatter"), census(*FRAGMENTED, vnode("k", 1)), "asks ncpus 5, the most free in one vnode is 4"),
        (ask(), census(vnode("h", state="down")), "asks ncpus 1, mem 1Gi, and no host has it free"),
        (ask(), census(ONE, queues=(queue(started=False),)), "queue workq is not started"),
        (ask(), census(ONE, scheduling=False), "the server starts no jobs now (scheduling is off)"),
        (ask(), census(ONE, queues=(queue(limits=limits(run=each(2))),), jobs=(job(), job(), job("bob"))),
         "alice may run 2 jobs in queue workq, and runs 2"),
        (ask(), census(ONE, limits=limits(run=(*each(9), Limit("u", "alice", 1))), jobs=(job(queue="other"),)),
         "alice may run 1 jobs on the server, and runs 1"),
        (ask(), census(ONE, queues=(queue(limits=limits(run=all_together(3)), state_count={"Running": 3}),)),
         "everybody may run 3 jobs in queue workq, and runs 3"),
        (ask(3), census(ONE, queues=(queue(limits=limits(run_res={"ncpus": each(4)})),), jobs=(job(ncpus=2),)),
         "asks ncpus 3, alice may use 4 in queue workq, and 2 are in use"),
        (ask(), census(ONE, queues=(queue(limits=limits(queued=each(2))),), jobs=(job(), job(state="Q"))),
         "alice may have 2 jobs in queue workq, and has 2"),
        (ask(), census(ONE, limits=limits(waiting=each(1)), jobs=(job(state="Q"), job())),
         "alice may have 1 waiting jobs on the server, and has 1"),
        (ask(), census(ONE, queues=(queue("workq", "a", started=False), queue("a"))), "queue workq is not started"),
        (ask(3), census(ONE, resources_available={"ncpus": 4}, resources_assigned={"ncpus": 2}),
         "asks ncpus 3, the server has 2 left"),
    ],
)  # fmt: skip
def test_not_now(options: JobOptions, where: Census, waits: str) -> None:
    found = place(options, None, where)
    assert (found.ever, found.now) == (True, False)
    assert "; ".join(found.waits) == waits


@pytest.mark.parametrize(
    ("where", "doubt"),
    [
        (census(ONE, queues=(queue(acl_groups=("staff",)),)), "queue workq admits members of some groups only"),
        (census(ONE, queues=(queue(limits=limits(run_res={"mem": each(2 * Gi)})),), jobs=(job(),)),
         "alice may use mem 2Gi in queue workq, and what their jobs have of it is not visible"),
        (replace(census(ONE, limits=limits(run=each(2))), jobs_at=0.0),
         "there are limits for a user on the server, and what the account has in PBS is not known yet"),
    ],
)  # fmt: skip
def test_what_cannot_be_known(where: Census, doubt: str) -> None:
    found = place(ask(), None, where)
    assert (found.ever, found.now, found.doubts) == (True, None, (doubt,))


def test_a_group_that_the_account_uses_already_admits_it() -> None:
    assert place(ask(), None, census(ONE, queues=(queue(acl_groups=("staff",)),), jobs=(job(),))).now is True


@pytest.mark.parametrize(
    ("options", "queues", "jobs", "expected"),
    [
        (ask(2), (queue("small", resources_max={"ncpus": 1}), queue("big")), (), ("big",)),
        (ask(1), (queue("small", resources_max={"ncpus": 1}), queue("big")), (), ("small", "big")),
        (ask(1), (queue("a", limits=limits(queued=each(1))), queue("b")), (job(queue="a"),), ("b", "a")),
        (ask(1), (queue("inner", "a"), queue("a", from_route_only=True), queue("b")), (), ("a", "b")),
    ],
)
def test_routing_queues_lead_to_the_first_that_takes_the_job(
    options: JobOptions, queues: tuple[object, ...], jobs: tuple[object, ...], expected: tuple[str, ...]
) -> None:
    names = [q.name for q in queues if q.name in ("small", "big", "a", "b", "inner")]  # type: ignore[attr-defined]
    entry = queue("workq", *(["inner", "b"] if "inner" in names else names))
    found = place(options, None, census(ONE, queues=(entry, *queues), jobs=jobs))  # type: ignore[arg-type]
    assert found.queues == expected


def test_a_queue_with_vnodes_of_its_own_has_only_these() -> None:
    where = census(vnode("a"), vnode("b", 4, queue="fast"), queues=(queue(), queue("fast")))
    assert place(ask(), "fast", where).largest_now == 4
    assert place(ask(), "workq", where).largest_now == 8


def test_what_the_limits_leave() -> None:
    rules = limits(run=each(5), queued=each(10), run_res={"ncpus": each(6)})
    found = place(ask(), None, census(ONE, queues=(queue(limits=rules),), jobs=(job(ncpus=2), job(state="Q"))))
    assert found.limits_left == Headroom(jobs=8, running=4, ncpus=4)
    assert found.largest_now == 4


def test_chunks_get_what_the_queue_adds() -> None:
    where = census(vnode("a", Qlist="x"), vnode("b", 4, Qlist="gpu,x"), queues=(queue(default_chunk={"Qlist": "gpu"}),))
    assert place(ask(4), None, where).now is True
    assert (
        place(ask(5), None, where).refused == ("asks ncpus 5, mem 1Gi, Qlist=gpu, and no host has it",)
        or "the largest host has 4" in place(ask(5), None, where).refused[0]
    )


def test_the_same_question_is_answered_once_for_each_census() -> None:
    places, where = Places(), census(ONE)
    assert places.of(ask(), None, where) is places.of(ask(), None, where)
    assert places.of(ask(9), None, census(vnode("h", 16))).now is True


def test_sizes_for_people() -> None:
    sizes = (
        Places(TABLE).survey(census(*FRAGMENTED, vnode("fat1", 32, used=30), vnode("off", 64, state="offline"))).sizes()
    )
    assert (sizes.free, sizes.now, sizes.ever, sizes.domain_now, sizes.domain_ever) == (9, 7, 64, 4, 32)
