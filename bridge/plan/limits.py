"""Which queue takes a job, and what the limits of queues and of the server say of it. Pure.

PBS has two kinds: what refuses a job at qsub (or keeps it in its routing queue), and what lets an accepted job wait.
Limits of groups and projects are not looked at: neither which the account belongs to nor what they use is visible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bridge.plan.hosts import amount
from pbs_adapter.models import Census
from pbs_adapter.remote.parse import Limit, Limits, Queue, Value

Asked = Mapping[str, int]


class Held(NamedTuple):
    """What somebody has in PBS: jobs, those in state Q, those that run; cores of all and of the running ones."""

    jobs: int = 0
    waiting: int = 0
    running: int = 0
    ncpus: int = 0
    running_ncpus: int = 0


class Standing(NamedTuple):
    """What limits say of one more job: never, not now, not to be known; and what they leave (None: no limit)."""

    refused: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    jobs: int | None = None
    running: int | None = None
    ncpus: int | None = None

    def and_(self, other: Standing) -> Standing:
        """Both hold."""
        return Standing(
            self.refused + other.refused,
            self.waits + other.waits,
            self.doubts + other.doubts,
            least(self.jobs, other.jobs),
            least(self.running, other.running),
            least(self.ncpus, other.ncpus),
        )


class Route(NamedTuple):
    """The execution queues that would take the job, where it goes first; or why none would.

    excess: how many times what is allowed the job asks for, of queues that refuse it. remote: destinations on other
    servers, of which nothing is visible here.
    """

    queues: tuple[Queue, ...] = ()
    standing: Standing = Standing()
    excess: float = 0.0
    remote: tuple[str, ...] = ()


def least(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits, None being no limit."""
    return min((n for n in (one, other) if n is not None), default=None)


def shown(name: str, value: float) -> str:
    """An amount for people."""
    if name == "mem":
        return f"{value / (1 << 30):.4g}Gi"
    return f"{value:.0f}s" if name == "walltime" else f"{value:.0f}"


def over(asked: Asked, most: Mapping[str, Value], who: str) -> Iterator[str]:
    """What the job asks more of than `most` allows."""
    for name, value in asked.items():
        limit = most.get(name)
        if isinstance(limit, (int, float)) and value > limit:
            yield f"asks {name} {shown(name, value)}, {who} at most {shown(name, limit)}"


def excess(asked: Asked, most: Mapping[str, Value]) -> float:
    """How many times what `most` allows the job asks for, of the resource where that is worst.

    >>> excess({"walltime": 108000, "ncpus": 1}, {"walltime": 86400, "ncpus": 4})
    1.25
    """
    pairs = ((value, most.get(name)) for name, value in asked.items())
    return max((v / m for v, m in pairs if isinstance(m, (int, float)) and m > 0), default=0.0)


def destinations(queue: Queue, server: str) -> tuple[list[str], list[str]]:
    """Where a routing queue leads to: queues of this server by name, and those of other servers as PBS writes them."""
    here: list[str] = []
    elsewhere: list[str] = []
    for each in queue.route_destinations:
        name, _, host = each.partition("@")
        ours = not host or not server or host.split(".")[0] == server.split(".")[0]
        (here if ours else elsewhere).append(name if ours else each)
    return list(dict.fromkeys(here)), elsewhere


def _under(asked: Asked, fewest: Mapping[str, Value], who: str) -> Iterator[str]:
    for name, value in asked.items():
        limit = fewest.get(name)
        if isinstance(limit, (int, float)) and value < limit:
            yield f"asks {name} {shown(name, value)}, {who} at least {shown(name, limit)}"


