"""A census that is fresh when it matters: asked for anew before a pod is sent somewhere by one that may be stale.

Another user may have filled a cluster seconds ago, and a burst that is sent there waits while others are idle. Two
cheap commands of PBS, at most every few seconds and within the budget; `ClusterLink.census_now` keeps to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from bridge.clusters.link import FRESH
from bridge.routing.evaluate import Evaluator, Link
from bridge.routing.rules import Match


async def renewed(links: Mapping[str, Link], evaluator: Evaluator, match: Match, is_sent: Callable[[], bool]) -> bool:
    """Whether anything was asked for anew; `is_sent` says whether the pod would be sent somewhere as things are."""
    if match.rule is None:
        return False
    old = [links[name] for name in evaluator.clusters_of(match.rule) if (links[name].census_age() or 0.0) >= FRESH]
    if not old or not is_sent():
        return False
    await asyncio.gather(*(link.census_now() for link in old))
    return True
