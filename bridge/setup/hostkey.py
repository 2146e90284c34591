"""Decides about a host key that is to be trusted for good: only one that the file has, or that a person has confirmed.

Nothing logs in before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pbs_adapter.transport.known_hosts import HostKey, lookup
from pbs_adapter.transport.ssh import host_key


class NotTrusted(Exception):
    """The host key is not the one expected, or was not confirmed; the message has its fingerprint."""


async def trust(host: str, port: int, file: Path, confirm: Callable[[HostKey], bool]) -> str:
    """Make `file` (known_hosts format) hold the server's key; returns what was done, for people.

    `confirm` is asked about a key that the file does not have. Raises NotTrusted, TransportError, OSError.
    """
    text = _read(file)
    known = lookup(text, host, port)
    key = await host_key(host, port, known)
    shown = f"{key.type} {key.fingerprint}"
    if known.allows(key.blob):
        return f"host key of {host}:{port}: {shown}, as {file} has it"
    if key.blob in known.revoked:
        raise NotTrusted(f"{host}:{port} shows {shown}, which {file} says is revoked")
    if known.accepted:
        raise NotTrusted(
            f"the host key of {host}:{port} has changed, or someone is in between: it shows {shown}, and {file} has "
            "another; if the site confirms the new one, remove the old line"
        )
    if not confirm(key):
        raise NotTrusted(f"the host key of {host}:{port} was not confirmed: {shown}; nothing was written")
    _append(file, key.line(host, port), ends_well=not text or text.endswith("\n"))
    return f"host key of {host}:{port}: {shown}, written to {file}"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def _append(file: Path, line: str, *, ends_well: bool) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), "a", encoding="utf-8") as out:
        out.write(f"{'' if ends_well else chr(10)}{line}\n")
