"""The document behind `hpc-bridge status`: what the agent knows and how old it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.clusters.link import ClusterLink
from bridge.telemetry import VERSION

Json = dict[str, Any]


def report(links: Iterable[tuple[ClusterLink, Mapping[str, int]]], *, leading: bool, epoch: int, routing: str) -> Json:
    """Return the report. links: each cluster's connection, and its pods by state. routing: why there is none."""
    return {
        "version": VERSION,
        "leading": leading,
        "epoch": epoch,
        "routing": routing,
        "clusters": [_cluster(link, states) for link, states in links],
    }


def _cluster(link: ClusterLink, states: Mapping[str, int]) -> Json:
    health, census = link.health(), link.census
    return {
        "name": link.settings.name,
        "node": link.settings.node_name,
        "reachable": health.reachable,
        "message": health.message,
        "since": health.since,
        "reportAgeSeconds": None if health.report_age is None else round(health.report_age, 1),
        "pbsVersion": census.server.version if census is not None else None,
        "censusAt": census.at if census is not None else None,
        "channels": [
            {"account": name, "connected": c.connected, "since": c.since, "message": c.message, "rttMs": c.rtt_ms}
            for name, c in health.accounts.items()
        ],
        "queues": [_queue(queue) for queue in (census.queues if census is not None else ())],
        "pods": dict(states),
    }


def _queue(queue: Any) -> Json:
    return {
        "name": queue.name,
        "enabled": queue.enabled,
        "started": queue.started,
        "queued": queue.state_count.get("Queued", 0),
        "running": queue.state_count.get("Running", 0),
    }
