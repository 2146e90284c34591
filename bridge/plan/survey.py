"""One census, prepared for many questions: each pair of vnodes and resources is read once, each answer kept.

A router asks about ten queues and a thousand hosts for every pod; most pods ask the same as another.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.api.settings import NumaHosts
from bridge.plan import chunks
from bridge.plan.board import Board, Room
from bridge.plan.floor import own_queues, promised, takes
from bridge.plan.hosts import Chunk, hosts
from bridge.plan.limits import Books, Standing, least
from bridge.plan.placement import Headroom, NumaWish, Placement, Sizes
from pbs_adapter.models import Census, JobOptions
from pbs_adapter.remote.parse import Queue, Value

_Key = tuple[str, str, tuple[str, ...], tuple[tuple[str, Value], ...], str]


class Survey:
    """Answers from `census`; `domains` is the table of hosts whose NUMA domains PBS does not show."""

    def __init__(self, census: Census, domains: Sequence[NumaHosts] = ()) -> None:
        self.census, self._domains = census, domains
        self._books = Books(census)
        self._own = own_queues(census.vnodes)
        self._promises = any(map(promised, census.vnodes))
        self._grounds: dict[tuple[str, str], chunks.Ground] = {}
        self._boards: dict[_Key, Board] = {}
        self._rooms: dict[tuple[_Key, Chunk], Room] = {}
        self._known: dict[tuple[str, str | None, NumaWish], Placement] = {}

    def place(self, options: JobOptions, queue: str | None, numa: NumaWish) -> Placement:
        """See `bridge.plan.fit.place`."""
        key = (repr(options), queue, numa)
        if key not in self._known:
            self._known[key] = self._place(options, queue or options.queue or self.census.server.default_queue, numa)
        return self._known[key]

    def _place(self, options: JobOptions, name: str, numa: NumaWish) -> Placement:
        asked = chunks.amounts(options, {}) | {"walltime": options.walltime}
        route = self._books.route(name, asked)
        standing = self._books.server(asked).and_(route.standing)
        if route.remote and not standing.refused:
            left = _headroom(standing)
            return Placement(True, None, doubts=standing.doubts, waits=standing.waits, limits_left=left)
        if not route.queues:
            return Placement(False, False, standing.refused, standing.waits, limits_left=_headroom(standing))
        queue = route.queues[0]
        standing = standing.and_(self._books.running(queue, asked))
        board, chunk, room, unseen = self._room(options, queue, numa)
        return _answer(standing.and_(Standing(doubts=unseen)), board, chunk, room, route.queues)

    def _room(self, options: JobOptions, queue: Queue, numa: NumaWish) -> tuple[Board, Chunk, Room, tuple[str, ...]]:
        server = self.census.server
        place = options.place or str(
            queue.resources_default.get("place") or server.resources_default.get("place") or ""
        )
        defaults = {**server.default_chunk, **queue.default_chunk}
        ground = self._ground(queue)
        asked = chunks.chunk(options, place, defaults, one_domain=numa == "require")
        chunk, left = chunks.known(asked, ground)
        counted = {*queue.resources_available, *server.resources_available}
        unseen = tuple(f"no host reports {name}: PBS decides" for name in left if name not in counted)
        key = (ground.queue, ground.partition, chunk.names, chunk.words, chunk.sharing)
        if key not in self._boards:
            self._boards[key] = Board(hosts(ground.vnodes, chunk, self._domains))
        if (key, chunk) not in self._rooms:
            self._rooms[key, chunk] = self._boards[key].judge(chunk)
        return self._boards[key], chunk, self._rooms[key, chunk], unseen

    def _ground(self, queue: Queue) -> chunks.Ground:
        """A queue with vnodes of its own has only these; the others share those that belong to no queue."""
        name, partition = queue.name, queue.partition
        key = (name if name in self._own or self._promises else "", partition)
        if key not in self._grounds:
            mine = (v for v in self.census.vnodes if (v.partition or "") == (partition or ""))
            vnodes = [v for v in mine if takes(v, name, self._own)]
            self._grounds[key] = chunks.ground(vnodes, *key)
        return self._grounds[key]

    def sizes(self, queue: str | None = None) -> Sizes:
        """How large a chunk may be on the vnodes of `queue` (the default one); limits are not looked at."""
        queues = self._books.route(queue or self.census.server.default_queue, {}).queues
        if not queues:
            return Sizes(0, 0, 0, 0, 0)
        places = hosts(self._ground(queues[0]).vnodes, Chunk(("ncpus", "mem"), (1, 0)), self._domains)
        rows = [(host, row) for host in places for row in host.rows]
        parts = [(row, host.domains) for host, row in rows if host.domains]
        vnodes = [v for v in self._ground(queues[0]).vnodes if v.usable]
        return Sizes(
            free=sum(max(0, v.ncpus - v.ncpus_assigned) for v in vnodes),
            now=max((sum(r.free[0] for r in host.rows if r.open) for host in places), default=0),
            ever=max((sum(r.total[0] for r in host.rows) for host in places), default=0),
            domain_now=max((min(row.free[0], row.total[0] // n) for row, n in parts if row.open), default=0),
            domain_ever=max((row.total[0] // n for row, n in parts), default=0),
        )


def _answer(standing: Standing, board: Board, chunk: Chunk, room: Room, queues: tuple[Queue, ...]) -> Placement:
    refused, waits = standing.refused, standing.waits
    if not room.ever:
        refused += chunks.short(board.hosts, chunk, free=False)
    elif not room.now:
        waits += chunks.short(board.hosts, chunk, free=True)
    doubts = standing.doubts + room.doubts
    sure = False if refused or waits else None if doubts else True
    left = least(room.largest, standing.ncpus) or 0
    return Placement(
        ever=not refused,
        now=sure,
        refused=refused,
        waits=waits,
        doubts=doubts,
        domains_now=(room.fewest, room.most) if room.now and room.known else None,
        domains_best=room.best,
        domains_most=room.worst,
        largest_now=0 if refused else left,
        queues=tuple(queue.name for queue in queues),
        limits_left=_headroom(standing),
    )


def _headroom(standing: Standing) -> Headroom:
    return Headroom(standing.jobs, standing.running, standing.ncpus)
