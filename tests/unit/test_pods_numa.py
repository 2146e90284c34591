"""The NUMA span of pods: what is counted, who gets the annotation, and what becomes of a job that was handed back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from complexes import census, vnode
from podcases import ended, podrun, seen, situation
from podcases import pod as bound
from test_pods_act import CLUSTER, Events, Link
from virtualtime import VirtualClock

from bridge.api import names
from bridge.plan.model import NodeFacts
from bridge.plan.plan import plan
from bridge.pods.act import Scene, act
from bridge.pods.decide import AnnotateSpan, decide
from bridge.pods.inputs import InputSource
from bridge.pods.numa import NumaSpans
from bridge.pods.record import Record
from pbs_adapter.models import JobRef, Observation

NUMA = census(vnode("h[0]"), vnode("h[1]"), vnode("k[0]"), vnode("k[1]"))
TEXT = '{"domains":2,"by":"exec_vnode","on":"h[0],h[1]","estimated":[2,2]}'
ON_TWO = "(h[0]:ncpus=8+h[1]:ncpus=1)"


def pod(cpus: int = 9, **annotations: str) -> dict[str, Any]:
    main = {"name": "main", "image": "sh", "command": ["true"], "resources": {"requests": {"cpu": str(cpus)}}}
    thing = bound(spec__containers=[main])
    thing["metadata"]["annotations"] = {names.PREFIX + key: value for key, value in annotations.items()}
    return thing


def running(exec_vnode: str, **status: Any) -> Observation:
    found = seen("R", podrun(**status))
    return replace(found, pbs=replace(found.pbs, exec_vnode=exec_vnode))


def spans() -> tuple[NumaSpans, list[tuple[str, int]]]:
    counted: list[tuple[str, int]] = []
    return NumaSpans(CLUSTER, lambda kind, domains: counted.append((kind, domains))), counted


def test_what_was_given_is_compared_with_the_estimate_once() -> None:
    numa, counted = spans()
    thing, record = pod(numa="prefer"), Record()
    numa.submitted(plan(thing, CLUSTER), NUMA, record)
    assert record.numa_expected == (2, 2)
    for _ in range(2):
        assert numa.shown(thing, plan(thing, CLUSTER), NUMA, running(ON_TWO), record) == TEXT
    assert counted == [("given", 2), ("estimated_fewest", 2), ("estimated_most", 2)]


@pytest.mark.parametrize(
    ("thing", "told"),
    [
        (pod(numa="require"), True),
        (pod(numa="prefer"), True),
        (pod(numa="ignore"), False),
        (pod(), False),
        (pod() | {"metadata": pod()["metadata"] | {"annotations": {names.ROUTED: "{}"}}}, True),
    ],
)
def test_who_asked_or_was_routed_is_told(thing: dict[str, Any], told: bool) -> None:
    numa, counted = spans()
    assert bool(numa.shown(thing, plan(thing, CLUSTER), NUMA, running(ON_TWO), Record())) is told
    assert counted == []  # submitted by a former process, which counted it


def test_a_job_that_pbs_says_nothing_of_is_looked_at_again() -> None:
    numa, _ = spans()
    thing, record = pod(numa="prefer"), Record()
    assert numa.shown(thing, plan(thing, CLUSTER), NUMA, running(""), record) == ""
    assert numa.shown(thing, plan(thing, CLUSTER), None, running(ON_TWO), record) == ""
    assert numa.shown(thing, plan(thing, CLUSTER), NUMA, seen("Q"), record) == ""
    assert numa.shown(thing, plan(thing, CLUSTER), NUMA, running(ON_TWO), record) != ""


def test_podruns_word_counts_where_pbs_says_nothing() -> None:
    numa, _ = spans()
    thing, record = pod(numa="prefer"), Record()
    seen_by_podrun = {"cpus": "0-15", "mems": "0", "domains": 1, "of": 1, "confined": False}
    assert numa.shown(thing, plan(thing, CLUSTER), NUMA, running("", numa=seen_by_podrun), record) == ""  # PBS may yet
    assert "cpuset" in numa.shown(thing, plan(thing, CLUSTER), NUMA, seen("F", ended(numa=seen_by_podrun)), record)
    flat = census(vnode("h"))
    assert "cpuset" in numa.shown(thing, plan(thing, CLUSTER), flat, running("", numa=seen_by_podrun), Record())


def test_require_is_submitted_whole() -> None:
    numa, _ = spans()
    record = Record()
    made = numa.submitted(plan(pod(4, numa="require"), CLUSTER), NUMA, record)
    assert (made.options.place, made.numa_by_vnodes, record.numa_expected) == ("vscatter", True, (1, 1))


def span_actions(thing: dict[str, Any], observation: Observation, **record: Any) -> list[AnnotateSpan]:
    known = {"annotated": True} | record
    decision = decide(situation(thing, observation, numa=TEXT, record=known))
    return [action for action in decision.actions if isinstance(action, AnnotateSpan)]


def test_the_annotation_is_written_once() -> None:
    assert span_actions(pod(), running(ON_TWO)) == [AnnotateSpan(TEXT)]
    assert span_actions(pod(), seen("F", ended())) == [AnnotateSpan(TEXT)]  # a short job: with its last status
    assert span_actions(pod(), running(ON_TWO), span_written=True) == []
    written = pod()
    written["metadata"]["annotations"][names.NUMA_SPAN] = TEXT
    assert span_actions(written, running(ON_TWO)) == []


def test_a_job_handed_back_fails_with_podruns_words_as_a_disruption() -> None:
    waiting = {"main": {"kind": "app", "state": "waiting", "restart_count": 0, "run": 0}}
    text = "numa: require asks for one NUMA domain, and the job may use CPUs 0-63"
    status = podrun("Ended", result="Failed", reason="NUMASplit", message=text, containers=waiting)
    result = situation(pod(), seen("F", status)).result
    assert (result.succeeded, result.reason, result.message, result.disruption) == (False, "NUMASplit", text, True)


class Patches:
    """An API server that takes patches."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append((path, body))
        return {}


async def test_one_patch_of_metadata_alone() -> None:
    kube, clock, record, thing = Patches(), VirtualClock(0.0), Record(), pod()
    scene = Scene(
        kube=kube, link=Link(), events=Events(), inputs=InputSource(None, clock), clock=clock,  # type: ignore[arg-type]
        cluster=CLUSTER, instance="i", facts=lambda: NodeFacts("n"), observe_submit=lambda _seconds: None,
    )  # fmt: skip
    uid = thing["metadata"]["uid"]
    await act(scene, AnnotateSpan(TEXT), thing, plan(thing, CLUSTER), JobRef("default", uid), record)
    body = {"metadata": {"uid": uid, "annotations": {names.NUMA_SPAN: TEXT}}}
    assert kube.bodies == [("/api/v1/namespaces/default/pods/hello/status", body)]
    assert record.span_written
