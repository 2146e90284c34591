"""Reaches an account through any command that gives a shell's input and output: OpenSSH, jump hosts, kinit wrappers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pbs_adapter.transport.line import command_line
from pbs_adapter.transport.process import GRACE, ProcessTransport


class CommandTransport(ProcessTransport):
    """Runs `argv` with the remote command appended as one last argument, as `ssh HOST` expects it."""

    def __init__(self, argv: Sequence[str], *, grace: float = GRACE) -> None:
        super().__init__(grace=grace)
        self._argv = tuple(argv)

    def __repr__(self) -> str:
        return f"<CommandTransport {shlex.join(self._argv)}>"

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the configured command with the remote one as its last argument."""
        return [*self._argv, command_line(argv)]
