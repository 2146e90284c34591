"""Runs the router where it may run: it is switched on, and the agent's own identity has the rights.

Without the rights the virtual nodes work all the same. What is missing is told, and looked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from bridge.kube import Json, Kubernetes, paths
from bridge.kube import rights as kube_rights
from bridge.kube.clock import BackOff, Clock
from bridge.kube.errors import Invalid, KubeError
from bridge.kube.events import Recorder
from bridge.routing.loop import Router
from bridge.routing.rights import needs

LOOK_AGAIN = 60.0  # s between two questions for rights that are missing
OFF = "routing is switched off (routing.enabled: false)"

log = structlog.get_logger(__name__)


class Routing:
    """`build` makes the router and what writes its Events; `namespace`: the agent's own.

    problem: why it does not run, "" while that is not known yet or it does.
    """

    def __init__(
        self,
        kube: Kubernetes,
        build: Callable[[], tuple[Router, Recorder]],
        namespace: str,
        clock: Clock,
        *,
        enabled: bool,
    ) -> None:
        self._kube, self._build, self._namespace, self._clock = kube, build, namespace, clock
        self._parts: tuple[Router, Recorder] | None = None
        self.problem = "" if enabled else OFF

    def __repr__(self) -> str:
        return f"<Routing {self.router or self.problem or 'starting'}>"

    async def run(self) -> None:
        """Until cancelled."""
        if self.problem:
            log.info("routing.off")
            await asyncio.Event().wait()
        await self._until_allowed()
        if self._parts is None:  # else it is run again after a failure
            self._parts = self._build()
        router, events = self._parts
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(router.run(), name="routing.router")
            tasks.create_task(events.run(), name="routing.events")

    @property
    def router(self) -> Router | None:
        """The router; None where it may not run."""
        return self._parts[0] if self._parts is not None else None

    async def _until_allowed(self) -> None:
        back_off = BackOff()
        while True:
            try:
                lacking = await kube_rights.missing(self._kube, needs(self._namespace))
            except KubeError as error:
                log.warning("routing.rights_unknown", error=str(error))
                await self._clock.sleep(back_off.pause(error.retry_after))
                continue
            if not lacking:
                self.problem = ""
                return
            problem = f"nothing is routed: not allowed: {'; '.join(lacking)}. Apply deploy/routing, or switch it off "
            problem += "(routing.enabled: false)"
            if problem != self.problem:
                log.error(
                    "routing.not_allowed", missing=lacking, advice="apply deploy/routing, or routing.enabled: false"
                )
            self.problem = problem
            await self._clock.sleep(LOOK_AGAIN)

    @property
    def in_burst(self) -> bool:
        """Whether gates are being opened."""
        return self.router is not None and self.router.in_burst

    def living(self) -> set[str] | None:
        """UIDs of living pods on other nodes: none that we may know of where routing is switched off.

        None until that is known. So it is while rights are missing: what has a job may live where nobody looks.
        """
        if self.router is not None:
            return self.router.watched.living()
        return set() if self.problem == OFF else None

    async def explain(self, asked: Json) -> Json:
        """Where a pod would go and why. asked: `pod`, or `namespace` and `name` of one that is there.

        Raises ValueError for what cannot be answered, LookupError for what is not there (yet).
        """
        router = self._running()
        pod = asked.get("pod")
        return router.explain(await self._find(asked) if pod is None else pod)

    def clusters(self) -> Json:
        """Room and waits on every cluster. Raises LookupError while the router does not run."""
        return self._running().clusters()

    def _running(self) -> Router:
        if self.router is None:
            raise LookupError(self.problem or "the agent has just started and has not listed everything yet")
        return self.router

    async def _find(self, asked: Json) -> Json:
        namespace, name = str(asked.get("namespace") or "default"), str(asked.get("name") or "")
        try:
            where = paths.pods(namespace)
        except Invalid:
            where = ""
        selector = f"metadata.name={_one(name)}"
        found = (await self._kube.list(where, field_selector=selector))[0] if where else []
        if not found:
            raise LookupError(f"there is no pod {namespace}/{name}")
        return found[0]


def _one(name: str) -> str:
    """`name`, if it can be nothing but a name in a field selector."""
    if not name or any(sign in name for sign in ",=!\\/ ") or not name.isprintable():
        raise ValueError(f"{name!r} is no pod's name")
    return name
