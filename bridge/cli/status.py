"""`hpc-bridge status`: what a running agent knows, read from its own endpoint."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from bridge.cli.agent import agent_option, ask
from bridge.cli.screen import Grid, echo


@click.command()
@agent_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(agent: str, output: str) -> None:
    """Show clusters, report age, queues, pods by state, and the channels' health."""
    report = ask(agent, "/status")
    if output == "json":
        click.echo(json.dumps(report, indent=2))
        return
    role = "leads" if report["leading"] else "does not lead"
    echo(f"hpc-bridge {report['version']}; this agent {role} (epoch {report['epoch']})")
    if report.get("routing"):
        echo(report["routing"])
    _clusters(report["clusters"]).show()
    _queues(report["clusters"]).show()


def _clusters(clusters: list[dict[str, Any]]) -> Grid:
    table = Grid("cluster", "node", "reachable", "report age", "PBS", "channels", "pods")
    for cluster in clusters:
        age = cluster["reportAgeSeconds"]
        pods = ", ".join(f"{count} {state}" for state, count in sorted(cluster["pods"].items()))
        table.row(
            cluster["name"],
            cluster["node"],
            "yes" if cluster["reachable"] else f"no: {cluster['message']}",
            "never" if age is None else f"{age:.0f} s",
            cluster["pbsVersion"] or "?",
            "; ".join(_channel(c) for c in cluster["channels"]),
            pods or "none",
        )
    return table


def _channel(channel: dict[str, Any]) -> str:
    since = max(0, int(time.time() - channel["since"]))
    if not channel["connected"]:
        return f"{channel['account']}: down for {since} s ({channel['message']})"
    rtt = "" if channel["rttMs"] is None else f", {channel['rttMs']:.1f} ms"
    return f"{channel['account']}: up for {since} s{rtt}"


def _queues(clusters: list[dict[str, Any]]) -> Grid:
    table = Grid("cluster", "queue", "enabled", "started", "queued", "running")
    for cluster in clusters:
        for queue in cluster["queues"]:
            flags = ("yes" if queue[key] else "no" for key in ("enabled", "started"))
            table.row(cluster["name"], queue["name"], *flags, str(queue["queued"]), str(queue["running"]))
    return table
