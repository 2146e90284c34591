"""The wait model of all clusters: learns from censuses and from the bridge's own pods, answers with quantiles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import product

from bridge.routing.waits import store
from bridge.routing.waits.groups import LEVELS, TAIL, Ended, Group, Groups, Traits, size_class
from bridge.routing.waits.room import Room
from bridge.routing.waits.shapes import Shape, Wait
from bridge.routing.waits.sightings import Sightings, anonymous
from bridge.routing.waits.survival import CENSORED, START, Sample, quantiles
from pbs_adapter.models import Census, job_number

HISTORY = 5000  # ended waits that a cluster remembers
MAX_GROUPS = 20_000  # then they are built anew from the history, and each time there are twice as many again
_STALE = 900.0  # s after the last list for which ages go on growing: a clock may have jumped
_PRIOR_WEIGHT = 0.1
_HALF = 10.0  # effective starts that make an answer half sure
#: The first hour's answer: waits of the first 36 days of a real PBS site (wagap-2013, by courtesy of CERIT-SC and the
#: Alea project), in seconds with their shares.
PRIOR: dict[bool, tuple[tuple[float, float], ...]] = {
    True: ((1, 0.75), (20, 0.05), (400, 0.05), (6500, 0.05), (42_000, 0.05), (225_000, 0.05)),
    False: ((60, 0.2), (600, 0.2), (3600, 0.2), (14_400, 0.15), (42_000, 0.15), (225_000, 0.1)),
}


class Cluster:
    """What is known of one cluster, and its clock."""

    def __init__(self) -> None:
        self.sightings = Sightings()
        self.history: deque[Ended] = deque(maxlen=HISTORY)
        self.hidden: dict[str, dict[float, int]] = {}  # queue → submitted → jobs that the site does not show
        self._limit = MAX_GROUPS
        self._offset = 0.0
        self._listed: tuple[float, float] | None = None  # the last list: by the login host's clock, by ours

    def time(self, now: float) -> float:
        """The agent's time without the jumps that either clock has made."""
        if self._listed is not None:
            now = min(now, self._listed[1] + _STALE)
        return now + self._offset

    def is_new(self, at: float) -> bool:
        """Whether a list of that time has not been seen. A login host's clock may have been set back."""
        return at > 0 and (self._listed is None or at != self._listed[0])

    def tick(self, at: float, now: float) -> float:
        """A new list: the time that has passed is what both clocks agree on. Returns `time`."""
        if self._listed is not None:
            host, ours = at - self._listed[0], now - self._listed[1]
            self._offset -= ours - max(0.0, min(host, ours))
        self._listed = (at, now)
        return now + self._offset

    def keep(self, ended: Iterable[Ended]) -> None:
        """Remember waits that have ended, and do not let groups grow for ever."""
        self.history.extend(ended)
        if len(self.sightings.groups) > self._limit:
            self.rebuild()
            self._limit = max(MAX_GROUPS, 2 * len(self.sightings.groups))

    def rebuild(self) -> None:
        """All groups from what is remembered."""
        groups = Groups()
        for ended in self.history:
            groups.add(ended)
        for waiting in self.sightings.waiting.values():
            groups.queued(waiting.traits, waiting.submitted)
        self.sightings.groups = groups


class WaitModel:
    """What is known of the waits on every cluster. `now`, `submitted`, `started`: the agent's clock, epoch seconds."""

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}

    def learn(self, cluster: str, census: Census, now: float) -> None:
        """Take in a census. A list of jobs that has been seen already changes nothing but what is hidden."""
        known = self._clusters.setdefault(cluster, Cluster())
        if known.is_new(census.jobs_at):
            at = known.tick(census.jobs_at, now)
            known.keep(known.sightings.learn(census.jobs, Room(census.vnodes), at))
        _hide(known, census, known.time(now))

    def observe(
        self,
        cluster: str,
        job_id: str,
        queue: str,
        user: str,
        shape: Shape,
        submitted: float,
        started: float | None,
        now: float,
        *,
        estimated: float | None = None,
    ) -> None:
        """Take in a job of the bridge's own: exact times. Call it when it is submitted, and again when it starts.

        shape.fits_now is as it was at submission. estimated: PBS's `estimated.start_time`, where a site sets it.
        """
        known = self._clusters.setdefault(cluster, Cluster())
        key, at = job_number(job_id), known.time(now)
        known.sightings.submitted(key, queue, user, shape, min(at, at - (now - submitted)))
        known.sightings.estimate(key, None if estimated is None else at + (estimated - now), at)
        if started is not None:
            ended = known.sightings.started(key, at - (now - started))
            known.keep([ended] if ended else [])

    def forget(self, cluster: str, job_id: str, now: float) -> None:
        """The job will not start any more: until now it has waited, and that counts."""
        known = self._clusters.setdefault(cluster, Cluster())
        ended = known.sightings.withdrawn(job_number(job_id), known.time(now))
        known.keep([ended] if ended else [])

    def waits(
        self,
        shape: Shape,
        cluster: str,
        queue: str | None,
        census: Census,
        now: float,
        quantiles: Iterable[float] = (0.5, 0.9),
    ) -> Wait:
        """How long a job of the census's account would wait, submitted now. None: the server's default queue.

        `queue` is an execution queue: a routing queue has no history of its own, the coarser groups then answer.
        """
        wanted = sorted(quantiles)
        known = self._clusters.get(cluster) or Cluster()
        queue = queue or census.server.default_queue
        return _estimate(known, shape, queue, anonymous(census.account), known.time(now), wanted)

    def dump(self) -> bytes:
        """All that has been learnt from ended waits, at most 512 KiB, for a ConfigMap (binaryData)."""
        return store.dump({name: (known.history, known.sightings.waiting) for name, known in self._clusters.items()})

    def load(self, content: bytes) -> bool:
        """Add what `dump` gave; False, and nothing changes, when it cannot be read."""
        loaded = store.load(content)
        for name, (history, waiting) in (loaded or {}).items():
            known = self._clusters.setdefault(name, Cluster())
            known.history.extendleft(reversed(history))
            known.sightings.remembered = waiting
            known.rebuild()
        return loaded is not None


