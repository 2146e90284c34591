"""The router in virtual time: what goes wrong with one pod is that pod's affair, and nobody is forgotten."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from complexes import census, vnode
from memorykube import MemoryKube
from test_routing_evaluate import Link, node, pod
from virtualtime import VirtualClock

from bridge.api import names, reasons
from bridge.kube import Items, Json, JsonPatch, PatchKind, paths
from bridge.kube.errors import Forbidden, KubeError, Unavailable
from bridge.routing.evaluate import Evaluator
from bridge.routing.loop import Router
from bridge.routing.watched import NAMESPACES, RULES
from pbs_adapter.models import Census

RULE = {
    "metadata": {"name": "all", "uid": "uid-all", "generation": 1, "resourceVersion": "1"},
    "spec": {"mode": "must", "candidates": [{"cluster": "alpha"}]},
}


class RouterKube(MemoryKube):
    """Gated pods of namespace `space`. `refuse(name)`: the error that opening this pod's gate gets."""

    def __init__(self, clock: VirtualClock, *pods: str) -> None:
        super().__init__()
        self.clock = clock
        self.refuse: Callable[[str], KubeError | None] = lambda _name: None
        self.tried: list[tuple[float, str]] = []
        self.opened: list[str] = []
        self.takes = 0.0
        self._told: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
        for number, name in enumerate(pods):
            stamp = f"2026-11-30T09:26:{number:02}Z"
            self.objects[paths.pod("space", name)] = pod(
                name, metadata={"resourceVersion": str(number + 1), "creationTimestamp": stamp}
            )

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[Items, str]:
        """By path; only pods that are not bound are any."""
        space = {"metadata": {"name": "space", "uid": "uid-space", "resourceVersion": "1"}}
        alpha = node("pbs-alpha")
        alpha["metadata"] |= {"uid": "uid-alpha", "resourceVersion": "1"}
        every = {NAMESPACES: [space], RULES: [RULE], paths.nodes(): [alpha]}
        if path == paths.pods() and (field_selector or "").startswith("spec.nodeName=,"):
            return [copy.deepcopy(thing) for name, thing in self.objects.items() if "/pods/" in name], "1"
        return copy.deepcopy(every.get(path, [])), "1"

    async def watch(
        self, path: str, resource_version: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Opened gates; nothing else changes."""
        pending = path == paths.pods() and (field_selector or "").startswith("spec.nodeName=,")
        while True:
            yield await (self._told if pending else asyncio.Queue[tuple[str, Json]]()).get()

    async def patch(self, path: str, body: Json | JsonPatch, *, kind: PatchKind = "strategic") -> Json:
        """Opens the gate."""
        if kind != "json":
            return {}
        name = path.rsplit("/", 1)[-1]
        self.tried.append((self.clock.monotonic(), name))
        if self.takes:
            await self.clock.sleep(self.takes)
        if (error := self.refuse(name)) is not None:
            raise error
        stored = self.objects[path]
        stored["spec"] |= {"schedulingGates": [], "tolerations": [{"key": names.CLUSTER_TAINT, "value": "alpha"}]}
        stored["metadata"]["resourceVersion"] = str(1000 + len(self.tried))
        self.opened.append(name)
        self._told.put_nowait(("MODIFIED", copy.deepcopy(stored)))
        return copy.deepcopy(stored)

    def times(self, name: str) -> list[float]:
        """When the gate of this pod was tried."""
        return [at for at, who in self.tried if who == name]


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def event(self, thing: Json, kind: str, reason: str, message: str) -> None:
        self.seen.append((thing["metadata"]["name"], reason, message))

    def failures(self, name: str) -> list[str]:
        return [text for who, reason, text in self.seen if (who, reason) == (name, reasons.ROUTE_FAILED)]


@asynccontextmanager
async def routing(kube: RouterKube, clock: VirtualClock) -> AsyncIterator[tuple[Router, Events]]:
    """A router that runs, and must still run at the end."""
    events = Events()
    router = Router(kube, {"alpha": Link("alpha")}, {"alpha": {}}, events, clock, namespace="hpc-bridge")
    task = asyncio.ensure_future(router.run())
    try:
        yield router, events
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_gates_are_opened_in_order() -> None:
    clock = VirtualClock()
    kube = RouterKube(clock, "a", "b", "c")
    async with routing(kube, clock):
        await clock.advance(5)
        assert kube.opened == ["a", "b", "c"]


async def test_an_exception_about_one_pod_is_shown_on_it_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    kube = RouterKube(clock, "a", "odd", "c")
    outcome, asked = Evaluator.outcome, []

    def strange(self: Evaluator, thing: Json, *args: Any, **kwargs: Any) -> Any:
        if thing["metadata"]["name"] == "odd":
            asked.append(clock.monotonic())
            raise KeyError("something that nobody thought of")
        return outcome(self, thing, *args, **kwargs)

    monkeypatch.setattr(Evaluator, "outcome", strange)
    async with routing(kube, clock) as (_, events):
        await clock.advance(600)
        assert kube.opened == ["a", "c"]
        assert "something that nobody thought of" in events.failures("odd")[0]
        pauses = [after - before for before, after in pairwise(asked)]
        assert 15 <= pauses[0] <= 36
        assert pauses[-1] >= 100
        monkeypatch.setattr(Evaluator, "outcome", outcome)
        await clock.advance(500)
        assert kube.opened == ["a", "c", "odd"]


async def test_a_refusal_is_that_pods_affair() -> None:
    clock = VirtualClock()
    kube = RouterKube(clock, "a", "refused", "c")
    kube.refuse = lambda name: Forbidden(403, "Forbidden", "a policy says no") if name == "refused" else None
    async with routing(kube, clock) as (_, events):
        await clock.advance(5)
        assert kube.opened == ["a", "c"]
        assert events.failures("refused") == ["cannot be released: Forbidden: a policy says no"]
        await clock.advance(600)
        assert 4 <= len(kube.times("refused")) <= 8


async def test_retry_after_is_waited_for_and_pauses_grow() -> None:
    clock = VirtualClock()
    kube = RouterKube(clock, "a", "b")
    kube.refuse = lambda _name: Unavailable(429, "TooManyRequests", "slow down", retry_after=20.0)
    async with routing(kube, clock):
        await clock.advance(19)
        assert [name for _, name in kube.tried] == ["a"]
        kube.refuse = lambda _name: Unavailable(0, "", "nobody answers")
        await clock.advance(120)
        pauses = [after - before for before, after in pairwise(kube.times("a"))]
        assert pauses[-1] > 10  # a new pause each time began with half a second again
        assert not kube.times("b")  # the order of the rule holds
        kube.refuse = lambda _name: None
        await clock.advance(40)
        assert kube.opened == ["a", "b"]


async def test_a_webhook_that_always_fails_for_one_pod_holds_up_no_other() -> None:
    clock = VirtualClock()
    kube = RouterKube(clock, "bad", "b")
    kube.refuse = lambda name: Unavailable(500, "InternalError", "webhook failed") if name == "bad" else None
    async with routing(kube, clock) as (_, events):
        await clock.advance(10)
        assert kube.opened == ["b"]
        assert "webhook failed" in events.failures("bad")[0]


async def test_gates_on_their_way_when_another_gets_no_answer_are_not_forgotten() -> None:
    """In a large burst eight go at a time; those cancelled with the one that failed were never looked at again."""
    clock = VirtualClock()
    pods = [f"p{number:03}" for number in range(120)]
    kube = RouterKube(clock, *pods)
    for thing in kube.objects.values():
        thing["metadata"]["creationTimestamp"] = "2026-11-30T09:26:40Z"
    kube.takes = 1.0
    kube.refuse = lambda name: Unavailable(503, "", "busy") if name == "p000" and clock.monotonic() < 4 else None
    async with routing(kube, clock):
        await clock.advance(60)
        assert sorted(kube.opened) == pods


class Aging(Link):
    """A link whose census is older than it should be; `then` is what asking anew brings."""

    def __init__(self, name: str, seen: Census, then: Census | None) -> None:
        super().__init__(name, seen)
        self.age, self.then = 30.0, then

    async def census_now(self) -> None:
        self.renewals += 1
        if self.then is None:
            self.census_doubt = "PBS has not answered within 3 s"
        else:
            self.census, self.age, self.census_doubt = self.then, 0.0, ""


class TwoKube(RouterKube):
    """Two clusters."""

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[Items, str]:
        """Both nodes, and a rule that has both."""
        if path == RULES:
            candidates = [{"cluster": "alpha", "weight": 50}, {"cluster": "beta"}]
            return [RULE | {"spec": {"mode": "must", "candidates": candidates}}], "1"
        if path == paths.nodes():
            nodes = [node("pbs-alpha"), node("pbs-beta")]
            for each in nodes:
                each["metadata"] |= {"uid": f"uid-{each['metadata']['name']}", "resourceVersion": "1"}
            return nodes, "1"
        return await super().list(path, field_selector=field_selector, label_selector=label_selector)


def sent(events: Events) -> dict[str, int]:
    """How many pods were routed where."""
    texts = [text for _, reason, text in events.seen if reason == reasons.ROUTED]
    return {name: sum(f"released to cluster {name}" in text for text in texts) for name in ("alpha", "beta")}


@asynccontextmanager
async def two(clock: VirtualClock, kube: RouterKube, *links: Aging) -> AsyncIterator[Events]:
    events = Events()
    router = Router(
        kube, {link.settings.name: link for link in links}, {"alpha": {}, "beta": {}}, events, clock, namespace="x"
    )
    task = asyncio.ensure_future(router.run())
    try:
        yield events
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_another_user_filled_since_the_last_census_gets_none_of_a_burst() -> None:
    clock = VirtualClock()
    kube = TwoKube(clock, *(f"p{number:02}" for number in range(50)))
    idle, full = census(*(vnode(f"h{n}", 64) for n in range(8))), census(*(vnode(f"h{n}", 64, 64) for n in range(8)))
    alpha, beta = Aging("alpha", idle, full), Aging("beta", idle, idle)
    async with two(clock, kube, alpha, beta) as events:
        await clock.advance(30)
        assert sent(events) == {"alpha": 0, "beta": 50}
        assert (alpha.renewals, beta.renewals) == (1, 1)


async def test_a_census_that_does_not_come_holds_up_nobody_and_is_told() -> None:
    clock = VirtualClock()
    kube = TwoKube(clock, *(f"p{number:02}" for number in range(8)))
    idle = census(*(vnode(f"h{n}", 64) for n in range(8)))
    async with two(clock, kube, Aging("alpha", idle, None), Aging("beta", idle, idle)) as events:
        await clock.advance(30)
        assert sum(sent(events).values()) == 8
        text = next(text for _, reason, text in events.seen if reason == reasons.ROUTED)
        assert "what is known of alpha is 30 s old: PBS has not answered within 3 s" in text
