"""Can this job run on this cluster: ever (`fit`, asked of its size), and now, in this queue (`place`)?

PBS accepts many a job that no host could hold and then lets it wait for ever; the bridge says so instead, with numbers.
Hosts that are down count for ever, not for now. `place` judges as the scheduler would if no other job waited: what
other jobs' waiting means is for the estimate of the wait. A reservation that has not begun, and limits of groups and
projects, are not visible in a census.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.api.settings import NumaHosts
from bridge.plan import chunks
from bridge.plan.board import Board
from bridge.plan.hosts import hosts
from bridge.plan.limits import destinations, excess, over
from bridge.plan.placement import NumaWish, Placement
from bridge.plan.survey import Survey
from pbs_adapter.models import Census, JobOptions
from pbs_adapter.remote.parse import Queue


@dataclass(frozen=True, slots=True)
class Fit:
    """Why the job may never run, each with what it asks and what there is at most; nothing: it may run one day.

    over: limits of queue and server; PBS refuses such a job. too_big: no host holds it; PBS takes it all the same.
    """

    over: tuple[str, ...] = ()
    too_big: tuple[str, ...] = ()

    @property
    def ever(self) -> bool:
        """Whether the job may run one day."""
        return not (self.over or self.too_big)

    @property
    def message(self) -> str:
        """All of it in one line; empty when the job may run."""
        return "; ".join((*self.over, *self.too_big))


def fit(options: JobOptions, census: Census, *, numa: NumaWish | None = None, domains: Sequence[NumaHosts] = ()) -> Fit:
    """Compare the job's one chunk with hosts, and its totals with the queue's and the server's `resources_max`.

    With `require` it is compared with NUMA domains, as far as vnodes or the table `domains` show them.
    """
    asked = chunks.amounts(options, {}) | {"walltime": options.walltime}
    queues, remote = _execution_queues(options.queue or census.server.default_queue, census)
    over_server = list(over(asked, census.server.resources_max, "the server allows"))
    ordered = sorted(queues, key=lambda q: excess(asked, q.resources_max))  # told is what comes closest
    over_queues = [list(over(asked, q.resources_max, f"queue {q.name} allows")) for q in ordered]
    if remote:  # another server may take it, and neither its limits nor its hosts are visible here
        return Fit(tuple(over_server))
    refused = over_server + (min(over_queues, key=len) if over_queues and all(over_queues) else [])
    names = {queue.name for queue in queues}
    vnodes = [v for v in census.vnodes if not v.queue or not names or v.queue in names]
    asked_chunk = chunks.chunk(options, options.place or "", {}, one_domain=numa == "require")
    chunk, _ = chunks.known(asked_chunk, chunks.ground(vnodes))
    board = Board(hosts(vnodes, chunk, domains))
    too_big = () if not vnodes or board.judge(chunk).ever else chunks.short(board.hosts, chunk, free=False)
    return Fit(tuple(refused), too_big)


def _execution_queues(name: str, census: Census) -> tuple[list[Queue], bool]:
    """The execution queues that the job may come to: the one named, or where that routes to; and whether it may come
    to another server.
    """
    by_name: dict[str, Queue] = {queue.name: queue for queue in census.queues}
    names, remote = [name], False
    for each in names:  # grows while it is walked
        queue = by_name.get(each)
        here, elsewhere = destinations(queue, census.server.name or "") if queue is not None else ([], [])
        names += [found for found in here if found not in names]
        remote = remote or bool(elsewhere)
    return [by_name[n] for n in names if n in by_name and not by_name[n].route_destinations], remote


def place(
    options: JobOptions,
    queue: str | None,
    census: Census,
    *,
    numa: NumaWish = "prefer",
    domains: Sequence[NumaHosts] = (),
) -> Placement:
    """Would the job run in `queue` (None: the job's own, else the server's default), ever and at once?

    numa: with `require` the chunk must lie within one NUMA domain; the other wishes change nothing here.
    domains: the settings' table of hosts that PBS shows as one vnode each. Ask a `Places` when asking often.
    """
    return Survey(census, domains).place(options, queue, numa)


class Places:
    """`place` against the newest census, worked out once for all jobs that ask the same."""

    def __init__(self, domains: Sequence[NumaHosts] = ()) -> None:
        self._domains = domains
        self._survey: Survey | None = None

    def survey(self, census: Census) -> Survey:
        """What answers for this census."""
        if self._survey is None or self._survey.census is not census:
            self._survey = Survey(census, self._domains)
        return self._survey

    def of(self, options: JobOptions, queue: str | None, census: Census, numa: NumaWish = "prefer") -> Placement:
        """See `place`."""
        return self.survey(census).place(options, queue, numa)


class Fits:
    """`fit` against the newest census, worked out once for all pods that ask the same."""

    def __init__(self, domains: Sequence[NumaHosts] = ()) -> None:
        self._domains = domains
        self._census: Census | None = None
        self._known: dict[tuple[str, NumaWish | None], Fit] = {}

    def of(self, options: JobOptions, census: Census, numa: NumaWish | None = None) -> Fit:
        """See `fit`."""
        if census is not self._census:
            self._census, self._known = census, {}
        key = repr(options), numa
        if key not in self._known:
            self._known[key] = fit(options, census, numa=numa, domains=self._domains)
        return self._known[key]
