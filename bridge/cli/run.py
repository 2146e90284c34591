"""`hpc-bridge run`: the agent."""

from __future__ import annotations

import asyncio
from typing import Literal

import click
import structlog

from bridge.api.places import LOCAL_WARNING
from bridge.api.settings import LocalTransport
from bridge.app import run_agent
from bridge.cli.settings import config_option, read_settings
from bridge.telemetry import configure_logging

log = structlog.get_logger(__name__)


@click.command()
@config_option
@click.option(
    "--kubeconfig", metavar="FILE", help="Left out: in the cluster its own, else KUBECONFIG, else ~/.kube/config."
)
@click.option("--address", metavar="IP", help="Overrides kubelet.address: what the API server dials.")
@click.option(
    "--probe-port", type=click.IntRange(1, 65535), metavar="PORT", help="Overrides agent.probePort: /healthz, /readyz."
)
@click.option("--log-format", type=click.Choice(["json", "console"]), default="console", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def run(
    config: str,
    kubeconfig: str | None,
    address: str | None,
    probe_port: int | None,
    log_format: Literal["json", "console"],
    log_level: str,
) -> None:
    """Run the agent until it is told to stop."""
    settings = read_settings(config)
    if address:
        settings = settings.model_copy(update={"kubelet": settings.kubelet.model_copy(update={"address": address})})
    if probe_port:
        settings = settings.model_copy(update={"agent": settings.agent.model_copy(update={"probe_port": probe_port})})
    configure_logging(log_format, log_level)
    for cluster in settings.clusters:
        for account in cluster.accounts:
            if isinstance(account.transport, LocalTransport):
                log.warning("transport.local", cluster=cluster.name, account=account.name, problem=LOCAL_WARNING)
    asyncio.run(run_agent(settings, kubeconfig))
