"""`hpc-bridge manifests`: what has to be applied to Kubernetes for these settings."""

from __future__ import annotations

from pathlib import Path

import click

from bridge.cli.settings import config_option, read_settings
from bridge.setup.manifests import Unfit, printed
from bridge.setup.manifests import manifests as made


@click.command()
@config_option
def manifests(config: str) -> None:
    """Print what follows from the settings, ready for `kubectl apply -f -`: RuntimeClasses, rights, ports, settings."""
    settings = read_settings(config, files=False)  # they lie in the pod
    try:
        click.echo(printed(made(settings, Path(config).read_text(encoding="utf-8"))), nl=False)
    except Unfit as unfit:
        raise click.ClickException(str(unfit)) from None
