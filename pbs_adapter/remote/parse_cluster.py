"""Queues, nodes and the server, from `qstat -Q -f`, `pbsnodes -av` and `qstat -B -f`, all with `-F json`.

Unlike jobs these are the site's own data, so broken output is an error here and the caller keeps its last good answer.
Resources are typed (bytes, seconds, numbers; see parse_values); what PBS leaves out is zero, empty or None.
"""

import re
import sys
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Tuple

from .parse_json import load, render
from .parse_split import entries
from .parse_values import Limit, ParseError, Value, parse_limits, parse_resource

_COUNTS = re.compile(r"(\w+):(\d{1,18})", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DIGITS = re.compile(r"(\d+)", re.ASCII)
#: States in which a vnode works, though it may be full. Any other word in its state means that it does not.
_WORKING = frozenset(["free", "busy", "job-busy", "job-exclusive", "resv-exclusive", "job-sharing"])
#: Limits of PBS before 10: (attribute, the new one, whom it is for).
_OLD_LIMITS = (
    ("max_running", "max_run", "o", "PBS_ALL"),
    ("max_user_run", "max_run", "u", "PBS_GENERIC"),
    ("max_group_run", "max_run", "g", "PBS_GENERIC"),
    ("max_queuable", "max_queued", "o", "PBS_ALL"),
)


class Limits(NamedTuple):
    """`max_queued` refuses a qsub, `max_run` makes a job wait; `*_res` are the same for a resource by its name.

    `queued_threshold` refuses too, counting only jobs in state Q. See limit_for_user.
    """

    max_run: Tuple[Limit, ...]
    max_queued: Tuple[Limit, ...]
    max_run_res: Dict[str, Tuple[Limit, ...]]
    max_queued_res: Dict[str, Tuple[Limit, ...]]
    queued_threshold: Tuple[Limit, ...]


class Queue(NamedTuple):
    """One queue. `type` is Execution or Route (its depth is near zero: look at `route_destinations`).

    `enabled`: takes jobs; `started`: runs them. `state_count` by PBS's words (Queued, Running, Held, …).
    `acl_*` are None where that list is not enabled, else the names allowed.
    """

    name: str
    type: str
    enabled: bool
    started: bool
    total_jobs: int
    state_count: Dict[str, int]
    priority: int
    resources_max: Dict[str, Value]
    resources_min: Dict[str, Value]
    resources_default: Dict[str, Value]
    resources_assigned: Dict[str, Value]
    resources_available: Dict[str, Value]
    default_chunk: Dict[str, Value]
    limits: Limits
    max_array_size: Optional[int]
    kill_delay: Optional[int]
    route_destinations: Tuple[str, ...]
    from_route_only: bool
    acl_users: Optional[Tuple[str, ...]]
    acl_groups: Optional[Tuple[str, ...]]
    acl_hosts: Optional[Tuple[str, ...]]
    partition: str


class Vnode(NamedTuple):
    """One vnode. `usable`: exactly "free", would take a job now. `up`: works, though perhaps full or exclusive.

    `host` is where it is; a host may have several vnodes (NUMA domains) beside a natural one without CPUs.
    `mem` in bytes. `jobs` are job ids, each once. `queue` and `partition` restrict who may use it. `reservations` have
    the vnode or will have it; PBS does not say here when.
    """

    name: str
    host: str
    states: FrozenSet[str]
    usable: bool
    up: bool
    ncpus: int
    ncpus_assigned: int
    mem: int
    mem_assigned: int
    available: Dict[str, Value]
    assigned: Dict[str, Value]
    jobs: Tuple[str, ...]
    sharing: str
    queue: str
    partition: str
    pcpus: Optional[int]
    comment: str
    reservations: Tuple[str, ...] = ()


class Server(NamedTuple):
    """The server's own settings, as far as users may see them; `kill_delay` and the like belong to queues."""

    name: str
    version: str
    state: str
    default_queue: str
    scheduling: bool
    job_history_enable: bool
    query_other_jobs: bool
    max_array_size: Optional[int]
    total_jobs: int
    state_count: Dict[str, int]
    limits: Limits
    resources_default: Dict[str, Value]
    resources_max: Dict[str, Value]
    resources_available: Dict[str, Value]
    resources_assigned: Dict[str, Value]
    default_chunk: Dict[str, Value]
    scheduler_iteration: Optional[int]
    node_fail_requeue: Optional[int]


def parse_queues(text: bytes) -> Dict[str, Queue]:
    """Queues by name, in PBS's order. Raises ParseError for output that is broken or cut off."""
    return {name: _queue(name, tree) for name, tree in _section(text, "Queue")}


def parse_nodes(text: bytes) -> Dict[str, Vnode]:
    """Vnodes by name of `pbsnodes -av` (without `v` PBS adds up a host's vnodes). Raises ParseError."""
    return {name: _vnode(name, tree) for name, tree in entries(text, "nodes")}


def parse_server(text: bytes) -> Server:
    """The server that answered. Raises ParseError, also when there is none in the output."""
    for name, tree in _section(text, "Server"):
        return _server(name, tree)
    raise ParseError("no server in the output of qstat -B -f")


def group_by_host(vnodes: Iterable[Vnode]) -> Dict[str, Tuple[Vnode, ...]]:
    """Hosts in natural order, each with its vnodes; a natural vnode without CPUs beside others is left out."""
    hosts = {}  # type: Dict[str, List[Vnode]]
    for vnode in sorted(vnodes, key=lambda v: _natural(v.name)):
        hosts.setdefault(vnode.host, []).append(vnode)
    return {
        host: tuple(v for v in hosts[host] if v.ncpus or len(hosts[host]) == 1) or tuple(hosts[host])
        for host in sorted(hosts, key=_natural)
    }


def _natural(name: str) -> Tuple[Tuple[int, int, str], ...]:
    """A key that puts h[2] before h[10]."""
    parts = enumerate(_DIGITS.split(name))  # every second one is a number
    return tuple((0, int(part[:18]), part) if i % 2 else (1, 0, part) for i, part in parts)


def _section(text: bytes, name: str) -> List[Tuple[str, Dict[str, Any]]]:
    document = load(text)
    if not document.complete:
        raise ParseError(document.problem)
    section = document.tree.get(name, {})
    if not isinstance(section, dict):
        raise ParseError("{} is not an object".format(name))
    return [(key, tree) for key, tree in section.items() if isinstance(tree, dict)]


def _queue(name: str, tree: Dict[str, Any]) -> Queue:
    return Queue(
        name=name,
        type=_text(tree, "queue_type"),
        enabled=_flag(tree, "enabled"),
        started=_flag(tree, "started"),
        total_jobs=_integer(tree, "total_jobs") or 0,
        state_count=_state_count(tree),
        priority=_integer(tree, "Priority") or 0,
        resources_max=_resources(tree, "resources_max"),
        resources_min=_resources(tree, "resources_min"),
        resources_default=_resources(tree, "resources_default"),
        resources_assigned=_resources(tree, "resources_assigned"),
        resources_available=_resources(tree, "resources_available"),
        default_chunk=_resources(tree, "default_chunk"),
        limits=_limits(tree),
        max_array_size=_integer(tree, "max_array_size"),
        kill_delay=_integer(tree, "kill_delay"),
        route_destinations=_list(tree, "route_destinations"),
        from_route_only=_flag(tree, "from_route_only"),
        acl_users=_acl(tree, "user"),
        acl_groups=_acl(tree, "group"),
        acl_hosts=_acl(tree, "host"),
        partition=_text(tree, "partition"),
    )


@lru_cache(maxsize=256)
def _states(names: Tuple[str, ...]) -> FrozenSet[str]:
    """Thousands of vnodes share a few sets."""
    return frozenset(names)


def _vnode(name: str, tree: Dict[str, Any]) -> Vnode:
    available, assigned = _resources(tree, "resources_available"), _resources(tree, "resources_assigned")
    states = _states(_list(tree, "state"))
    jobs = tree.get("jobs")
    ids = [render(job).split("/")[0] for job in jobs] if isinstance(jobs, list) else _list(tree, "jobs")
    return Vnode(
        name=name,
        host=str(available.get("host") or _text(tree, "Mom") or name),
        states=states,
        usable=states == frozenset(["free"]),
        up=bool(states) and states <= _WORKING,
        ncpus=_amount(available, "ncpus"),
        ncpus_assigned=_amount(assigned, "ncpus"),
        mem=_amount(available, "mem"),
        mem_assigned=_amount(assigned, "mem"),
        available=available,
        assigned=assigned,
        jobs=tuple(dict.fromkeys(job.split("/")[0] for job in ids)),
        sharing=_text(tree, "sharing"),
        queue=_text(tree, "queue"),
        partition=_text(tree, "partition"),
        pcpus=_integer(tree, "pcpus"),
        comment=_text(tree, "comment"),
        reservations=_list(tree, "resv"),
    )


def _server(name: str, tree: Dict[str, Any]) -> Server:
    return Server(
        name=name,
        version=_text(tree, "pbs_version"),
        state=_text(tree, "server_state"),
        default_queue=_text(tree, "default_queue"),
        scheduling=_flag(tree, "scheduling"),
        job_history_enable=_flag(tree, "job_history_enable"),
        query_other_jobs=_flag(tree, "query_other_jobs"),
        max_array_size=_integer(tree, "max_array_size"),
        total_jobs=_integer(tree, "total_jobs") or 0,
        state_count=_state_count(tree),
        limits=_limits(tree),
        resources_default=_resources(tree, "resources_default"),
        resources_max=_resources(tree, "resources_max"),
        resources_available=_resources(tree, "resources_available"),
        resources_assigned=_resources(tree, "resources_assigned"),
        default_chunk=_resources(tree, "default_chunk"),
        scheduler_iteration=_integer(tree, "scheduler_iteration"),
        node_fail_requeue=_integer(tree, "node_fail_requeue"),
    )


def _limits(tree: Dict[str, Any]) -> Limits:
    found = {"max_run": _limit(tree, "max_run"), "max_queued": _limit(tree, "max_queued")}
    for old, new, kind, who in _OLD_LIMITS:
        number = _integer(tree, old)
        if number is not None:
            found[new] += (Limit(kind, who, number),)
    return Limits(
        max_run=found["max_run"],
        max_queued=found["max_queued"],
        max_run_res=_limits_by_resource(tree, "max_run_res"),
        max_queued_res=_limits_by_resource(tree, "max_queued_res"),
        queued_threshold=_limit(tree, "queued_jobs_threshold"),
    )


def _limit(tree: Dict[str, Any], name: str) -> Tuple[Limit, ...]:
    return parse_limits(name, _text(tree, name))


def _limits_by_resource(tree: Dict[str, Any], name: str) -> Dict[str, Tuple[Limit, ...]]:
    inner = tree.get(name)
    return {key: parse_limits(key, render(value)) for key, value in inner.items()} if isinstance(inner, dict) else {}


def _text(tree: Dict[str, Any], name: str) -> str:
    return render(tree[name]) if name in tree else ""


def _flag(tree: Dict[str, Any], name: str) -> bool:
    return _text(tree, name).lower() in ("true", "1")


def _list(tree: Dict[str, Any], name: str) -> Tuple[str, ...]:
    value = tree.get(name)
    items = [render(item) for item in value] if isinstance(value, list) else _text(tree, name).split(",")
    return tuple(item.strip() for item in items if item.strip())


def _acl(tree: Dict[str, Any], kind: str) -> Optional[Tuple[str, ...]]:
    return _list(tree, "acl_{}s".format(kind)) if _flag(tree, "acl_{}_enable".format(kind)) else None


def _integer(tree: Dict[str, Any], name: str) -> Optional[int]:
    text = _text(tree, name)
    return int(text) if _NUMBER.fullmatch(text) else None


def _amount(resources: Dict[str, Value], name: str) -> int:
    value = resources.get(name, 0)
    return int(value) if isinstance(value, (int, float)) else 0


def _state_count(tree: Dict[str, Any]) -> Dict[str, int]:
    return {name: int(number) for name, number in _COUNTS.findall(_text(tree, "state_count"))}


def _resources(tree: Dict[str, Any], name: str) -> Dict[str, Value]:
    """Thousands of vnodes share the names."""
    inner = tree.get(name)
    if not isinstance(inner, dict):
        return {}
    return {sys.intern(str(key)): parse_resource(key, render(value)) for key, value in inner.items()}