class Books:
    """The queues of one census, and what the account has in each of them."""

    def __init__(self, census: Census) -> None:
        self.census, self.account = census, census.account
        self.queues: dict[str, Queue] = {queue.name: queue for queue in census.queues}
        own: dict[str, list[int]] = defaultdict(lambda: [0] * len(Held._fields))
        for job in census.jobs:
            if not _is(job.owner, census.account) or job.state in ("F", "X", "M"):
                continue
            runs, cores = job.state in ("R", "E", "B"), job.ncpus or 0
            queue = next((name for name in self.queues if _is(job.queue, name)), job.queue)
            for sums in (own[queue], own[""]):
                for index, more in enumerate((1, job.state == "Q", runs, cores, cores * runs)):
                    sums[index] += more
        self._own = {name: Held(*sums) for name, sums in own.items()}
        self._seen = bool(census.jobs_at and census.account)

    def route(self, name: str, asked: Asked, *, routed: bool = False, seen: frozenset[str] = frozenset()) -> Route:
        """Where a job that names queue `name` comes to: routing queues try their destinations in order."""
        queue = self.queues.get(name)
        if queue is None:
            return Route(standing=Standing((f"there is no queue {name}",)))
        here = self._enter(queue, asked, routed)
        if here.refused or not queue.route_destinations:
            return Route(() if here.refused else (queue,), here, excess(asked, queue.resources_max))
        names, remote = destinations(queue, self.census.server.name or "")
        ahead = [self.route(n, asked, routed=True, seen=seen | {name}) for n in names if n not in seen | {name}]
        takers = sorted((r for r in ahead if r.queues), key=lambda r: bool(r.standing.waits))  # stable: PBS's order
        remote += [each for route in ahead for each in route.remote]
        if not takers and remote:
            text = f"queue {name} may route it to {', '.join(dict.fromkeys(remote))}, of which nothing is visible here"
            return Route(standing=here.and_(Standing(doubts=(text,))), remote=tuple(remote))
        if not takers:  # told is what comes closest, so that nobody asks for less than there is
            nearest = min(ahead, key=lambda r: (len(r.standing.refused), r.excess), default=None)
            why = nearest.standing.refused if nearest else (f"queue {name} routes to no queue here",)
            return Route(standing=Standing(why), excess=nearest.excess if nearest else 0.0)
        if not queue.started:
            here = here._replace(waits=(*here.waits, f"queue {name} is not started"))
        every = tuple(dict.fromkeys(q.name for r in takers for q in r.queues))
        return Route(tuple(self.queues[n] for n in every), here.and_(takers[0].standing))

    def _enter(self, queue: Queue, asked: Asked, routed: bool) -> Standing:
        """What qsub, or the routing queue, meets."""
        name = f"queue {queue.name}"
        refused = [
            *over(asked, queue.resources_max, f"{name} allows"),
            *_under(asked, queue.resources_min, f"{name} takes"),
        ]
        if not queue.enabled:
            refused.insert(0, f"{name} takes no jobs now (it is disabled)")
        if queue.from_route_only and not routed:
            refused.insert(0, f"{name} takes jobs from routing queues only")
        if queue.acl_users is not None and self.account and not admits(queue.acl_users, self.account):
            refused.insert(0, f"{name} does not admit {self.account}")
        doubts: tuple[str, ...] = ()
        if queue.acl_groups is not None and not self._own.get(queue.name, Held()).jobs:
            doubts = (f"{name} admits members of some groups only",)
        return Standing(tuple(refused), (), doubts).and_(self._entering(queue.limits, asked, queue))

    def running(self, queue: Queue, asked: Asked) -> Standing:
        """What the scheduler meets, hosts apart: queue and server, their limits and their own resources."""
        server = self.census.server
        waits = [] if queue.started else [f"queue {queue.name} is not started"]
        if not server.scheduling:
            waits.append("the server starts no jobs now (scheduling is off)")
        found = Standing(waits=tuple(waits))
        for where, thing in ((queue, queue), (None, server)):
            said = f"queue {queue.name} has" if where else "the server has"
            found = found.and_(self._running(thing.limits, asked, where))
            found = found.and_(_stock(asked, thing.resources_available, thing.resources_assigned, said))
        return found

    def server(self, asked: Asked) -> Standing:
        """What the server itself says at qsub."""
        server = self.census.server
        refused = tuple(over(asked, server.resources_max, "the server allows"))
        return Standing(refused).and_(self._entering(server.limits, asked, None))

    def _parties(self, queue: Queue | None) -> Iterator[tuple[str, str, Held]]:
        """Whose use counts: (kind of limit, name, what they have), in `queue` or on the whole server."""
        thing = queue if queue is not None else self.census.server
        counts = thing.state_count
        running = counts.get("Running", 0) + counts.get("Exiting", 0)
        cores = amount(thing.resources_assigned, "ncpus")
        yield "u", self.account or "the account", self._own.get(queue.name if queue is not None else "", Held())
        yield "o", "everybody", Held(thing.total_jobs, counts.get("Queued", 0), running, cores, cores)

    def _unseen(self, limits: Limits, where: str) -> Standing:
        """Limits of a user say nothing while it is not known what the user has."""
        rules = [limits.max_run, limits.max_queued, limits.queued_threshold]
        rules += [*limits.max_run_res.values(), *limits.max_queued_res.values()]
        bound = any(_bound(rule, "u", self.account) is not None for rule in rules)
        unseen = f"there are limits for a user {where}, and what the account has in PBS is not known yet"
        return Standing(doubts=(unseen,)) if bound and not self._seen else Standing()

    def _entering(self, limits: Limits, asked: Asked, queue: Queue | None) -> Standing:
        if not any(limits):
            return Standing()
        where, found = f"in queue {queue.name}" if queue is not None else "on the server", Standing()
        for kind, who, has in self._parties(queue):
            for rule, held, what in (
                (limits.max_queued, has.jobs, "jobs"),
                (limits.queued_threshold, has.waiting, "waiting jobs"),
            ):
                most = _bound(rule, kind, self.account)
                if most is not None:
                    waits = (f"{who} may have {most} {what} {where}, and has {held}",) if held >= most else ()
                    found = found.and_(Standing(waits=waits, jobs=max(0, most - held)))
            for name, rules in limits.max_queued_res.items():
                left = self._amount(
                    asked, name, _bound(rules, kind, self.account), has, has.ncpus, f"{who} may have", where
                )
                found = found.and_(left._replace(ncpus=None))
        return found

    def _running(self, limits: Limits, asked: Asked, queue: Queue | None) -> Standing:
        if not any(limits):
            return Standing()
        where = f"in queue {queue.name}" if queue is not None else "on the server"
        found = self._unseen(limits, where)
        for kind, who, has in self._parties(queue):
            most = _bound(limits.max_run, kind, self.account)
            if most is not None:
                text = f"{who} may run {most} jobs {where}, and runs {has.running}"
                waits = (text,) if has.running >= most else ()
                found = found.and_(Standing(waits=waits, running=max(0, most - has.running)))
            for name, rules in limits.max_run_res.items():
                most = _bound(rules, kind, self.account)
                found = found.and_(self._amount(asked, name, most, has, has.running_ncpus, f"{who} may use", where))
        return found

    def _amount(
        self, asked: Asked, name: str, most: int | None, has: Held, cores: int, who: str, where: str
    ) -> Standing:
        wanted = asked.get(name, 0)
        if most is None or not wanted:
            return Standing()
        if wanted > most:
            return Standing((f"asks {name} {shown(name, wanted)}, {who} at most {shown(name, most)} {where}",))
        if name != "ncpus":
            unseen = f"{who} {name} {shown(name, most)} {where}, and what their jobs have of it is not visible"
            return Standing(doubts=(unseen,) if has.running else ())
        text = f"asks ncpus {wanted}, {who} {most} {where}, and {cores} are in use"
        return Standing(waits=(text,) if cores + wanted > most else (), ncpus=max(0, most - cores))


