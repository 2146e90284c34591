"""From a job's options to the chunk that a host must hold, and what to say when none does. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bridge.plan.hosts import Chunk, Host, holders, holds
from bridge.plan.limits import shown
from pbs_adapter.models import JobOptions
from pbs_adapter.remote.parse import Value, Vnode, parse_resource

_ARRANGEMENTS = re.compile(r"free|pack|scatter|vscatter")
_SHARINGS = ("excl", "exclhost", "shared")


def amounts(options: JobOptions, defaults: Mapping[str, Value]) -> dict[str, int]:
    """Consumable resources of the chunk, ncpus and mem first; PBS counts memory in whole kb."""
    memory = -(-options.mem_bytes // 1024) * 1024
    return {"ncpus": options.ncpus, "mem": memory} | {
        name: int(value)
        for name, value in typed(options, defaults).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("ncpus", "mem")
    }


def typed(options: JobOptions, defaults: Mapping[str, Value]) -> dict[str, Value]:
    """The chunk's further resources, with those that queue or server add to every chunk."""
    own = {n: parse_resource(n, v) if isinstance(v, str) else v for n, v in options.resources.items()}
    return {**defaults, **own}


def chunk(options: JobOptions, place: str, defaults: Mapping[str, Value], *, one_domain: bool = False) -> Chunk:
    """The chunk as hosts see it; `place` is what holds of `-l place`, `defaults` what is added to every chunk."""
    needs = {name: value for name, value in amounts(options, defaults).items() if value or name in ("ncpus", "mem")}
    words = [(n, v) for n, v in typed(options, defaults).items() if isinstance(v, (bool, str))]
    parts = place.split(":")
    return Chunk(
        names=tuple(needs),
        need=tuple(needs.values()),
        words=tuple(words),
        sharing=next((part for part in parts if part in _SHARINGS), ""),
        unbroken="vscatter" in parts,
        one_domain=one_domain,
        grouped=any(part.startswith("group=") for part in parts),
    )


def vscattered(place: str | None) -> str:
    """`place` with the arrangement that never breaks a chunk; sharing and group stay.

    >>> vscattered(None), vscattered("free:excl"), vscattered("group=rack")
    ('vscatter', 'vscatter:excl', 'vscatter:group=rack')
    """
    rest = [part for part in (place or "").split(":") if part and not _ARRANGEMENTS.fullmatch(part)]
    return ":".join(["vscatter", *rest])


class Ground(NamedTuple):
    """The vnodes that a queue's jobs may come to. `alone`: they are all of one host."""

    vnodes: Sequence[Vnode]
    queue: str
    partition: str
    reported: frozenset[str]
    alone: bool


def ground(vnodes: Sequence[Vnode], queue: str = "", partition: str = "") -> Ground:
    """What is worth knowing of these vnodes for every chunk."""
    reported = frozenset({"ncpus", "mem"}.union(*(vnode.available for vnode in vnodes)))
    return Ground(vnodes, queue, partition, reported, len({vnode.host for vnode in vnodes}) < 2)


def known(asked: Chunk, where: Ground) -> tuple[Chunk, tuple[str, ...]]:
    """The chunk without what no vnode reports, and the names of that: PBS keeps account of it elsewhere, or not.

    Where all vnodes are of one host, the scheduler breaks chunks under `vscatter` too (node_info.cpp: ok_break_chunk).
    """
    reported = where.reported
    pairs = [pair for pair in zip(asked.names, asked.need, strict=True) if pair[0] in reported]
    words = tuple(word for word in asked.words if word[0] in reported)
    left = [name for name in (*asked.names, *(name for name, _ in asked.words)) if name not in reported]
    names, need = tuple(name for name, _ in pairs), tuple(value for _, value in pairs)
    unbroken = asked.unbroken and not where.alone
    return asked._replace(names=names, need=need, words=words, unbroken=unbroken), tuple(left)


def short(places: Sequence[Host], asked: Chunk, *, free: bool) -> tuple[str, ...]:
    """Why no host holds the chunk, or none has it free; in numbers."""
    unit = "NUMA domain" if asked.one_domain else "vnode" if asked.unbroken else "host"
    sizes = list(holders(places, asked, free=free))
    wanted = dict(zip(asked.names, asked.need, strict=True))
    together = ", ".join(
        [f"{name} {shown(name, value)}" for name, value in wanted.items()] + [f"{n}={v}" for n, v in asked.words]
    )
    if not sizes or any(holds(size, asked.need) for size in sizes):
        return (f"asks {together}, and no {unit} has it{' free' if free else ''}",)
    most = dict(zip(asked.names, map(max, zip(*sizes, strict=True)), strict=True))
    over = [name for name in wanted if wanted[name] > most[name]]
    texts = "the most free in one {} is {}" if free else "the largest {} has {}"
    if over:
        return tuple(f"asks {n} {shown(n, wanted[n])}, " + texts.format(unit, shown(n, most[n])) for n in over)
    what = f"and no {unit} has all of it free now" if free else f"and no {unit} has all of it"
    return (f"asks {together} on one {unit}, {what}",)
