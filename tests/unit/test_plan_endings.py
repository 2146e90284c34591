"""How long PBS lets a job live after its SIGTERM, and how a pod shows its wall."""

from __future__ import annotations

from dataclasses import replace

import censuses
import pytest

from bridge.plan.endings import kill_delay
from bridge.pods.containers import Waiting, container_status, isolation
from pbs_adapter.models import Census


def census(**queues: tuple[int | None, tuple[str, ...]]) -> Census:
    """Queues by name: their kill_delay, and where they route to. `normal` is the default one."""
    base = censuses.census()
    made = tuple(
        base.queues[0]._replace(name=name, kill_delay=delay, route_destinations=ways)
        for name, (delay, ways) in queues.items()
    )
    return replace(base, server=base.server._replace(default_queue="normal", name="alpha"), queues=made)


SITE = census(
    normal=(30, ()),
    short=(3, ()),
    silent=(None, ()),
    route=(99, ("normal", "short@alpha", "far@beta")),
    nested=(None, ("route", "nested", "silent")),
)


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (None, 30),
        ("short", 3),
        ("silent", 10),
        ("route", 3),  # wherever PBS puts it; a routing queue's own value means nothing
        ("nested", 3),
        ("unknown", None),
    ],
)
def test_the_shortest_kill_delay_of_the_queues_that_may_run_it(queue: str | None, expected: int | None) -> None:
    assert kill_delay(queue, SITE) == expected
    assert kill_delay(queue, None) is None


@pytest.mark.parametrize(
    ("told", "made"),
    [
        ("bubblewrap", "pbs+bubblewrap"),
        ("apptainer,none", "pbs+apptainer+none"),
        (None, "pbs"),
        ("", "pbs"),
        ("bubblewrap,", "pbs"),
        ("a\nb", "pbs"),
        (7, "pbs"),
    ],
)
def test_a_container_shows_its_wall(told: object, made: str) -> None:
    run = {"state": "running", "run": 1, "last": {"run": 0, "exit_code": 1}}
    wall = isolation({"isolation": told})
    shown = container_status(
        {"name": "main", "image": "x"}, run, Waiting("", ""), job="5.alpha", ended=False, now=1.0, wall=wall
    )
    assert shown["containerID"] == f"{made}://5.alpha/main/1"
    assert shown["lastState"]["terminated"]["containerID"] == f"{made}://5.alpha/main/0"