def _stock(asked: Asked, available: Mapping[str, Value], assigned: Mapping[str, Value], who: str) -> Standing:
    """Resources that queue or server keep an account of themselves (licences, totals of a queue)."""
    refused, waits = tuple(over(asked, available, who)), []
    for name, value in asked.items():
        left = amount(available, name) - amount(assigned, name)
        if name in available and isinstance(available[name], (int, float)) and left < value <= amount(available, name):
            waits.append(f"asks {name} {shown(name, value)}, {who} {shown(name, max(0, left))} left")
    return Standing(refused, tuple(waits))


def _is(shown: str, name: str) -> bool:
    """Does PBS's table mean `name`? It cuts long ones, and then they end with `*`."""
    return name.startswith(shown[:-1]) if shown.endswith("*") else shown == name


def _bound(limits: tuple[Limit, ...], kind: str, account: str) -> int | None:
    """The limit of the account itself, else that of any user; or with kind o the one for all together."""
    named = [limit.value for limit in limits if limit.kind == kind and limit.name == account]
    general = [limit.value for limit in limits if limit.kind == kind and limit.name in ("PBS_GENERIC", "PBS_ALL")]
    return min((int(value) for value in named or general if isinstance(value, (int, float))), default=None)


def admits(acl: tuple[str, ...], user: str) -> bool:
    """Does a list of users let `user` in? `+name`, `name`, `-name`, each perhaps with @host; the first one counts.

    >>> admits(("alice@*", "-bob"), "alice"), admits(("-bob",), "bob"), admits((), "alice")
    (True, False, False)
    """
    for entry in acl:
        if entry.lstrip("+-").split("@")[0] in (user, "*"):
            return not entry.startswith("-")
    return False
