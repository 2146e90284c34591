"""Where a chunk fits: hosts as PBS's vnodes show them, and NUMA domains within. The rules are the scheduler's own.

A chunk goes on one host. It is broken over the host's vnodes only if none of them has enough left to hold it whole, and
never under `vscatter`; a vnode that is not in state "free" gives nothing, but one that is large enough keeps the chunk
from being broken all the same (node_info.cpp: eval_simple_selspec, can_fit_on_vnode, is_vnode_eligible).
Amounts are integers in the order of the chunk's names: ncpus, mem, then what else it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from bridge.api.settings import NumaHosts
from pbs_adapter.remote.parse import Value, Vnode

Amounts = tuple[int, ...]
RESERVED = "reservations hold vnodes that would be large enough"
UNSEEN = (
    "how cores in use are spread over the NUMA domains within hosts is not visible; it is checked where the job starts"
)
GROUPED = "placement sets (group=) are not visible"


class Chunk(NamedTuple):
    """What a job asks of one host. `words` are text and truth values that vnodes must have.

    sharing: excl, exclhost, shared or "". unbroken: only on one vnode (vscatter). one_domain: only in one NUMA domain.
    grouped: by a placement set.
    """

    names: tuple[str, ...]
    need: Amounts
    words: tuple[tuple[str, Value], ...] = ()
    sharing: str = ""
    unbroken: bool = False
    one_domain: bool = False
    grouped: bool = False


class Row(NamedTuple):
    """One vnode. `free` is what is left even where `open` is false: its state or exclusive use keep the job away."""

    total: Amounts
    free: Amounts
    open: bool
    reserved: bool
    domain: bool  # has CPUs


class Host(NamedTuple):
    """Vnodes of one host. `domains` within its single vnode: 0 where that is not known, 1 where vnodes are domains."""

    rows: tuple[Row, ...]
    domains: int


class Ready(NamedTuple):
    """A host that has room: the fewest and the most domains the chunk would be on, and what makes that uncertain."""

    fewest: int
    most: int
    doubt: str = ""


def hosts(vnodes: Iterable[Vnode], chunk: Chunk, domains: Sequence[NumaHosts] = ()) -> list[Host]:
    """Hosts with the vnodes that have the chunk's words; alike ones once."""
    found: dict[str, list[Vnode]] = {}
    for vnode in vnodes:
        found.setdefault(vnode.host, []).append(vnode)
    made = (_host(name, group, chunk, domains) for name, group in found.items())
    return [host for host in dict.fromkeys(made) if host.rows]


def _host(name: str, vnodes: Sequence[Vnode], chunk: Chunk, domains: Sequence[NumaHosts]) -> Host:
    whole_taken = any(v.jobs and exclusive_host(chunk.sharing, v.sharing) for v in vnodes)
    fitting = [vnode for vnode in vnodes if all(_has(vnode.available, *word) for word in chunk.words)]
    rows = tuple(_row(vnode, chunk, whole_taken) for vnode in fitting)
    several = sum(bool(vnode.ncpus) for vnode in vnodes) > 1
    table = next((entry.domains for entry in domains if fnmatchcase(name, entry.hosts)), 0)
    return Host(tuple(row for row in rows if any(row.total)), 1 if several else table)


def _row(vnode: Vnode, chunk: Chunk, whole_taken: bool) -> Row:
    total = tuple(amount(vnode.available, name) for name in chunk.names)
    free = tuple(max(0, t - amount(vnode.assigned, name)) for t, name in zip(total, chunk.names, strict=True))
    kept = whole_taken or (bool(vnode.jobs) and exclusive(chunk.sharing, vnode.sharing))
    return Row(total, free, vnode.usable and not kept, bool(vnode.reservations), vnode.ncpus > 0)


def amount(resources: Mapping[str, Value], name: str) -> int:
    """A consumable as a whole number; 0 where it is not there or is no number."""
    value = resources.get(name, 0)
    return int(value) if isinstance(value, (int, float)) else 0


def _has(available: Mapping[str, Value], name: str, wanted: Value) -> bool:
    """PBS: a truth value that is not set is false; text matches one of a comma-separated list."""
    value = available.get(name)
    if isinstance(wanted, bool):
        return bool(value) is wanted
    return value is not None and str(wanted) in [word.strip() for word in str(value).split(",")]


def exclusive(sharing: str, vnode: str) -> bool:
    """Would the job have the vnode to itself (PBS: is_excl)? `vnode` is the vnode's attribute `sharing`."""
    if vnode in ("force_excl", "force_exclhost"):
        return True
    if vnode == "ignore_excl" or sharing == "shared":
        return False
    return sharing in ("excl", "exclhost") or vnode in ("default_excl", "default_exclhost")


def exclusive_host(sharing: str, vnode: str) -> bool:
    """Would the job have the whole host (PBS: is_exclhost)?"""
    if vnode in ("force_exclhost", "ignore_excl"):
        return vnode == "force_exclhost"
    return sharing == "exclhost" or (vnode == "default_exclhost" and sharing not in ("excl", "shared"))


def holds(have: Amounts, need: Amounts) -> bool:
    """Is there enough of everything?"""
    return all(map(int.__ge__, have, need))


