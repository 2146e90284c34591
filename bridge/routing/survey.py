"""What `hpc-bridge clusters` shows: room and waits of every cluster, by queue and by size of job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.plan.fit import Places
from bridge.routing.evaluate import Link
from bridge.routing.judge import ALWAYS, ClusterView
from bridge.routing.load import Load
from bridge.routing.waits import Shape, WaitModel
from pbs_adapter.models import Census, JobOptions

Json = dict[str, Any]
SIZES = ((1, 3600), (8, 8 * 3600), (32, 24 * 3600))  # (cores, walltime) of the jobs whose waits are shown
MEMORY = 1 << 30  # of each of their cores


def clusters(
    links: Mapping[str, Link], views: Mapping[str, ClusterView], loads: Mapping[str, Load], model: WaitModel, now: float
) -> Json:
    """The document that GET /clusters answers."""
    return {"version": 1, "clusters": [_cluster(links[n], views[n], loads[n], model, now) for n in sorted(links)]}


def _cluster(link: Link, view: ClusterView, load: Load, model: WaitModel, now: float) -> Json:
    census, trouble = view.census, "; ".join(dict.fromkeys(text for text in view.trouble.values() if text))
    head = {
        "name": view.name,
        "usable": census is not None and not view.trouble.get(""),
        "trouble": trouble,
        "reportAgeSeconds": None if view.age is None else round(view.age, 1),
        "idleJobs": view.idle,
        "onTheirWay": load.pods,
    }
    if census is None:
        return head | {"queues": []}
    places = Places(link.settings.numa.hosts)
    named = {link.settings.queue or census.server.default_queue, *link.settings.queues}
    names = [queue.name for queue in census.queues if not link.settings.queues or queue.name in named]
    return head | {"queues": [_queue(name, census, places, view.name, model, now) for name in sorted(names)]}


def _queue(name: str, census: Census, places: Places, cluster: str, model: WaitModel, now: float) -> Json:
    queue = next(each for each in census.queues if each.name == name)
    sizes = places.survey(census).sizes(name)
    return {
        "name": name,
        "queued": queue.state_count.get("Queued", 0),
        "running": queue.state_count.get("Running", 0),
        "freeCores": sizes.free,
        "largestNow": sizes.now,
        "largestEver": sizes.ever,
        "largestInDomainNow": sizes.domain_now or None,
        "largestInDomainEver": sizes.domain_ever or None,
        "waits": [_wait(size, name, census, places, cluster, model, now) for size in SIZES],
    }


def _wait(
    size: tuple[int, int], queue: str, census: Census, places: Places, cluster: str, model: WaitModel, now: float
) -> Json:
    ncpus, walltime = size
    options = JobOptions(ncpus, ncpus * MEMORY, walltime)
    place = places.of(options, queue, census, "ignore")
    lands = place.queues[0] if place.queues else queue
    wait = model.waits(Shape(ncpus, options.mem_bytes, walltime, place.now), cluster, lands, census, now, ALWAYS)
    return {
        "ncpus": ncpus,
        "walltimeSeconds": walltime,
        "fitsNow": place.now,
        "fitsEver": place.ever,
        "p50": round(wait.quantiles[ALWAYS[0]], 1) if place.ever else None,
        "p90": round(wait.quantiles[ALWAYS[1]], 1) if place.ever else None,
        "sure": round(wait.sure, 2),
        "samples": wait.samples,
        "basis": wait.basis,
    }
