"""Which queues an account can use, and what limits it meets there, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pbs_adapter.models import Census
from pbs_adapter.remote.parse import Queue, limit_for_user
from pbs_adapter.script import problem


def unusable(queue: Queue, user: str, groups: Iterable[str]) -> str:
    """Why the account cannot run jobs in the queue; empty when nothing is known to be against it."""
    if wrong := problem("queue", queue.name):
        return f"its name cannot be given to qsub: {wrong}"
    if not queue.enabled:
        return "takes no jobs (enabled is False)"
    if not queue.started:
        return "runs no jobs (started is False)"
    if queue.from_route_only:
        return "takes jobs from a routing queue only"
    if queue.acl_users is not None and not _listed(queue.acl_users, [user]):
        return f"not open to user {user} (acl_users)"
    if queue.acl_groups is not None and not _listed(queue.acl_groups, groups):
        return "not open to the account's groups (acl_groups)"
    if limit_for_user(queue.limits.max_queued, user) == 0 or limit_for_user(queue.limits.max_run, user) == 0:
        return "its limits give this user no job"
    return ""


def _listed(entries: Iterable[str], names: Iterable[str]) -> bool:
    """An ACL's entries are NAME or NAME@HOST, with + or - before them; the first that matches decides."""
    wanted = set(names)
    for entry in entries:
        name = entry.lstrip("+-").split("@")[0]
        if name == "*" or name in wanted:
            return not entry.startswith("-")
    return False


def limits(queue: Queue, user: str) -> str:
    """The limits that matter to pods, in words; empty when there are none."""
    return ", ".join(_limits(queue, user))


def _limits(queue: Queue, user: str) -> Iterator[str]:
    if queue.route_destinations:
        yield f"routes to {' '.join(queue.route_destinations)}"
    for name, value in sorted(queue.resources_max.items()):
        yield f"{name} at most {shown(name, value)}"
    for name, value in sorted(queue.resources_min.items()):
        yield f"{name} at least {shown(name, value)}"
    for words, found in (("run", queue.limits.max_run), ("exist", queue.limits.max_queued)):
        bound = limit_for_user(found, user)
        if bound is not None:
            yield f"{bound} jobs of this user may {words}"


def shown(name: str, value: object) -> str:
    """A resource's amount for people.

    >>> shown("walltime", 3700), shown("mem", 64 << 30), shown("ncpus", 4)
    ('1:01:40', '64 GiB', '4')
    """
    if "walltime" in name and isinstance(value, (int, float)):
        minutes, seconds = divmod(int(value), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    if "mem" in name and isinstance(value, (int, float)):
        return f"{value / (1 << 30):.4g} GiB"
    return str(value)


def choose(census: Census, user: str, groups: Iterable[str]) -> list[Queue]:
    """The queues the account can use, the one for pods that name none first."""
    names = tuple(groups)
    usable = [queue for queue in census.queues if not unusable(queue, user, names)]
    return sorted(usable, key=lambda queue: queue.name != census.server.default_queue)
