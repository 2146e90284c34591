"""What the router writes into the status of RoutingRules: conditions, candidates, pods routed in the last hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog

from bridge.api.routing import Rule, RuleProblem, parse_rule
from bridge.kube import Kubernetes, paths
from bridge.kube.clock import Clock, rfc3339
from bridge.kube.errors import KubeError
from bridge.routing import rules as rulebook
from bridge.routing.watched import RULES, Watched

log = structlog.get_logger(__name__)

Json = dict[str, Any]
HOUR = 3600.0
WRITE_EVERY = 5.0
LOSSES = 1000  # of a rule that are remembered


class RuleBooks:
    """Counts, by rule, since this agent leads; `write` brings them to the API server where they differ."""

    def __init__(self, kube: Kubernetes, clock: Clock, system: Collection[str]) -> None:
        self._kube, self._clock, self._system = kube, clock, system
        self._routed: dict[str, deque[float]] = {}
        self._lost: dict[str, dict[str, tuple[float, str]]] = {}

    def routed(self, rule: str) -> None:
        """A pod was sent to a candidate of the rule."""
        self._routed.setdefault(rule, deque(maxlen=100_000)).append(self._clock.monotonic())

    def lost(self, rule: str, pod: str, why: str) -> None:
        """The rule gave way to another for this pod (namespace/name)."""
        losses = self._lost.setdefault(rule, {})
        losses.pop(pod, None)
        losses[pod] = self._clock.monotonic(), why
        if len(losses) > LOSSES:
            del losses[next(iter(losses))]

    def recent(self, rule: str) -> int:
        """Pods routed in the last hour."""
        times, now = self._routed.get(rule, deque()), self._clock.monotonic()
        while times and times[0] < now - HOUR:
            times.popleft()
        return len(times)

    def status(self, rule: Rule | RuleProblem, old: Json, known: rulebook.Known) -> Json:
        """The status that the rule should have. `old`: the one it has."""
        conditions = rulebook.accepted(rule, known, system=self._system)
        made: Json = {"routed": self.recent(rule.name)}
        if isinstance(rule, Rule):
            since = self._clock.monotonic() - HOUR
            losses = [(pod, why) for pod, (at, why) in self._lost.get(rule.name, {}).items() if at > since]
            conditions.append(rulebook.shadowed(rule, losses))
            made["candidates"] = rulebook.summary(rule.spec)
        before = {each.get("type"): each for each in old.get("conditions") or []}
        made["conditions"] = [_dated(each, before.get(each["type"]), self._clock.time()) for each in conditions]
        return made

    async def keep(self, watched: Watched, known: Callable[[], rulebook.Known], allowed: Callable[[], bool]) -> None:
        """Write every few seconds until cancelled."""
        await watched.synced()
        while True:
            if allowed():
                await self.write(watched.rule_objects(), known())
            await self._clock.sleep(WRITE_EVERY)

    async def write(self, objects: Collection[Json], known: rulebook.Known) -> None:
        """Write what differs. What cannot be written now is written the next time."""
        for rule in objects:
            old = rule.get("status") or {}
            new = self.status(parse_rule(rule), old, known)
            if all(old.get(key) == value for key, value in new.items()):
                continue
            name = rule["metadata"]["name"]
            try:
                changed = await self._kube.patch(paths.under(RULES, name, "status"), {"status": new}, kind="merge")
            except KubeError as error:
                log.info("routing.status_unwritten", rule=name, error=str(error))
                continue
            rule["status"] = changed.get("status") or new


def _dated(condition: Json, before: Mapping[str, Any] | None, now: float) -> Json:
    """With the time at which its status last changed."""
    same = before is not None and before.get("status") == condition["status"]
    stamp = before["lastTransitionTime"] if same and before is not None else rfc3339(now)
    return condition | {"lastTransitionTime": stamp}
