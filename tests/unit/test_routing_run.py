"""Whether the router runs: switched off, not allowed, allowed later; what that means for the sweep and for people."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memorykube import MemoryKube
from virtualtime import VirtualClock, settle

from bridge.kube import Json
from bridge.kube.errors import Unavailable
from bridge.routing.run import LOOK_AGAIN, OFF, Routing


class Reviews(MemoryKube):
    """Answers SelfSubjectAccessReviews: all but what is `forbidden` (verb, resource) is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.forbidden: set[tuple[str, str]] = set()
        self.pods: list[Json] = []

    async def create(self, path: str, body: Json) -> Json:
        if self.down:
            raise Unavailable(0, "", "down")
        asked = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.forbidden}}

    async def list(
        self, path: str, *, field_selector: str | None = None, label_selector: str | None = None
    ) -> tuple[list[Json], str]:
        self.writes.append((str(field_selector), path))
        return self.pods, "1"


class Router:
    """Stands for the real one: runs until cancelled."""

    def __init__(self) -> None:
        self.runs = 0
        self.in_burst = False
        self.watched = self

    def living(self) -> set[str]:
        return {"uid-elsewhere"}

    async def run(self) -> None:
        self.runs += 1
        await asyncio.Event().wait()

    def explain(self, pod: Json) -> Json:
        return {"explained": pod}


class Scene:
    def __init__(self, enabled: bool = True) -> None:
        self.kube, self.clock, self.router = Reviews(), VirtualClock(), Router()
        self.built = 0
        self.routing = Routing(self.kube, self.build, "hpc-bridge", self.clock, enabled=enabled)

    def build(self) -> Any:
        self.built += 1
        return self.router, Router()


async def test_switched_off_it_says_so_and_the_nodes_own_lists_are_all() -> None:
    scene = Scene(enabled=False)
    running = asyncio.ensure_future(scene.routing.run())
    await scene.clock.advance(LOOK_AGAIN * 3)
    assert (scene.built, scene.routing.problem, scene.routing.living()) == (0, OFF, set())
    with pytest.raises(LookupError, match="switched off"):
        scene.routing.clusters()
    running.cancel()


async def test_missing_rights_are_named_and_looked_for_again() -> None:
    """Until then no job without a pod is looked for: its pod may live where nobody may look."""
    scene = Scene()
    scene.kube.forbidden = {("patch", "pods"), ("list", "nodes")}
    running = asyncio.ensure_future(scene.routing.run())
    await settle()
    assert "list nodes" in scene.routing.problem
    assert "patch pods" in scene.routing.problem
    assert scene.routing.living() is None
    with pytest.raises(LookupError, match="not allowed"):
        await scene.routing.explain({"namespace": "default", "name": "p"})
    scene.kube.forbidden = set()
    await scene.clock.advance(LOOK_AGAIN + 1)
    assert (scene.built, scene.routing.problem, scene.routing.living()) == (1, "", {"uid-elsewhere"})
    running.cancel()


async def test_an_api_server_that_does_not_answer_is_asked_again() -> None:
    scene = Scene()
    scene.kube.down = True
    running = asyncio.ensure_future(scene.routing.run())
    await scene.clock.advance(5)
    assert (scene.built, scene.routing.problem, scene.routing.living()) == (0, "", None)
    scene.kube.down = False
    await scene.clock.advance(60)
    assert scene.built == 1
    running.cancel()


async def test_run_again_after_a_failure_it_is_the_same_router() -> None:
    scene = Scene()
    for runs in (1, 2):
        running = asyncio.ensure_future(scene.routing.run())
        await settle()
        assert (scene.built, scene.router.runs) == (1, runs)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("name", ["", "a,b", "a=b", "a!=b", "../secrets/x", "a b", "a\nb", "a\\b"])
async def test_a_name_is_a_name_in_a_field_selector(name: str) -> None:
    scene = Scene()
    running = asyncio.ensure_future(scene.routing.run())
    await settle()
    with pytest.raises(ValueError, match="no pod's name"):
        await scene.routing.explain({"namespace": "default", "name": name})
    assert scene.kube.writes == []
    running.cancel()


async def test_pods_are_found_by_name_alone() -> None:
    scene = Scene()
    running = asyncio.ensure_future(scene.routing.run())
    await settle()
    with pytest.raises(LookupError, match="there is no pod"):
        await scene.routing.explain({"namespace": "../x", "name": "p"})
    with pytest.raises(LookupError, match="there is no pod"):
        await scene.routing.explain({"namespace": "a", "name": "p"})
    scene.kube.pods = [{"metadata": {"name": "p"}}]
    assert await scene.routing.explain({"namespace": "a", "name": "p"}) == {"explained": scene.kube.pods[0]}
    assert {where for _, where in scene.kube.writes} == {"/api/v1/namespaces/a/pods"}
    running.cancel()
