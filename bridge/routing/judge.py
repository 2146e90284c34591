"""What one candidate of a rule can do for one pod: fits, waits, spans NUMA domains, ends when. Pure but for its memory.

Most pods ask the same as another, and a census holds for a minute: what follows from census and shape alone (Prospect)
is worked out once. What changes with each routed pod (the load) and with the rule is added for every pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.api.routing import CandidateSpec, RoutingRuleSpec
from bridge.api.settings import Cluster
from bridge.plan.fit import Places
from bridge.plan.placement import NumaWish, Placement
from bridge.routing.load import Load, Room, Rooms
from bridge.routing.numa import estimate
from bridge.routing.waits import Shape, Wait, WaitModel
from pbs_adapter.models import Census, JobOptions

WAITS_HOLD = 15.0  # s for which an estimate is not asked for again
ALWAYS = (0.5, 0.9)  # quantiles that people are shown
GRID = tuple(step / 20 for step in range(1, 20))  # of which the probability to start in time is made
NOT_SEEN = "PBS has not been asked yet"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster as it is known now. trouble: why it gets nothing new, by account; "" is for all accounts.

    age: seconds since the census came. idle: jobs of the bridge that wait in PBS. queued: by queue, of anybody.
    """

    name: str
    census: Census | None = None
    trouble: Mapping[str, str] = field(default_factory=dict)
    age: float | None = None
    idle: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the pod would be on one cluster: the job's options, the account, and why it cannot be there at all.

    key: equal for equal options. queue, numa: what the author says by annotation.
    """

    options: JobOptions
    account: str | None
    refused: tuple[str, ...] = ()
    key: str = ""
    queue: str | None = None
    numa: NumaWish | None = None

    def wish(self, rule: NumaWish) -> NumaWish:
        """What holds of NUMA: what either requires, else what the author says."""
        return "require" if "require" in (rule, self.numa) else self.numa or rule


@dataclass(frozen=True, slots=True)
class Prospect:
    """What follows from census, rule and shape alone. `waiting`: the wait where it fits, and where it does not.

    run: seconds that it may run, slowdown included. refused: why it can never run there.
    """

    placement: Placement
    room: Room
    slowdown: tuple[float, float]
    run: float
    refused: tuple[str, ...]
    waiting: Mapping[bool | None, Wait]


@dataclass(frozen=True, slots=True)
class Judgement:
    """One candidate for one pod. It may be chosen if there is nothing in `refused` and `unavailable`.

    refused: can never run there. unavailable: gets nothing now; full: because enough waits there. fits_now: None where
    that is not known. wait: the estimate without the load. expected: seconds until the start at the rule's quantile,
    load included. run: seconds it may run, slowdown included. in_time: probability of a start within the rule's
    startWithin. slots: how many such jobs there is room for by the census; taken: how many of them the load takes;
    cores: all that work. order: place in the rule.
    """

    cluster: str
    queue: str | None
    order: int = 0
    weight: float = 1.0
    penalty: float = 0.0
    refused: tuple[str, ...] = ()
    unavailable: str = ""
    full: bool = False
    placement: Placement | None = None
    fits_now: bool | None = None
    wait: Wait | None = None
    expected: float = 0.0
    run: float = 0.0
    slowdown: tuple[float, float] = (1.0, 1.0)
    in_time: float | None = None
    slots: int = 0
    taken: int = 0
    cores: int = 0
    age: float | None = None

    @property
    def possible(self) -> bool:
        """Whether it may be chosen now."""
        return not self.refused and not self.unavailable

    @property
    def start(self) -> float:
        """Seconds until the start, with what the admin adds."""
        return (self.expected + self.penalty) / self.weight

    @property
    def completion(self) -> float:
        """Seconds until the end, with what the admin adds."""
        return (self.expected + self.penalty + self.run) / self.weight

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.cluster}/{self.queue}" if self.queue else self.cluster


class Judge:
    """Judges candidates on all clusters of the settings; remembers prospects."""

    def __init__(self, clusters: Mapping[str, Cluster], model: WaitModel) -> None:
        self._clusters, self._model = clusters, model
        self._places = {name: Places(cluster.numa.hosts) for name, cluster in clusters.items()}
        self._rooms = {name: Rooms() for name in clusters}
        self._known: dict[str, tuple[Census, dict[object, tuple[float, Prospect]]]] = {}

    def judge(
        self, asked: Asked, candidate: CandidateSpec, order: int, spec: RoutingRuleSpec, view: ClusterView, load: Load,
        now: float, within: float | None = None, *, never: str = "", away: str = "",
    ) -> Judgement:  # fmt: skip
        """What the candidate can do. within: seconds left of startWithin. now: epoch seconds.

        never, away: why the virtual node takes the pod never, or not now.
        """
        away = _unavailable(asked, view) or away
        if asked.refused or view.census is None:
            refused = (*asked.refused, *([never] if never else []))
            away = away or ("" if view.census is not None else NOT_SEEN)
            return Judgement(
                candidate.cluster, candidate.queue, order, candidate.weight, candidate.penalty_seconds, refused, away,
                age=view.age,
            )  # fmt: skip
        quantiles = (*ALWAYS, spec.quantile, *(GRID if within is not None else ()))
        found = self._prospect(asked, candidate, spec, view.census, quantiles, now)
        place, room = found.placement, found.room
        slots, taken = room.slots, room.taken(load, asked.options)
        fits_now = place.now if place.now is False or taken < slots else False
        wait = found.waiting[fits_now]
        behind = load.core_seconds * (1 - slots / taken) / max(1, room.cores) if taken > slots else 0.0
        full = _full(spec, view, place, load, max(0, taken - slots))
        return Judgement(
            candidate.cluster,
            candidate.queue,
            order,
            candidate.weight,
            candidate.penalty_seconds,
            (*found.refused, never) if never else found.refused,
            away or full,
            bool(full) and not away,
            place,
            fits_now,
            wait,
            wait.quantiles[spec.quantile] + behind,
            found.run,
            found.slowdown,
            None if within is None else probability(wait, within - behind),
            slots,
            taken,
            room.cores,
            view.age,
        )

    def _prospect(
        self, asked: Asked, candidate: CandidateSpec, spec: RoutingRuleSpec, census: Census,
        quantiles: tuple[float, ...], now: float,
    ) -> Prospect:  # fmt: skip
        cluster, queue, wish = candidate.cluster, candidate.queue, asked.wish(spec.numa)
        held, known = self._known.get(cluster, (None, {}))
        if held is not census:
            known = {}
            self._known[cluster] = census, known
        key = (asked.key, asked.queue, queue, wish, spec.max_slowdown, quantiles)
        if (kept := known.get(key)) is not None and 0 <= now - kept[0] < WAITS_HOLD:
            return kept[1]
        options, settings = asked.options, self._clusters[cluster]
        place = self._places[cluster].of(options, queue, census, wish)
        room = self._rooms[cluster].of(options, place, census, broken=wish != "require")
        lands = place.queues[0] if place.queues else queue or options.queue
        waiting = {
            fits: self._model.waits(
                Shape(options.ncpus, options.mem_bytes, options.walltime, fits), cluster, lands, census, now, quantiles
            )
            for fits in {place.now, False}
        }
        slow = (1.0, 1.0) if wish == "ignore" else estimate(place, settings.numa)
        why = (
            *_queue_refused(asked, candidate, census, settings),
            *place.refused,
            *_too_slow(slow, spec.max_slowdown),
        )
        run = options.walltime * sum(slow) / 2
        known[key] = now, Prospect(place, room, slow, run, tuple(dict.fromkeys(why)), waiting)
        return known[key][1]


def probability(wait: Wait, seconds: float) -> float:
    """The probability that the wait is over within `seconds`, between the quantiles by straight lines.

    >>> probability(Wait({0.2: 10.0, 0.6: 30.0}, 9, "queue", 0.5), 20.0)
    0.4
    """
    before, at = 0.0, 0.0
    for share, value in sorted(wait.quantiles.items()):
        if value > seconds:
            step = (seconds - at) / (value - at) if value > at else 0.0
            return round(before + max(0.0, step) * (share - before), 4)
        before, at = share, value
    return before


def _unavailable(asked: Asked, view: ClusterView) -> str:
    return view.trouble.get("", "") or view.trouble.get(asked.account or "", "")


def _full(spec: RoutingRuleSpec, view: ClusterView, place: Placement, load: Load, waiting: int) -> str:
    """Why a cluster that works gets nothing new: the rule's cap, or PBS's own on the number of jobs."""
    idle = view.idle + waiting
    if spec.idle_cap is not None and idle >= spec.idle_cap:
        return f"{idle} jobs of the bridge wait there, and the rule's idleCap is {spec.idle_cap}"
    left = place.limits_left.jobs
    if left is not None and left - load.pods <= 0:
        return f"PBS takes {left} more jobs of the account, and {load.pods} are on their way"
    return ""


def _queue_refused(asked: Asked, candidate: CandidateSpec, census: Census | None, cluster: Cluster) -> tuple[str, ...]:
    """A rule may name only queues that bridge.yaml lets pods name: the pod's annotation is how it gets there."""
    wanted, own = candidate.queue, asked.options.queue
    if wanted is not None and asked.queue not in (None, wanted):
        return (f"the pod's annotation names queue {asked.queue}, this candidate is {wanted}",)
    if wanted is None or wanted == own or wanted in (cluster.queue, *cluster.queues):
        return ()
    if own is None and census is not None and wanted == census.server.default_queue:
        return ()
    return (f"bridge.yaml does not list queue {wanted} under queues of cluster {cluster.name}",)


def _too_slow(slowdown: tuple[float, float], most: float | None) -> tuple[str, ...]:
    if most is None or slowdown[1] <= most:
        return ()
    return (f"may be slowed down by NUMA up to {slowdown[1]:.2f} times, the rule's maxSlowdown is {most:g}",)
