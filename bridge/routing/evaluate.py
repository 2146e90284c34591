"""Everything about one pod at one moment, put together: rule, candidates, local room, and the step that follows.

Used by the loop for gated pods and by `explain` for any pod, so that both say the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bridge.api.routing import CandidateSpec, Rule
from bridge.api.settings import Cluster
from bridge.clusters.health import ClusterHealth
from bridge.kube.clock import Clock, parse_rfc3339
from bridge.routing import rules as rulebook
from bridge.routing.asking import Asking, node_refusal, placement_fields, template
from bridge.routing.choose import Choice, choose
from bridge.routing.decide import Situation, decide, gates
from bridge.routing.explain import Outcome
from bridge.routing.judge import WAITS_HOLD, Asked, ClusterView, Judge, Judgement
from bridge.routing.load import Load
from bridge.routing.local import LocalFit, Locals
from bridge.routing.rules import Match
from bridge.routing.waits import WaitModel
from pbs_adapter.models import Census, Observation

Json = dict[str, Any]
VIEW_HOLDS = 1.0  # s
AGE_HOLDS = 10.0  # s by which the age of a report that is shown may be behind
REMEMBERED = 500  # templates and rules whose judgements are kept
STALE = 60.0  # s beyond three periods after which a census is too old to choose by
WAITING = frozenset("QHWT")  # PBS's letters of jobs that have not started


class Link(Protocol):
    """What of `clusters.ClusterLink` is read here."""

    settings: Cluster
    census: Census | None
    census_doubt: str

    @property
    def observations(self) -> dict[str, Observation]: ...
    def found(self, uid: str) -> Observation | None: ...
    def health(self) -> ClusterHealth: ...
    def account_for(self, namespace: str) -> str | None: ...
    def census_age(self) -> float | None: ...
    async def census_now(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Grounds:
    """What a judgement rests on besides pod and rule; equal only if they are the very same objects."""

    view: ClusterView
    load: Load
    node: Json | None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Grounds)
            and self.view is other.view
            and self.load is other.load
            and self.node is other.node
        )

    __hash__ = None  # type: ignore[assignment]


class Evaluator:
    """`arrived(cluster, census, asked)` says when (monotonic) it was asked for. `load(cluster)`: pods on their way."""

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
        self._known_candidates: dict[str, tuple[Rule, object, tuple[CandidateSpec, ...]]] = {}
        self._judged: OrderedDict[tuple[object, ...], dict[int, tuple[_Grounds, float, Judgement]]] = OrderedDict()

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
        before = self._views[1]
        renewed = any(view.census is not self._links[name].census for name, view in before.items())
        if now - self._views[0] >= VIEW_HOLDS or renewed:
            views = {name: self._view(name, link, now) for name, link in self._links.items()}
            self._views = now, {name: _same(before.get(name), view) for name, view in views.items()}
            known = {name: _queues(link.census) for name, link in self._links.items()}
            self._known = self._known if self._known == known else known
        return self._views[1]

    def _view(self, name: str, link: Link, now: float) -> ClusterView:
        health, census = link.health(), link.census
        trouble = dict(health.trouble)
        if not health.reachable:
            trouble[""] = f"cannot be reached: {health.message}"
        age = None
        if census is not None:
            age = now - self._arrived(name, census, now - (link.census_age() or 0.0))
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
            choice = self._doubted(choose(judged, match.rule.spec, previous), match.rule)
        fit = local.fit(pod) if match.rule is not None else LocalFit(why="")
        verdict = decide(Situation(gated, others, match, choice or Choice(), fit, waited, settling))
        return Outcome(f"{metadata.get('namespace', 'default')}/{metadata['name']}", match, fit, choice, verdict, now)

    def clusters_of(self, rule: Rule) -> set[str]:
        """The clusters that a rule may send pods to."""
        return {candidate.cluster for candidate in self._candidates(rule)}

    def _doubted(self, choice: Choice, rule: Rule) -> Choice:
        """The choice with a word about censuses that should have been newer."""
        notes = [choice.note] if choice.note else []
        for name in sorted(self.clusters_of(rule)):
            link = self._links[name]
            if link.census is not None and link.census_doubt:
                notes.append(f"what is known of {name} is {link.census_age() or 0.0:.0f} s old: {link.census_doubt}")
        return replace(choice, note="; ".join(notes))

    def judgements(
        self, pod: Json, rule: Rule, nodes: Mapping[str, Json], now: float, waited: float
    ) -> Iterable[Judgement]:
        """Every candidate of the rule that is known. Those of a cluster about which nothing is new are kept."""
        spec, views, key = rule.spec, self.views(), template(pod)
        namespace = str((pod.get("metadata") or {}).get("namespace") or "default")
        within = None if spec.start_within is None else max(0.0, spec.start_within - waited)
        placing = placement_fields(pod)
        judged = self._remembered((key, placing, rule.name, rule.generation))
        grounds: dict[str, _Grounds] = {}
        refusals: dict[str, tuple[str, str]] = {}
        for order, candidate in enumerate(self._candidates(rule)):
            name = candidate.cluster
            if name not in grounds:
                node = nodes.get(self._links[name].settings.node_name)
                grounds[name] = _Grounds(views[name], self._load(name), node)
            on = grounds[name]
            known = judged.get(order)
            if known is not None and known[0] == on and within is None and 0 <= now - known[1] < WAITS_HOLD:
                yield known[2]
                continue
            if name not in refusals:
                refusals[name] = node_refusal(pod, on.node, name)
            never, away = refusals[name]
            asked = self._asking.asked(pod, key, name, self._links[name].account_for(namespace))
            fresh = self._judge.judge(
                asked, candidate, order, spec, on.view, on.load, now, within, never=never, away=away
            )
            judged[order] = on, now, fresh
            yield fresh

    def _remembered(self, key: tuple[object, ...]) -> dict[int, tuple[_Grounds, float, Judgement]]:
        found = self._judged.setdefault(key, {})
        self._judged.move_to_end(key)
        if len(self._judged) > REMEMBERED:
            self._judged.popitem(last=False)
        return found

    def _candidates(self, rule: Rule) -> tuple[CandidateSpec, ...]:
        """Worked out once as long as neither the rule nor what is known of clusters changes."""
        known = self.known()
        held = self._known_candidates.get(rule.name)
        if held is None or held[0] is not rule or held[1] is not known:
            held = rule, known, rulebook.candidates(rule, known)
            self._known_candidates[rule.name] = held
        return held[2]


def _same(old: ClusterView | None, new: ClusterView) -> ClusterView:
    """The old view, if the new one says nothing else than that a little time has passed."""
    if old is None or old.census is not new.census or (old.idle, old.trouble) != (new.idle, new.trouble):
        return new
    return new if abs((new.age or 0.0) - (old.age or 0.0)) >= AGE_HOLDS else old


def _queues(census: Census | None) -> frozenset[str]:
    return frozenset(queue.name for queue in census.queues) if census is not None else frozenset()
