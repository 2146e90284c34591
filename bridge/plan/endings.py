"""How long PBS lets a job live after its SIGTERM: podrun must have written the pod's last status by then. Pure."""

from __future__ import annotations

from bridge.plan.limits import destinations
from pbs_adapter.models import Census

DEFAULT = 10  # seconds; PBS's own, for queues that say nothing


def kill_delay(queue: str | None, census: Census | None) -> int | None:
    """The shortest kill_delay among the queues that a job for `queue` (None: the default one) may come to run in.

    None where the census does not show one.
    """
    if census is None:
        return None
    queues = {each.name: each for each in census.queues}
    todo, seen, delays = [queue or census.server.default_queue], set[str](), []
    while todo:
        name = todo.pop()
        if name in seen or name not in queues:
            continue
        seen.add(name)
        here, _ = destinations(queues[name], census.server.name or "")
        todo += here
        if not queues[name].route_destinations:
            delay = queues[name].kill_delay
            delays.append(DEFAULT if delay is None else max(0, delay))
    return min(delays, default=None)
