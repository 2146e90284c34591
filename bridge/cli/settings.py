"""The option `-c bridge.yaml`, the same for every verb that reads settings."""

from __future__ import annotations

import click

from bridge.api.load import SettingsError, load
from bridge.api.settings import Settings
from bridge.cli.screen import echo

config_option = click.option(
    "-c",
    "--config",
    default="bridge.yaml",
    envvar="HPC_BRIDGE_CONFIG",
    show_default=True,
    metavar="FILE",
    help="The agent's settings.",
)


def read_settings(path: str, *, files: bool = True) -> Settings:
    """The settings, or every mistake on stderr and exit status 2. files: whether keys and the like must be there."""
    try:
        return load(path, files=files)
    except SettingsError as error:
        for problem in error.problems:
            echo(str(problem), err=True)
        raise SystemExit(2) from None
