"""Everything about one pod at one moment, put together: rule, candidates, local room, and the step that follows.

Used by the loop for gated pods and by `explain` for any pod, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from bridge.api.routing import Rule
from bridge.api.settings import Cluster
from bridge.clusters.health import ClusterHealth
from bridge.kube.clock import Clock, parse_rfc3339
from bridge.routing import rules as rulebook
from bridge.routing.asking import Asking, node_refusal, template
from bridge.routing.choose import Choice, choose
from bridge.routing.decide import Situation, decide, gates
from bridge.routing.explain import Outcome
from bridge.routing.judge import Asked, ClusterView, Judge, Judgement
from bridge.routing.load import Load
from bridge.routing.local import LocalFit, Locals
from bridge.routing.rules import Match
from bridge.routing.waits import WaitModel
from pbs_adapter.models import Census, Observation

Json = dict[str, Any]
VIEW_HOLDS = 1.0  # s
STALE = 60.0  # s beyond three periods after which a census is too old to choose by
WAITING = frozenset("QHWT")  # PBS's letters of jobs that have not started


class Link(Protocol):
    """What of `clusters.ClusterLink` is read here."""

    settings: Cluster
    census: Census | None

    @property
    def observations(self) -> dict[str, Observation]: ...
    def seen(self, uid: str) -> Observation | None: ...
    def health(self) -> ClusterHealth: ...
    def account_for(self, namespace: str) -> str | None: ...


class Evaluator:
    """`arrived(cluster, census, now)` says when (monotonic) a census came. `load(cluster)`: pods on their way."""

    def __init__(
        self,
        links: Mapping[str, Link],
        model: WaitModel,
        clock: Clock,
        *,
        load: Callable[[str], Load],
        arrived: Callable[[str, Census, float], float],
        system: Collection[str],
    ) -> None:
        settings = {name: link.settings for name, link in links.items()}
        self._links, self._clock, self._system = links, clock, system
        self._load, self._arrived = load, arrived
        self._asking, self._judge = Asking(settings), Judge(settings, model)
        self._views: tuple[float, dict[str, ClusterView]] = (-1e9, {})
        self._known: dict[str, frozenset[str]] = {}

    def ask(self, pod: Json, cluster: str) -> Asked:
        """What the pod would be on a cluster."""
        namespace = str((pod.get("metadata") or {}).get("namespace") or "default")
        return self._asking.asked(pod, template(pod), cluster, self._links[cluster].account_for(namespace))

    def known(self) -> dict[str, frozenset[str]]:
        """Clusters and the names of their queues."""
        self.views()
        return self._known

    def views(self) -> dict[str, ClusterView]:
        """The clusters as they are known now; worked out at most once a second."""
        now = self._clock.monotonic()
        if now - self._views[0] >= VIEW_HOLDS:
            self._views = now, {name: self._view(name, link, now) for name, link in self._links.items()}
            self._known = {name: _queues(link.census) for name, link in self._links.items()}
        return self._views[1]

    def _view(self, name: str, link: Link, now: float) -> ClusterView:
        health, census = link.health(), link.census
        trouble = dict(health.trouble)
        if not health.reachable:
            trouble[""] = f"cannot be reached: {health.message}"
        age = None
        if census is not None:
            age = now - self._arrived(name, census, now)
            if age > 3 * link.settings.census + STALE:
                trouble.setdefault("", f"what is known of it is {age:.0f} s old")
        waiting = sum(seen.pbs.state in WAITING and not seen.claimed for seen in link.observations.values())
        return ClusterView(name, census, trouble, age, waiting)

    def match(self, pod: Json, namespace: Json, rules: Sequence[Rule]) -> Match:
        """The rule that decides about the pod."""
        return rulebook.match(pod, namespace, rules, system=self._system)

    def outcome(
        self,
        pod: Json,
        match: Match,
        local: Locals,
        nodes: Mapping[str, Json],
        *,
        previous: tuple[str, str | None] | None = None,
        settling: bool = False,
    ) -> Outcome:
        """What is to be done with the pod. nodes: by name. previous: what it has been told before."""
        metadata = pod["metadata"]
        now = self._clock.time()
        created = parse_rfc3339(metadata.get("creationTimestamp"))
        waited = max(0.0, now - created) if created is not None else 0.0
        choice = None
        gated, others = gates(pod)
        if match.rule is not None and match.mode != "never" and not (gated and others):
            judged = list(self.judgements(pod, match.rule, nodes, now, waited))
            choice = choose(judged, match.rule.spec, previous)
        fit = local.fit(pod) if match.rule is not None else LocalFit(why="")
        verdict = decide(Situation(gated, others, match, choice or Choice(), fit, waited, settling))
        return Outcome(f"{metadata.get('namespace', 'default')}/{metadata['name']}", match, fit, choice, verdict, now)

    def judgements(
        self, pod: Json, rule: Rule, nodes: Mapping[str, Json], now: float, waited: float
    ) -> Iterable[Judgement]:
        """Every candidate of the rule that is known."""
        spec, views, key = rule.spec, self.views(), template(pod)
        namespace = str((pod.get("metadata") or {}).get("namespace") or "default")
        within = None if spec.start_within is None else max(0.0, spec.start_within - waited)
        verdicts: dict[str, tuple[str, str]] = {}
        for order, candidate in enumerate(rulebook.candidates(rule, self.known())):
            name = candidate.cluster
            link = self._links[name]
            asked = self._asking.asked(pod, key, name, link.account_for(namespace))
            if name not in verdicts:
                verdicts[name] = node_refusal(pod, nodes.get(link.settings.node_name), name)
            never, away = verdicts[name]
            yield self._judge.judge(
                asked, candidate, order, spec, views[name], self._load(name), now, within, never=never, away=away
            )


def _queues(census: Census | None) -> frozenset[str]:
    return frozenset(queue.name for queue in census.queues) if census is not None else frozenset()
