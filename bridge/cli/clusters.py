"""`hpc-bridge clusters`: room and predicted waits on every cluster, asked of the running agent."""

from __future__ import annotations

import json
from typing import Any

import click

from bridge.cli.agent import agent_option, ask
from bridge.cli.screen import Grid, line
from bridge.routing.explain import seconds

Json = dict[str, Any]


@click.command()
@agent_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def clusters(agent: str, output: str) -> None:
    """Show room (free cores, largest chunk now, ever and in one NUMA domain) and waits by queue and size of job."""
    answer = ask(agent, "/clusters")
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
        return
    _table(answer["clusters"]).show(wide=True)
    for cluster in answer["clusters"]:
        if cluster["trouble"]:
            line(f"{cluster['name']}: {cluster['trouble']}", wide=True)


def _table(found: list[Json]) -> Grid:
    sizes: list[Json] = next((queue["waits"] for each in found for queue in each["queues"]), [])
    shapes = [f"P50/P90 of {each['ncpus']} x {seconds(each['walltimeSeconds'])}" for each in sizes]
    table = Grid(
        "cluster", "age", "queue", "queued", "running", "free", "now", "ever", "domain now", "ever", *shapes,
    )  # fmt: skip
    for cluster in found:
        age = cluster["reportAgeSeconds"]
        head = (cluster["name"], "never" if age is None else seconds(age))
        for queue in cluster["queues"]:
            numbers = ("queued", "running", "freeCores", "largestNow", "largestEver")
            domains = ("largestInDomainNow", "largestInDomainEver")
            table.row(
                *head,
                queue["name"],
                *(str(queue[key]) for key in numbers),
                *("?" if queue[key] is None else str(queue[key]) for key in domains),
                *map(_wait, queue["waits"]),
            )
        if not cluster["queues"]:
            table.row(*head, "?")
    return table


def _wait(wait: Json) -> str:
    if wait["p50"] is None:
        return "too large"
    return f"{seconds(wait['p50'])} / {seconds(wait['p90'])} ({wait['samples']})"