def total(rows: Iterable[Row], of: Callable[[Row], Amounts]) -> Amounts:
    """Added up over vnodes."""
    return tuple(map(sum, zip(*map(of, rows), strict=True)))


def size(host: Host, chunk: Chunk) -> tuple[int, int] | None:
    """The fewest and the most domains that the chunk may be on in this host, whatever else runs; None: it is too small.

    (0, 0) where the host's domains are not known.
    """
    need, rows = chunk.need, host.rows
    if len(rows) == 1:
        if not holds(rows[0].total, need):
            return None
        best = _fewest_parts(rows[0].total, need, host.domains) if host.domains > 1 else host.domains
        return None if chunk.one_domain and best > 1 else (best, min(host.domains, max(best, need[0])))
    unbroken = chunk.unbroken or chunk.one_domain
    whole = any(holds(row.total, need) for row in rows)
    if not whole and (unbroken or not holds(total(rows, lambda row: row.total), need)):
        return None
    best = 1 if whole else _fewest([row.total for row in rows], need)
    return best, 1 if unbroken else max(best, min(sum(row.domain for row in rows), need[0]))


def ready(host: Host, chunk: Chunk) -> Ready | None:
    """Whether the host would take the chunk now; None: it has no room. The chunk is not too large for the host."""
    if len(host.rows) == 1:
        return _within(host, chunk)
    unbroken = chunk.unbroken or chunk.one_domain
    sure = _across([row for row in host.rows if not row.reserved], host.rows, chunk, unbroken)
    found = sure or _across(host.rows, host.rows, chunk, unbroken)
    if found is None:
        return None
    doubt = RESERVED if not sure else GROUPED if chunk.grouped and found[1] > 1 else ""
    return Ready(*found, doubt)


def _within(host: Host, chunk: Chunk) -> Ready | None:
    """A host of one vnode; its domains, if any, are of equal size, and where in them free cores lie is not visible."""
    (row,), need, parts = host.rows, chunk.need, host.domains
    if not row.open or not holds(row.free, need):
        return None
    fewest = _fewest_parts(row.total, need, parts) if parts > 1 else parts
    most = max(fewest, _spread(row.free, need, parts)) if parts > 1 else parts
    return Ready(fewest, most, RESERVED if row.reserved else UNSEEN if chunk.one_domain and most != 1 else "")


def _fewest_parts(have: Amounts, need: Amounts, parts: int) -> int:
    """How many of `parts` equal parts of ncpus and mem it takes at least."""
    return min(parts, max(-(-n * parts // h) for n, h in zip(need[:2], have[:2], strict=True) if h))


def _spread(free: Amounts, need: Amounts, parts: int) -> int:
    """How many domains it takes if what is free is spread evenly over them."""
    size, more = divmod(free[0], parts)
    by_cores = -(-need[0] // (size + 1)) if need[0] <= more * (size + 1) else -(-(need[0] - more) // max(1, size))
    by_memory = -(-need[1] * parts // free[1]) if free[1] else 1
    return min(parts, max(by_cores, by_memory))


def _across(rows: Sequence[Row], every: Sequence[Row], chunk: Chunk, unbroken: bool) -> tuple[int, int] | None:
    """The fewest and the most of a host's vnodes that the chunk would be on now; those with CPUs are NUMA domains."""
    need, usable = chunk.need, [row for row in rows if row.open]
    if any(holds(row.free, need) for row in usable):
        return 1, 1
    if unbroken or not usable or any(holds(row.free, need) for row in every):
        return None
    if not holds(total(usable, lambda row: row.free), need):
        return None
    given = [row.free for row in usable if any(f and n for f, n in zip(row.free, need, strict=True))]
    return _fewest(given, need), min(len(given), _most(given, need))


def _fewest(given: Sequence[Amounts], need: Amounts) -> int:
    """A lower bound of pieces, exact for one resource: the largest first."""
    return max(
        _pieces(sorted(column, reverse=True), n) for column, n in zip(zip(*given, strict=True), need, strict=True)
    )


def _most(given: Sequence[Amounts], need: Amounts) -> int:
    """An upper bound of pieces, exact for one resource: the site's order of vnodes may put the smallest first."""
    return max(_pieces(sorted(column), n) for column, n in zip(zip(*given, strict=True), need, strict=True))


def _pieces(column: Sequence[int], need: int) -> int:
    pieces = 0
    for have in column:
        if need <= 0:
            break
        need -= have
        pieces += 1
    return pieces


def holders(places: Iterable[Host], chunk: Chunk, *, free: bool) -> Iterator[Amounts]:
    """What each place that could hold the chunk has: hosts, or domains where it must not be broken; for messages."""
    split = chunk.unbroken or chunk.one_domain
    for host in places:
        rows = [row for row in host.rows if row.open] if free else list(host.rows)
        sizes = [row.free if free else row.total for row in rows]
        if len(host.rows) == 1 and chunk.one_domain and host.domains > 1:
            yield from (tuple(v // host.domains for v in size[:2]) + size[2:] for size in sizes)
        elif split or len(sizes) < 2:
            yield from sizes
        else:
            yield tuple(map(sum, zip(*sizes, strict=True)))
