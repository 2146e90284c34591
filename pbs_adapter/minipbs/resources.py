"""What a job asks for: -l values and defaults become chunks, a placement and Resource_List; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from . import errors
from .errors import PbsError
from .placement import Chunk, Place
from .values import format_duration, format_size, parse_duration, parse_size

SIZES = frozenset({"mem", "vmem", "pmem", "pvmem", "file"})
TIMES = frozenset({"walltime", "cput", "pcput", "min_walltime", "max_walltime", "soft_walltime"})
CHUNK_ONLY = frozenset({"ncpus", "mem", "vmem", "ngpus", "nmics", "mpiprocs", "ompthreads", "host", "vnode", "arch"})
_PLACE = re.compile(
    r"(?:(free|pack|scatter|vscatter)|(excl|shared|exclhost))?(?::(excl|shared|exclhost))?(?::group=(\w+))?"
)


@dataclass(slots=True)
class Request:
    """`listed` is Resource_List as it is shown; `amounts` has the job-wide consumables (bytes for sizes)."""

    chunks: tuple[Chunk, ...]
    place: Place
    listed: dict[str, str]
    amounts: dict[str, int]
    walltime: int | None


def build(asked: Mapping[str, str], defaults: Mapping[str, str], known: frozenset[str]) -> Request:
    """The request that the -l values make. `known` are the site's own resources. Raises PbsError."""
    wide = dict(asked)
    select, place_text = wide.pop("select", None), wide.pop("place", None)
    if select is not None:
        for name in wide:
            if name in CHUNK_ONLY or name in known or name == "nodes":
                text = '"-lresource=" cannot be used with "select" or "place", resource is: '
                raise PbsError(errors.JOB_RESOURCE, text + name)
    elif place_text is not None:
        raise PbsError(errors.PLACE_WITHOUT_SELECT)
    else:
        chunk_wide = {name: wide.pop(name) for name in list(wide) if name in CHUNK_ONLY or name in known}
        for name in ("ncpus", "mem"):
            if name not in chunk_wide and name in defaults and name != "ncpus":
                chunk_wide[name] = defaults[name]
        chunk_wide.setdefault("ncpus", defaults.get("ncpus", "1"))
        order = sorted(chunk_wide, key=lambda name: name != "ncpus")
        select = ":".join(["1", *(f"{name}={chunk_wide[name]}" for name in order)])
        place_text = "pack"
    place_text = place_text or "free"
    place = parse_place(place_text)
    chunks, select, sums = parse_select(select, known)
    for name, value in defaults.items():
        if name not in CHUNK_ONLY and name not in known:
            wide.setdefault(name, value)
    listed = {name: format_size(total) if name in SIZES else str(total) for name, total in sums.items()}
    listed["nodect"] = str(sum(chunk.count for chunk in chunks))
    listed["place"], listed["select"] = place_text, select
    for name, value in wide.items():
        listed[name] = job_wide_value(name, value)
    amounts = {name: total for name, total in sums.items() if name not in ("mpiprocs",)}
    walltime = parse_duration(listed["walltime"]) if "walltime" in listed else None
    return Request(chunks, place, dict(sorted(listed.items())), amounts, walltime)


def job_wide_value(name: str, value: str) -> str:
    """A job-wide resource as Resource_List shows it. Raises PbsError."""
    if name not in TIMES:
        if name in ("nodect", "software", "nice"):
            return value
        raise PbsError(errors.UNKNOWN_RESOURCE, f"Unknown resource: {name}")
    try:
        return format_duration(parse_duration(value))
    except ValueError:
        raise PbsError(errors.BAD_VALUE, f"Illegal attribute or resource value Resource_List.{name}") from None


def parse_place(text: str) -> Place:
    """The placement that `-l place=` names. Raises PbsError."""
    match = _PLACE.fullmatch(text)
    if not match or not text:
        raise PbsError(errors.BAD_VALUE, "Illegal attribute or resource value Resource_List.place")
    arrangement = match[1] or "free"
    if match[4] == "host" and arrangement == "free":
        arrangement = "pack"
    return Place(arrangement, match[2] or match[3] or "shared")


