"""The demo's table of pods, from what the API server says of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from bridge.api import names
from bridge.pods.status import shown_state

Json = dict[str, Any]
STYLES = {"Completed": "green", "Running": "cyan", "Failed": "red"}


@dataclass(frozen=True, slots=True)
class Row:
    """One pod; `why` says what it waits for, or why it failed."""

    pod: str
    node: str
    job: str
    state: str
    why: str


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
    job = metadata.get("annotations", {}).get(names.JOB_ID, "")
    node = pod["spec"].get("nodeName", "")
    return Row(str(metadata["name"]), str(node), str(job), shown_state(pod), " ".join(_why(pod).split()))


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

    >>> plain(Row("hello-0-x", "pbs-alpha", "7.alpha", "Running", ""))
    'hello-0-x  pbs-alpha  7.alpha  Running'
    >>> plain(Row("hello-1-x", "", "", "Pending", "0/2 nodes are available"))
    'hello-1-x  no node  no job  Pending: 0/2 nodes are available'
    """
    state = f"{row.state}: {row.why}" if row.why else row.state
    return f"{row.pod}  {row.node or 'no node'}  {row.job or 'no job'}  {state}"


def table(rows: Iterable[Row]) -> Table:
    """Return the rows for a terminal."""
    result = Table("pod", "node", "PBS job", "state", "why it waits", box=None, pad_edge=False)
    for row in rows:
        state = Text(row.state, style=STYLES.get(row.state, "yellow"))
        result.add_row(row.pod, row.node, row.job, state, Text(row.why))
    return result
