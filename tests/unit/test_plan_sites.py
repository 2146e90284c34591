"""Clusters that are not like ours, from public reports: empty ones, and routing queues that lead to other servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from complexes import Gi, census, queue, server, vnode
from plancases import cluster

from bridge.nodes.capacity import capacity
from bridge.plan import fit, place
from bridge.plan.floor import promised, with_floor
from bridge.routing.load import Rooms
from pbs_adapter.models import Census, JobOptions
from pbs_adapter.remote.parse import parse_nodes, parse_queues

CASES = Path(__file__).parent / "fixtures/cases"
HOURS = 3600


def reported(queues: str, nodes: str = "") -> Census:
    """A census of recorded answers."""
    found = parse_queues((CASES / queues).read_bytes())
    vnodes = parse_nodes((CASES / nodes).read_bytes()) if nodes else {}
    name = "meta-pbs.example.org" if "remote-only" not in queues else "a"
    whole = census(queues=tuple(found.values()))
    return replace(whole, vnodes=tuple(vnodes.values()), server=server(name=name, default_queue="default"))


ROUTED = reported("C27-routing-queue.json", "C27-nodes.json")
LOCAL = replace(
    ROUTED,
    queues=tuple(
        q._replace(route_destinations=q.route_destinations[:2]) if q.name == "default" else q for q in ROUTED.queues
    ),
)
REMOTE = reported("C27b-remote-only.json")


def asks(hours: float, ncpus: int = 1) -> JobOptions:
    return JobOptions(ncpus, Gi, int(hours * HOURS))


def test_what_is_refused_is_told_the_largest_limit() -> None:
    """30 h: the queue of a day is nearer than that of two hours, and nobody should ask for less than there is."""
    told = "asks walltime 108000s, queue q_1d allows at most 86400s"
    assert fit(asks(30), LOCAL).over == (told,)
    assert place(asks(30), None, LOCAL).refused == (told,)
    assert place(asks(3), None, LOCAL).queues == ("q_1d",)
    swapped = replace(
        LOCAL,
        queues=tuple(
            q._replace(route_destinations=q.route_destinations[::-1]) if q.name == "default" else q
            for q in LOCAL.queues
        ),
    )
    assert place(asks(30), None, swapped).refused == (told,)


@pytest.mark.parametrize("where", [ROUTED, REMOTE], ids=["beside", "only"])
def test_a_queue_of_another_server_is_not_known_and_not_a_no(where: Census) -> None:
    assert fit(asks(30), where).ever
    found = place(asks(30), None, where)
    assert (found.ever, found.now, found.refused) == (True, None, ())
    assert "q_far@other-pbs.example.org, of which nothing is visible here" in "; ".join(found.doubts)
    room = Rooms().of(asks(30), found, where)
    assert room.slots >= 0


def test_a_queue_here_is_preferred_to_one_elsewhere() -> None:
    found = place(asks(1), None, ROUTED)
    assert (found.ever, found.now, found.queues[0]) == (True, False, "q_2h")
    assert found.doubts == ()


def test_what_the_server_refuses_stays_refused() -> None:
    strict = replace(REMOTE, server=REMOTE.server._replace(resources_max={"ncpus": 4}))
    assert not place(asks(1, 8), None, strict).ever
    assert not fit(asks(1, 8), strict).ever


def test_queues_with_names_like_ours_on_other_servers_are_not_ours() -> None:
    where = census(vnode("n", 4), queues=(queue("workq", "big@pbs.site", "big@other"), queue("big")))
    assert place(asks(1, 4), None, replace(where, server=server(name="pbs"))).queues == ("big",)
    away = census(vnode("n", 4), queues=(queue("workq", "big@other"), queue("big")))
    assert place(asks(1, 4), None, replace(away, server=server(name="pbs"))).queues == ()


EMPTY = replace(census(queues=(queue(), queue("gpu"))), vnodes=())
SHAPES = cluster(
    hostShapes=[
        {"queue": "workq", "cpu": 64, "memory": "256Gi", "count": 10},
        {"queue": "gpu", "cpu": 16, "memory": "64Gi", "count": 2, "resources": {"ngpus": 4}},
    ],
    queues=["workq", "gpu"],
    resources={"nvidia.com/gpu": "ngpus"},
    overcommit=1,
)


def test_an_empty_cluster_offers_what_the_settings_promise() -> None:
    assert not place(asks(1, 32), None, EMPTY).ever
    promise = with_floor(EMPTY, SHAPES.host_shapes)
    offer = capacity(promise, SHAPES)
    assert offer.capacity["cpu"] == str(10 * 64 + 2 * 16)
    assert offer.capacity["nvidia.com/gpu"] == "8"
    found = place(asks(1, 32), None, promise)
    assert (found.ever, found.now) == (True, False)
    assert fit(asks(1, 64), promise).ever
    assert "the largest host has 64" in fit(asks(1, 65), promise).message
    assert not place(asks(1, 64), "gpu", promise).ever
    gpus = JobOptions(8, Gi, HOURS, {"ngpus": 2})
    assert place(gpus, "gpu", promise).ever
    room = Rooms().of(asks(1, 32), found, promise)
    assert (room.slots, room.cores) == (0, 640)


def test_no_more_is_promised_than_is_missing() -> None:
    three = replace(EMPTY, vnodes=tuple(vnode(f"n{n}", 64, 256 * Gi) for n in range(3)))
    promise = with_floor(three, SHAPES.host_shapes)
    assert sum(promised(v) and v.queue == "workq" for v in promise.vnodes) == 7
    found = place(asks(1, 64), None, promise)
    assert (found.ever, found.now) == (True, True)  # real hosts have room, promised ones never have
    assert place(asks(1, 64), "gpu", promise).ever  # real hosts of no queue are open to each
    down = replace(EMPTY, vnodes=tuple(vnode(f"n{n}", 64, 256 * Gi, state="down") for n in range(3)))
    assert sum(promised(v) and v.queue == "workq" for v in with_floor(down, SHAPES.host_shapes).vnodes) == 10
    bound = replace(EMPTY, vnodes=tuple(vnode(f"n{n}", 64, 256 * Gi, queue="gpu") for n in range(3)))
    assert sum(promised(v) and v.queue == "workq" for v in with_floor(bound, SHAPES.host_shapes).vnodes) == 10


def test_a_promise_takes_no_real_host_away() -> None:
    """A queue without vnodes of its own keeps those of all, also when something is promised to it."""
    where = replace(EMPTY, vnodes=(vnode("n", 128, 512 * Gi),))
    assert place(asks(1, 128), None, with_floor(where, SHAPES.host_shapes)).ever
    assert Rooms().of(asks(1, 8), place(asks(1, 8), None, where), where).slots == 16
    promise = with_floor(where, SHAPES.host_shapes)
    assert Rooms().of(asks(1, 8), place(asks(1, 8), None, promise), promise).slots == 16


def test_without_shapes_nothing_is_added() -> None:
    assert with_floor(EMPTY, ()) is EMPTY
