"""What a node offers, from recorded and changed censuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from censuses import census, cluster

from bridge.nodes.capacity import binary, capacity, decimal, usable_queues
from bridge.plan import quantity
from pbs_adapter.models import Census
from pbs_adapter.remote.parse import Limit, Vnode

GIB = 1 << 30


def vnodes(found: Census, **by_name: dict[str, Any]) -> Census:
    """The census with fields of the vnodes `d0` and `d1` (the two NUMA domains) changed."""

    def changed(vnode: Vnode) -> Vnode:
        return vnode._replace(**by_name.get(f"d{vnode.name[-2]}" if vnode.name.endswith("]") else "", {}))

    return replace(found, vnodes=tuple(changed(v) for v in found.vnodes))


@pytest.mark.parametrize("dialect", ["main", "release"])
def test_all_that_is_up_times_the_overcommit(dialect: str) -> None:
    offer = capacity(census(dialect), cluster(overcommit=1.5))
    assert offer.capacity == {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "0"}
    assert offer.allocatable == {"cpu": "96", "memory": "384Gi", "pods": "500", "ephemeral-storage": "0"}
    assert (offer.host_ncpus, offer.host_mem) == (64, 256 * GIB)
    assert (offer.domain_ncpus, offer.domain_mem) == (32, 128 * GIB)


def test_nothing_is_offered_twice_unless_the_admin_asks() -> None:
    offer = capacity(census(), cluster())
    assert offer.allocatable == offer.capacity
    assert offer.capacity["cpu"] == "64"


def test_vnodes_that_are_down_do_not_count_and_full_ones_do() -> None:
    found = vnodes(census(), d0={"up": False}, d1={"states": frozenset(["job-busy"])})
    offer = capacity(found, cluster(overcommit=1))
    assert offer.capacity["cpu"] == "32"
    assert offer.host_ncpus == 32


def test_whole_cores_and_kibibytes() -> None:
    found = vnodes(census(), d0={"ncpus": 1, "mem": 3 * 1024 + 5}, d1={"ncpus": 0, "mem": 0})
    offer = capacity(found, cluster(overcommit=1.5))
    assert (offer.allocatable["cpu"], offer.allocatable["memory"]) == ("1", "4Ki")


def test_vnodes_of_other_queues_do_not_count() -> None:
    found = vnodes(census(), d0={"queue": "gpu"})
    assert capacity(found, cluster(overcommit=1)).capacity["cpu"] == "32"
    assert capacity(found, cluster(overcommit=1, queues=["gpu"])).capacity["cpu"] == "64"


def test_a_routing_queue_offers_what_its_destinations_have() -> None:
    found = census()
    route = found.queues[0]._replace(
        name="in", type="Route", route_destinations=(f"gpu@{found.server.name}", "missing", "workq@elsewhere")
    )
    found = replace(found, queues=(*found.queues, route))
    assert [q.name for q in usable_queues(found, cluster(queue="in"))] == ["in", "gpu"]


def test_limits_of_queue_and_server_bound_the_offer() -> None:
    found = census()
    queue = found.queues[0]._replace(
        limits=found.queues[0].limits._replace(
            max_queued=(Limit("u", "PBS_GENERIC", 40), Limit("u", "alice", 60)),
            max_run_res={"ncpus": (Limit("u", "PBS_GENERIC", 16),)},
        )
    )
    server = found.server._replace(limits=found.server.limits._replace(max_queued=(Limit("o", "PBS_ALL", 50),)))
    found = replace(found, queues=(queue, *found.queues[1:]), server=server)
    offer = capacity(found, cluster(overcommit=2))
    assert (offer.capacity["cpu"], offer.allocatable["cpu"], offer.capacity["pods"]) == ("16", "32", "40")
    assert capacity(found, cluster(), user="alice").capacity["pods"] == "50"
    assert capacity(found, cluster(pods=7)).capacity["pods"] == "7"


def test_mapped_resources() -> None:
    found = vnodes(census(), d0={"available": {"ngpus": 4, "scratch": 10 * GIB}}, d1={"available": {"ngpus": 2}})
    settings = cluster(overcommit=1, resources={"nvidia.com/gpu": "ngpus", "ephemeral-storage": "scratch"})
    offer = capacity(found, settings)
    assert (offer.capacity["nvidia.com/gpu"], offer.capacity["ephemeral-storage"]) == ("6", "10Gi")


def test_an_empty_cluster_offers_nothing() -> None:
    offer = capacity(replace(census(), vnodes=()), cluster())
    assert (offer.capacity["cpu"], offer.capacity["memory"], offer.host_ncpus) == ("0", "0", 0)


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 2_000_000, 1024, 3 << 40])
def test_canonical_forms_mean_the_number(number: int) -> None:
    assert quantity.parse(decimal(number)) == number
    assert quantity.parse(binary(number)) == number
