"""`hpc-bridge doctor`: a table of checks, each with what to do. Exit 0: nothing failed; 1: something did; 2: bad
settings.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import click

from bridge.api.settings import parse_duration
from bridge.cli.screen import Grid, echo
from bridge.cli.settings import config_option, read_settings
from bridge.setup.checks import Check, State
from bridge.setup.doctor import examine

_COLOURS = {State.OK: "green", State.FAILED: "red", State.SKIPPED: "yellow"}


@click.command()
@config_option
@click.option(
    "--kubeconfig", metavar="FILE", help="Left out: in the cluster its own, else KUBECONFIG, else ~/.kube/config."
)
@click.option("--wait", default="2m", show_default=True, metavar="TIME", help="How long the small PBS job may wait.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def doctor(config: str, kubeconfig: str | None, wait: str, output: str) -> None:
    """Check clusters and Kubernetes: what works, what does not, and what to do.

    Submits one small PBS job for each account (one core, one minute), named hpc-bridge-doctor.
    """
    settings = read_settings(config)
    try:
        seconds = float(parse_duration(wait))  # type: ignore[arg-type]  # a str gives a number or ValueError
    except ValueError as error:
        raise click.UsageError(f"--wait: {error}") from None
    checks = asyncio.run(examine(settings, kubeconfig, seconds, lambda text: echo(text, err=True)))
    if output == "json":
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _table(checks).show()
    if any(check.state is State.FAILED for check in checks):
        raise SystemExit(1)


def _table(checks: list[Check]) -> Grid:
    table = Grid("where", "check", "", "found", "what to do")
    for check in checks:
        table.row(check.where, check.name, (check.state, _COLOURS[check.state]), check.found, check.advice)
    return table
