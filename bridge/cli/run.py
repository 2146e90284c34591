"""`hpc-bridge run`: the agent."""

from __future__ import annotations

import asyncio
from typing import Literal

import click

from bridge.api.load import SettingsError, load
from bridge.app import run_agent
from bridge.telemetry import configure_logging


@click.command()
@click.option("-c", "--config", required=True, metavar="FILE", help="The agent's settings (bridge.yaml).")
@click.option(
    "--kubeconfig", metavar="FILE", help="Left out: in the cluster its own, else KUBECONFIG, else ~/.kube/config."
)
@click.option("--address", metavar="IP", help="Overrides kubelet.address: what the API server dials.")
@click.option("--log-format", type=click.Choice(["json", "console"]), default="console", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def run(
    config: str, kubeconfig: str | None, address: str | None, log_format: Literal["json", "console"], log_level: str
) -> None:
    """Run the agent until it is told to stop."""
    try:
        settings = load(config)
    except SettingsError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    if address:
        settings = settings.model_copy(update={"kubelet": settings.kubelet.model_copy(update={"address": address})})
    configure_logging(log_format, log_level)
    asyncio.run(run_agent(settings, kubeconfig))
