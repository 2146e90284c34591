"""The command `hpc-bridge`: one module a verb, imported when it is used; its command has the verb's name."""

from __future__ import annotations

from importlib import import_module

import click

VERBS = ("clusters", "demo", "doctor", "explain", "init", "manifests", "render", "run", "status", "validate")


class _Verbs(click.Group):
    """Imports a verb's module only when that verb is asked for, so that `validate` needs no SSH or Kubernetes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        name = f"{__name__}.{cmd_name}"
        try:
            command: click.Command = getattr(import_module(name), cmd_name)
        except ModuleNotFoundError as error:
            if error.name == name:
                return None  # a build without this verb
            raise
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hpc-bridge")
def main() -> None:
    """Run ordinary Kubernetes pods as OpenPBS jobs on HPC clusters reached over SSH."""
