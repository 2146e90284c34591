"""`numa: require` on its way to PBS, and the domains that a job came to have."""

from __future__ import annotations

import json

import pytest
from complexes import Gi, census, vnode
from plancases import annotated, cluster, frozen

from bridge.api import reasons
from bridge.api.settings import NumaHosts
from bridge.plan import fit, plan
from bridge.plan.numa import Span, domain_vnodes, kept_whole, span
from pbs_adapter.models import Census, JobOptions

NUMA = census(vnode("h", 0, 0), vnode("h[0]"), vnode("h[1]"), vnode("k[0]"), vnode("k[1]"))
ALONE = census(vnode("h[0]"), vnode("h[1]"))
FLAT = census(vnode("a"), vnode("b"))
MIXED = census(vnode("a"), vnode("h[0]"), vnode("h[1]"))


@pytest.mark.parametrize(
    ("wish", "place", "where", "expected"),
    [  # (place, numa_by_vnodes)
        ("require", None, NUMA, ("vscatter", True)),
        ("require", None, MIXED, ("vscatter", True)),
        ("require", "pack:excl", NUMA, ("vscatter:excl", True)),
        ("require", "group=rack", NUMA, ("vscatter:group=rack", True)),
        ("require", None, ALONE, ("vscatter", False)),  # one host alone: PBS breaks the chunk all the same
        ("require", "excl", FLAT, ("excl", False)),
        ("require", None, None, (None, False)),
        ("prefer", "excl", NUMA, ("excl", False)),
        ("ignore", None, NUMA, (None, False)),
    ],
)
def test_require_is_submitted_by_the_means_of_pbs(
    wish: str, place: str | None, where: Census | None, expected: tuple[str | None, bool]
) -> None:
    pod = annotated(numa=wish, **({"place": place} if place else {}))
    made = kept_whole(plan(pod, cluster(placements=["pack", "excl", "group"])), where)
    assert (made.options.place, made.numa_by_vnodes) == expected


def test_the_wish_is_read_and_nonsense_refused() -> None:
    assert plan(annotated(numa="prefer"), cluster()).numa == "prefer"
    assert plan(annotated(), cluster()).numa is None
    refused = plan(annotated(numa="always"), cluster())
    assert refused.reason == reasons.INVALID_ANNOTATION
    assert "write ignore, prefer or require" in refused.message
    assert refused.numa is None


def test_podrun_is_told() -> None:
    document = json.loads(frozen(annotated(numa="require")).files[0].content)
    assert document["numa"] == {"require": True, "vnodes": False}
    assert "numa" not in json.loads(frozen(annotated(numa="prefer")).files[0].content)


@pytest.mark.parametrize(
    ("ncpus", "where", "table", "said"),
    [
        (8, NUMA, 0, ""),
        (9, NUMA, 0, "asks ncpus 9, the largest NUMA domain has 8"),
        (9, ALONE, 0, "asks ncpus 9, the largest NUMA domain has 8"),
        (8, FLAT, 0, ""),  # nobody knows its domains: podrun looks
        (8, FLAT, 2, "asks ncpus 8, the largest NUMA domain has 4"),
        (4, FLAT, 2, ""),
    ],
)
def test_what_no_domain_holds_is_told_before_it_is_submitted(ncpus: int, where: Census, table: int, said: str) -> None:
    domains = [NumaHosts(hosts="*", domains=table)] if table else []
    assert fit(JobOptions(ncpus, Gi, 60), where, numa="require", domains=domains).message == said
    assert fit(JobOptions(ncpus, Gi, 60), where, numa="prefer", domains=domains).message == ""


CPUSET = {"cpus": "0-7", "mems": "0-1", "domains": 1, "of": 2, "confined": True}


@pytest.mark.parametrize(
    ("exec_vnode", "podrun", "expected"),
    [
        ("(h[0]:ncpus=4)", None, Span(1, "exec_vnode", "h[0]")),
        ("(h[0]:ncpus=4:mem=1gb+h[1]:mem=1gb)", None, Span(2, "exec_vnode", "h[0],h[1]")),
        ("(h[0]:ncpus=4)", CPUSET | {"domains": 2}, Span(1, "exec_vnode", "h[0]")),
        ("(a:ncpus=4)", CPUSET, Span(1, "cpuset", "0-7")),
        ("", CPUSET, Span(1, "cpuset", "0-7")),
        ("", CPUSET | {"domains": 2}, Span(2, "cpuset", "0-7")),
        ("", CPUSET | {"confined": False}, None),  # it may run anywhere, which says nothing
        ("", CPUSET | {"confined": False, "of": 1}, Span(1, "cpuset", "0-7")),
        ("(a:ncpus=4)", None, None),
        ("(broken", None, None),
        ("", CPUSET | {"domains": 0}, None),
        ("", CPUSET | {"domains": 3}, None),
        ("", CPUSET | {"domains": True}, None),
        ("", CPUSET | {"domains": 10**9, "of": 10**9}, None),
        ("", CPUSET | {"cpus": "0-7\n"}, None),
        ("", CPUSET | {"cpus": ["0"]}, None),
        ("", ["nonsense"], None),
    ],
)
def test_what_a_job_has(exec_vnode: str, podrun: object, expected: Span | None) -> None:
    assert span(exec_vnode, podrun, domain_vnodes(MIXED.vnodes)) == expected


def test_the_annotation() -> None:
    found = Span(2, "exec_vnode", "h[0],h[1]")
    assert found.text((1, 2)) == '{"domains":2,"by":"exec_vnode","on":"h[0],h[1]","estimated":[1,2]}'
    assert json.loads(found.text(None)) == {"domains": 2, "by": "exec_vnode", "on": "h[0],h[1]"}
