"""Reaches the account that the agent itself runs under: the agent is on the login node."""

from __future__ import annotations

from pbs_adapter.transport.process import ProcessTransport


class LocalTransport(ProcessTransport):
    """Programs are started as they are."""

    def __repr__(self) -> str:
        return "<LocalTransport>"