def _hide(known: Cluster, census: Census, now: float) -> None:
    """Jobs that the queues count and the site does not show: the first that came is taken to be the first to go."""
    known.hidden = {queue.name: known.hidden.get(queue.name, {}) for queue in census.queues}
    if census.server.query_other_jobs:
        known.hidden = {}
        return
    shown: dict[str, int] = {}
    for job in census.jobs:
        if job.state == "Q":
            shown[job.queue] = shown.get(job.queue, 0) + 1
    for queue in census.queues:
        ages = known.hidden[queue.name]
        more = queue.state_count.get("Queued", 0) - shown.get(queue.name, 0) - sum(ages.values())
        if more > 0:
            ages[now] = ages.get(now, 0) + more
        while more < 0 and ages:
            first = next(iter(ages))
            gone = min(-more, ages[first])
            more += gone
            ages[first] -= gone
            if not ages[first]:
                del ages[first]


def _estimate(known: Cluster, shape: Shape, queue: str, user: str, now: float, wanted: list[float]) -> Wait:
    """The longest of what the groups say that hold this job, the same job if it fitted, and with less backlog.

    A job that does not fit, or comes behind more of its own, does not start sooner: groups of few jobs may say so.
    """
    groups = known.sightings.groups
    fits = (shape.fits_now,) if shape.fits_now is not False else (False, True)
    backlogs = range(groups.backlog(user, queue), -1, -1)
    worst: list[float] = []
    level, group, done = -1, Group(), set()
    for fit, backlog in product(fits, backlogs):
        found, candidate = groups.find(Traits(user, queue, size_class(shape.ncpus), fit, backlog))
        if level < 0:
            level, group = found, candidate
        if (id(candidate), fit) in done:
            continue
        done.add((id(candidate), fit))
        samples = [*candidate.samples(now), *_beside(known, queue, found, fit, now)]
        said = quantiles(samples, wanted)
        worst = [max(pair) for pair in zip(worst, said, strict=True)] if worst else said
    return _wait(dict(zip(wanted, worst, strict=True)), level, group, now)


def _beside(known: Cluster, queue: str, level: int, fits: bool | None, now: float) -> Iterator[Sample]:
    """What stands beside every group: the prior, the cluster's latest waits, hidden jobs, PBS's own estimates."""
    for seconds, share in PRIOR[fits is not False]:
        yield seconds, START, share * _PRIOR_WEIGHT
    latest = known.sightings.groups.latest()
    for ended in latest:
        yield ended.wait, START if ended.started else CENSORED, TAIL / len(latest)
    if "user" not in LEVELS[level]:
        for submitted, jobs in known.hidden.get(queue, {}).items():
            yield max(0.0, now - submitted), CENSORED, float(jobs)
    waiting = known.sightings.waiting
    for key, start in known.sightings.estimates.items():
        if waiting[key].traits.queue == queue and start >= now:
            yield start - waiting[key].submitted, START, 1 / len(known.sightings.estimates)


def _wait(found: dict[float, float], level: int, group: Group, now: float) -> Wait:
    starts = sum(weight for _, kind, weight in group.samples(now) if kind == START)
    samples = len(group.ended) + sum(group.waiting.values())
    if not samples:
        return Wait(found, 0, "prior", 0.0)
    basis = "+".join(LEVELS[level]) or "cluster"
    return Wait(found, samples, basis, round(starts / (starts + _HALF) * (1 - level / 2 / len(LEVELS)), 3))