def parse_select(text: str, known: frozenset[str]) -> tuple[tuple[Chunk, ...], str, dict[str, int]]:
    """The chunks, the text with the default of one CPU filled in, and the job-wide sums. Raises PbsError."""
    chunks: list[Chunk] = []
    texts: list[str] = []
    sums: dict[str, int] = {}
    for part in text.split("+"):
        count, amounts, strings = _parse_chunk(part, known)
        if "ncpus" not in amounts:
            amounts["ncpus"] = 1
            part += ":ncpus=1"
        texts.append(part if part[:1].isdigit() else f"1:{part}")
        for name, amount in amounts.items():
            if name != "ompthreads":
                sums[name] = sums.get(name, 0) + amount * count
        needed = tuple((name, amount) for name, amount in amounts.items() if name not in ("mpiprocs", "ompthreads"))
        chunks.append(Chunk(count, needed, strings.get("host", ""), strings.get("vnode", "")))
    return tuple(chunks), "+".join(texts), sums


def _parse_chunk(text: str, known: frozenset[str]) -> tuple[int, dict[str, int], dict[str, str]]:
    items = text.split(":")
    count = 1
    if items and items[0].isdigit():
        count = int(items.pop(0))
    amounts: dict[str, int] = {}
    strings: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if name not in CHUNK_ONLY and name not in known:
            raise PbsError(errors.UNKNOWN_RESOURCE, f"Unknown resource: {name}")
        if name in amounts or name in strings:
            text = "duplicated resource within a section of a select specification, resource is: "
            raise PbsError(errors.DUPLICATE_RESOURCE, text + name)
        if name in ("host", "vnode", "arch"):
            strings[name] = value
            continue
        try:
            amounts[name] = parse_size(value) if name in SIZES else int(value)
        except ValueError:
            raise PbsError(errors.BAD_VALUE, f"Illegal attribute or resource value select.{name}") from None
        if not equals or amounts[name] < 0:
            raise PbsError(errors.BAD_VALUE, f"Illegal attribute or resource value select.{name}")
    return count, amounts, strings


def value_of(name: str, text: str) -> float:
    """A number to compare limits by. Raises ValueError."""
    if name in SIZES:
        return parse_size(text)
    if name in TIMES:
        return parse_duration(text)
    return float(text)


def within(listed: Mapping[str, str], largest: Mapping[str, str], smallest: Mapping[str, str]) -> bool:
    """Whether a job's Resource_List keeps to a queue's resources_max and resources_min."""
    for limits, sign in ((largest, 1), (smallest, -1)):
        for name, limit in limits.items():
            if name in listed and sign * (value_of(name, listed[name]) - value_of(name, limit)) > 0:
                return False
    return True


_LIMIT = re.compile(r"\[\s*([ugpo]):([^=\]]+?)\s*=\s*(\d+)\s*\]")


@dataclass(frozen=True, slots=True)
class Limit:
    """A max_run or max_queued: for everybody together, for each user, and for named users."""

    overall: int | None = None
    each_user: int | None = None
    named: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Limit:
        """From "[u:PBS_GENERIC=3],[o:PBS_ALL=10]"; group and project limits are not known here. Raises ValueError."""
        overall = each = None
        named: list[tuple[str, int]] = []
        rest = _LIMIT.sub("", text).replace(",", "").strip()
        if rest:
            raise ValueError(f"not a limit: {text!r}")
        for kind, name, count in _LIMIT.findall(text):
            if kind == "o":
                overall = int(count)
            elif kind == "u" and name == "PBS_GENERIC":
                each = int(count)
            elif kind == "u":
                named.append((name, int(count)))
        return cls(overall, each, tuple(named))

    def reached(self, user: str, of_user: int, of_all: int) -> str:
        """ "" while one more is allowed, else which limit: "user", "each" or "all"."""
        named = dict(self.named)
        if user in named:
            if of_user >= named[user]:
                return "user"
        elif self.each_user is not None and of_user >= self.each_user:
            return "each"
        return "all" if self.overall is not None and of_all >= self.overall else ""
