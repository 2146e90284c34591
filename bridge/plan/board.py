"""All hosts of a queue at once, arranged so that a question need not look at each: thousands are asked of thousands.

Exact all the same: of hosts of one vnode only those are kept that no other one beats in everything; what a host could
hold when empty is worked out for each type of host; and the search for the most domains ends when there cannot be more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bridge.plan.hosts import Amounts, Chunk, Host, Row, holds, ready, size, total

NO, MAYBE, YES = 0, 1, 2


class Room(NamedTuple):
    """What the hosts can do for a chunk. now: NO, MAYBE (for `doubts`), YES.

    fewest and most: domains it may be spread over now; best and worst: on any placement; known: the domains are.
    largest: most ncpus such a chunk could have now.
    """

    ever: bool = False
    now: int = NO
    fewest: int = 0
    most: int = 0
    best: int = 0
    worst: int = 0
    known: bool = True
    largest: int = 0
    doubts: tuple[str, ...] = ()


class Board:
    """Hosts as `hosts` made them for one list of resources."""

    def __init__(self, places: Iterable[Host]) -> None:
        every = list(places)
        self._types = list(dict.fromkeys(Host(tuple(_empty(r) for r in h.rows), h.domains) for h in every))
        plain = [host for host in every if len(host.rows) == 1 and host.domains < 2]
        others = [host for host in every if len(host.rows) > 1 or host.domains > 1]
        kinds = {(host.domains, host.rows[0].open, host.rows[0].reserved) for host in plain}
        self.hosts = others + [host for kind in sorted(kinds) for host in _best(plain, *kind)]
        self._ready = [host for host in self.hosts if any(row.open for row in host.rows)]
        open_rows = [[row for row in host.rows if row.open] for host in self._ready]
        self._single = _front(row.free for rows in open_rows for row in rows)
        self._together = _front(total(rows, lambda row: row.free) for rows in open_rows)
        self._most = max((max(sum(r.domain for r in h.rows), h.domains) for h in self._ready), default=0)

    def judge(self, chunk: Chunk) -> Room:
        """What all hosts together can do: the best of each."""
        sizes = [found for host in self._types if (found := size(host, chunk)) is not None]
        if not sizes:
            return Room()
        known = [best for best, _ in sizes if best]
        worst = max(worst for _, worst in sizes)
        best, largest = min(known, default=0), self._largest(chunk)
        return self._now(chunk)._replace(ever=True, best=best, worst=worst, largest=largest)

    def _largest(self, chunk: Chunk) -> int:
        fronts = self._single if chunk.unbroken or chunk.one_domain else self._single + self._together
        return max((have[0] for have in fronts if holds(have[1:], chunk.need[1:])), default=0)

    def _now(self, chunk: Chunk) -> Room:
        now, fewest, most, doubts = NO, 0, 0, set()
        known = True
        for host in self._ready:
            found = ready(host, chunk)
            if found is None or size(host, chunk) is None:
                continue
            if found.doubt:
                doubts.add(found.doubt)
            now = max(now, MAYBE if found.doubt else YES)
            known = known and bool(found.fewest)
            fewest = min(fewest, found.fewest) if fewest else found.fewest
            most = max(most, found.most)
            if now == YES and fewest == 1 and most >= self._most and known:
                break
        return Room(False, now, fewest, most, known=known, doubts=tuple(sorted(doubts)) if now == MAYBE else ())


def _empty(row: Row) -> Row:
    return row._replace(free=row.total, open=True, reserved=False)


def _best(plain: Sequence[Host], domains: int, open_: bool, reserved: bool) -> list[Host]:
    """Hosts of one kind that no other one beats, by what they have and by what is free."""
    kind = (domains, open_, reserved)
    rows = [h.rows[0] for h in plain if (h.domains, h.rows[0].open, h.rows[0].reserved) == kind]
    totals, free = {row.total: row for row in rows}, {row.free: row for row in rows}
    kept = [totals[amounts] for amounts in _front(totals)] + [free[amounts] for amounts in _front(free)]
    return [Host((row,), domains) for row in dict.fromkeys(kept)]


def _front(given: Iterable[Amounts]) -> list[Amounts]:
    """Those that no other one is at least equal to in everything."""
    kept: list[Amounts] = []
    for one in sorted(set(given), reverse=True):
        if not any(holds(other, one) for other in kept):
            kept.append(one)
    return kept
