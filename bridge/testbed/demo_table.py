"""The demo's table of pods, from what the API server says of them. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from bridge.api import names
from bridge.kube.clock import parse_rfc3339
from bridge.pods.status import shown_state
from bridge.routing.explain import seconds

Json = dict[str, Any]
GATED = "SchedulingGated"
STYLES = {"Completed": "green", "Running": "cyan", "Failed": "red"}


@dataclass(frozen=True, slots=True)
class Row:
    """One pod. why: what it waits for, or why it failed.

    predicted, waited: how long from the choice until its containers run, as it was foretold and as it came.
    """

    pod: str
    node: str
    job: str
    state: str
    why: str
    predicted: str = ""
    waited: str = ""


def rows(pods: Iterable[Json]) -> list[Row]:
    """Return a row for each pod, by name."""
    return [_row(pod) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))]


def summary(pods: Iterable[Json]) -> list[Row]:
    """Return a row for each node and state with the number of its pods, and what most of them wait for."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows(pods):
        groups.setdefault((row.node, row.state), []).append(row)
    found = []
    for (node, state), members in sorted(groups.items()):
        why = Counter(row.why for row in members).most_common(1)[0][0]
        jobs = sum(bool(row.job) for row in members)
        found.append(Row(f"{len(members)} pods", node, f"{jobs} jobs" if jobs else "", state, why))
    return found


def _row(pod: Json) -> Row:
    metadata = pod["metadata"]
    annotations = metadata.get("annotations", {})
    node = pod["spec"].get("nodeName", "")
    gated = bool(pod["spec"].get("schedulingGates"))
    chosen = json.loads(annotations.get(names.ROUTED, "{}"))
    return Row(
        str(metadata["name"]),
        str(node),
        str(annotations.get(names.JOB_ID, "")),
        GATED if gated else shown_state(pod),
        "" if gated else " ".join(_why(pod).split()),  # the state says all that Kubernetes' sentence does
        _predicted(chosen),
        _waited(chosen, pod),
    )


def _predicted(chosen: Json) -> str:
    """Of the candidate that was chosen; on local nodes a pod that fits is expected to start at once."""
    if chosen.get("decision") == "local":
        return "now" if chosen["local"]["fitsNow"] else "?"
    best = next((each for each in chosen.get("candidates", []) if each["rank"] == 1), None)
    if best is None or best["wait"] is None:
        return ""
    return f"P50 {seconds(best['wait']['p50'])}, P90 {seconds(best['wait']['p90'])}"


def _waited(chosen: Json, pod: Json) -> str:
    at = parse_rfc3339(chosen.get("at"))
    states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", [])]
    found = [(state.get("running") or state.get("terminated") or {}).get("startedAt") for state in states]
    starts = [start for start in map(parse_rfc3339, found) if start is not None]
    return seconds(max(0.0, min(starts) - at)) if starts and at is not None else ""


def _why(pod: Json) -> str:
    status = pod.get("status", {})
    if status.get("message"):
        return str(status["message"])
    for container in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
        if message := container.get("state", {}).get("waiting", {}).get("message"):
            return str(message)
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def changes(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """Return the rows that are new or differ."""
    known = set(before)
    return [row for row in now if row not in known]


def plain(row: Row) -> str:
    """Return the row as a line of text.

    >>> plain(Row("hello-0-x", "pbs-alpha", "7.alpha", "Running", "", "P50 1 s, P90 7 min", "2 s"))
    'hello-0-x  pbs-alpha  7.alpha  Running  (predicted: P50 1 s, P90 7 min; waited: 2 s)'
    >>> plain(Row("hello-1-x", "", "", "Pending", "0/2 nodes are available"))
    'hello-1-x  no node  no job  Pending: 0/2 nodes are available'
    """
    state = f"{row.state}: {row.why}" if row.why else row.state
    told = [f"{what}: {value}" for what, value in (("predicted", row.predicted), ("waited", row.waited)) if value]
    times = f"  ({'; '.join(told)})" if told else ""
    return f"{row.pod}  {row.node or 'no node'}  {row.job or 'no job'}  {state}{times}"


def table(rows: Iterable[Row]) -> Table:
    """Return the rows for a terminal."""
    result = Table("pod", "node", "PBS job", "state", "predicted", "waited", "why", box=None, pad_edge=False)
    for row in rows:
        state = Text(row.state, style=STYLES.get(row.state, "yellow"))
        result.add_row(row.pod, row.node, row.job, state, row.predicted, row.waited, Text(row.why))
    return result
