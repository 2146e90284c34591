"""`hpc-bridge demo`: all of it on one machine, in a minute."""

from __future__ import annotations

import click
from rich.console import Console

from bridge.testbed.demo import DemoFailed, run_demo
from bridge.testbed.demo_interrupts import EXIT_STATUS
from bridge.testbed.demo_load import MOST


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running, to be tried, until Ctrl-C.")
@click.option(
    "--pods",
    type=click.IntRange(1, MOST),
    metavar="N",
    help="Run N pods whose containers are simulated, instead of the five of the example.",
)
def demo(keep: bool, pods: int | None) -> None:
    """Run five pods on two embedded PBS clusters, through a real control plane, and show what happens."""
    try:
        run_demo(Console(), keep=keep, pods=pods or 0)
    except KeyboardInterrupt:
        raise SystemExit(EXIT_STATUS) from None
    except DemoFailed as error:
        click.echo(str(error), err=True)
        raise SystemExit(1) from None
