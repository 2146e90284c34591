"""How a program on the login node is reached: put a file there, start a program, talk to it over one byte stream.

A transport is one attempt's worth of connection: after any error it is closed and a new one made. Nothing here knows
what is said over the stream. Errors, all of them `pbs_adapter.errors.Unreachable`::

    Unreachable
    └── TransportError           the network, the login node or the program failed: try again with back-off
        └── Refused              trying again at once can only make it worse: report it and pause for long
            ├── HostKeyRefused   the host key is unknown or has changed; nothing was sent
            └── AuthenticationRefused
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pbs_adapter.errors import Unreachable


class TransportError(Unreachable):
    """The login node could not be reached, or the stream broke."""


class Refused(TransportError):
    """A person has to change something first: must not be tried again quickly."""


class HostKeyRefused(Refused):
    """The host key is not the one in known_hosts. The message has its SHA256 fingerprint."""


class AuthenticationRefused(Refused):
    """The key is unusable, or the account did not accept it."""


class ByteStream(Protocol):
    """Standard input and output of one program."""

    @property
    def diagnostics(self) -> str:
        """The end of what the program, or what carries it, wrote to standard error (at most 4 KiB)."""

    async def read(self, limit: int) -> bytes:
        """Return 1 to `limit` bytes, `b""` at the end. Raises `TransportError`."""

    async def write(self, data: bytes) -> None:
        """Take all of `data`; waits while too much is on its way already. Raises `TransportError`."""

    async def aclose(self) -> None:
        """End the program's input, and the program if it does not end by itself. Never raises `TransportError`."""


class Transport(Protocol):
    """One way to one account. Used by one task at a time."""

    async def install(self, name: str, content: bytes, directory: str) -> str:
        """Make `directory`/`name` hold `content`, and return its absolute path there.

        `directory` may start with `~/`; it is made if missing (0700). Nothing is sent when the file has that content
        already. The file appears by rename, only when its hash is right. Raises `TransportError`.
        """

    async def open(self, argv: Sequence[str]) -> ByteStream:
        """Start a program. Raises `TransportError` when the login node cannot be reached."""

    async def aclose(self) -> None:
        """Leave no connection, process or thread behind."""


TransportFactory = Callable[[], Transport]
