"""NUMA between plan and PBS: keep a chunk on one vnode where vnodes are domains; count what a job has. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bridge.plan.chunks import vscattered
from bridge.plan.model import Plan
from pbs_adapter.models import Census
from pbs_adapter.remote.parse import ParseError, Vnode, parse_exec_vnode

_LIST = re.compile(r"[\d,-]{1,200}", re.ASCII)
_MOST = 1024  # domains that one host may claim to have


@dataclass(frozen=True, slots=True)
class Span:
    """The NUMA domains that a job has. `by`: how that is known, exec_vnode or cpuset; `on`: the vnodes or the CPUs."""

    domains: int
    by: str
    on: str

    def text(self, estimated: tuple[int, int] | None) -> str:
        """The annotation; `estimated` are the fewest and the most domains thought possible when it was submitted."""
        shown = {"domains": self.domains, "by": self.by, "on": self.on}
        return json.dumps(shown | ({"estimated": list(estimated)} if estimated else {}), separators=(",", ":"))


def domain_vnodes(vnodes: Iterable[Vnode]) -> frozenset[str]:
    """Names of the vnodes that are NUMA domains: those with CPUs on hosts that have several of them."""
    hosts: dict[str, list[str]] = {}
    for vnode in vnodes:
        if vnode.ncpus:
            hosts.setdefault(vnode.host, []).append(vnode.name)
    return frozenset(name for names in hosts.values() if len(names) > 1 for name in names)


def kept_whole(plan: Plan, census: Census | None) -> Plan:
    """The plan as it is submitted: with `numa: require`, by PBS's own means where it has some.

    `vscatter` keeps a chunk on one vnode, except where the complex has one host only (see bridge.plan.chunks.known):
    there, and where a host is one vnode, podrun looks where the job came to be.
    """
    if plan.numa != "require" or census is None or not domain_vnodes(census.vnodes):
        return plan
    several = len({vnode.host for vnode in census.vnodes}) > 1
    options = replace(plan.options, place=vscattered(plan.options.place))
    return replace(plan, options=options, numa_by_vnodes=several)


def span(exec_vnode: str, seen_by_podrun: object, domains: frozenset[str]) -> Span | None:
    """The domains that a job has; None while nobody knows. `domains` are the vnodes that are domains.

    `seen_by_podrun` is `numa` of its status, which counts where vnodes tell nothing and the job is confined to a cpuset
    (or the host has one domain). It is untrusted.
    """
    try:
        chunks = parse_exec_vnode(exec_vnode) if exec_vnode else ()
    except ParseError:
        chunks = ()
    names = dict.fromkeys(piece.vnode for chunk in chunks for piece in chunk if piece.vnode in domains)
    if names:
        return Span(len(names), "exec_vnode", ",".join(names))
    given = seen_by_podrun if isinstance(seen_by_podrun, dict) else {}
    count, of, cpus = given.get("domains"), given.get("of"), given.get("cpus")
    well = type(count) is int and type(of) is int and 0 < count <= of <= _MOST
    if well and (given.get("confined") is True or of == 1) and isinstance(cpus, str) and _LIST.fullmatch(cpus):
        return Span(int(count), "cpuset", cpus)  # type: ignore[arg-type]  # checked above
    return None
