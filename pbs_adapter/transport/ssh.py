"""Reaches an account with paramiko, of which no other module knows.

One TCP connection with three threads: paramiko's own, and a reader and a writer for the one session in use. Nothing of
paramiko is ever called on the event loop but what cannot block. `socket.shutdown` ends all of it at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from pbs_adapter.transport import AuthenticationRefused, ByteStream, HostKeyRefused, Refused, TransportError
from pbs_adapter.transport.install import install
from pbs_adapter.transport.known_hosts import HostKey, KnownKeys, lookup
from pbs_adapter.transport.line import command_line
from pbs_adapter.transport.ssh_stream import SshStream
from pbs_adapter.transport.threads import in_thread

_KEEPALIVE = 30  # s; keeps firewalls from forgetting the connection. Liveness is the channel's ping, not this.
_SESSION_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.5, 0.5)  # s
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")
_WEAK = re.compile(r"-cbc|3des|arcfour|md5|sha1(?!\d)|-96|group1-")
_LOG = "pbs_adapter.transport.paramiko"
# Paramiko logs whole tracebacks of what it also raises; it is raised on, with its cause.
logging.getLogger(_LOG).setLevel(logging.CRITICAL)


class SshTransport:
    """One SSH connection, made at the first use. `deadline` (s) bounds connecting, and opening one session."""

    def __init__(
        self, host: str, port: int, user: str, key_file: str, known_hosts_file: str, *, deadline: float = 30
    ) -> None:
        self._host, self._port, self._user = host, port, user
        self._key_file, self._known_hosts_file = key_file, known_hosts_file
        self._deadline = deadline
        self._socket: socket.socket | None = None
        self._ssh: paramiko.Transport | None = None
        self._streams: list[SshStream] = []

    def __repr__(self) -> str:
        state = "connected" if self._ssh is not None and self._ssh.is_active() else "not connected"
        return f"<SshTransport {self._user}@{self._host}:{self._port} {state}>"

    async def install(self, name: str, content: bytes, directory: str) -> str:
        """See `Transport.install`."""
        return await install(self.open, name, content, directory)

    async def open(self, argv: Sequence[str]) -> ByteStream:
        """See `Transport.open`. Raises `HostKeyRefused` and `AuthenticationRefused` too."""
        command = command_line(argv)
        try:
            async with asyncio.timeout(self._deadline):
                ssh = self._ssh or await self._connect()
                channel = await in_thread("ssh-open", lambda: _start(ssh, command), self._kill)
        except TimeoutError as error:
            raise TransportError(f"{self._address}: no answer within {self._deadline:g} s") from error
        except Refused:
            raise
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise TransportError(f"{self._address}: {error or type(error).__name__}") from error
        stream = SshStream(channel, self._kill)
        self._streams = [s for s in self._streams if not s.closed] + [stream]
        return stream

    async def host_key(self, known: KnownKeys) -> HostKey:
        """Return the key that the server shows, of a type in `known` if it can. Nobody logs in."""
        try:
            async with asyncio.timeout(self._deadline):
                sock = self._socket = await self._dial()
                return await in_thread("ssh-host-key", lambda: self._exchange(sock, known), self._kill)
        except TimeoutError as error:
            raise TransportError(f"{self._host}:{self._port}: no answer within {self._deadline:g} s") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise TransportError(f"{self._host}:{self._port}: {error or type(error).__name__}") from error
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """See `Transport.aclose`. Carried through even when the caller is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        self._kill()
        await asyncio.gather(*(stream.aclose() for stream in self._streams))
        if (ssh := self._ssh) is not None:
            self._ssh = None
            await in_thread("ssh-close", lambda: _close(ssh), self._kill)
        if self._socket is not None:
            self._socket.close()

    @property
    def _address(self) -> str:
        return f"{self._user}@{self._host}:{self._port}"

    def _kill(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    async def _connect(self) -> paramiko.Transport:
        sock = self._socket = await self._dial()
        return await in_thread("ssh-connect", lambda: self._handshake(sock), self._kill)

    async def _dial(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        last: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                last = error
            except BaseException:  # cancelled
                sock.close()
                raise
            else:
                return sock
        raise last or OSError("the name has no address")

    def _handshake(self, sock: socket.socket) -> paramiko.Transport:
        known = self._read_known_hosts()
        key = self._read_key()
        # Known from here on, so that `aclose` waits for its thread also when nobody gets the result.
        ssh = self._ssh = paramiko.Transport(sock)
        ssh.set_log_channel(_LOG)
        try:
            _prefer(ssh, known)
            ssh.start_client()
            self._check_host_key(ssh.get_remote_server_key(), known)
            self._authenticate(ssh, key)
            ssh.set_keepalive(_KEEPALIVE)
        except BaseException:
            _close(ssh)
            raise
        return ssh

    def _exchange(self, sock: socket.socket, known: KnownKeys) -> HostKey:
        ssh = self._ssh = paramiko.Transport(sock)
        ssh.set_log_channel(_LOG)
        _prefer(ssh, known)
        ssh.start_client()
        key = ssh.get_remote_server_key()
        return HostKey(key.get_name(), key.asbytes())

    def _read_known_hosts(self) -> KnownKeys:
        try:
            text = Path(self._known_hosts_file).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise HostKeyRefused(f"cannot read knownHostsFile: {error}") from error
        return lookup(text, self._host, self._port)

    def _check_host_key(self, key: paramiko.PKey, known: KnownKeys) -> None:
        if known.allows(key.asbytes()):
            return
        what = "has changed, or someone is in between" if known.accepted else "is unknown"
        raise HostKeyRefused(
            f"the host key of {self._host}:{self._port} {what}: {key.get_name()} {key.fingerprint}. "
            f"If that is the right one, put it into {self._known_hosts_file}"
        )

    def _read_key(self) -> paramiko.PKey:
        try:
            return paramiko.PKey.from_path(self._key_file)
        except (
            OSError,
            ValueError,
            TypeError,  # encrypted
            UnsupportedAlgorithm,
            paramiko.SSHException,
            paramiko.pkey.UnknownKeyType,
        ) as error:
            raise AuthenticationRefused(f"cannot use keyFile {self._key_file}: {error}") from error

    def _authenticate(self, ssh: paramiko.Transport, key: paramiko.PKey) -> None:
        try:
            further = ssh.auth_publickey(self._user, key)
        except paramiko.AuthenticationException as error:
            # Paramiko says the same when the connection ended meanwhile, which says nothing about the key.
            if not ssh.is_active() or "timeout" in str(error).lower():
                raise
            raise AuthenticationRefused(
                f"{self._address} does not accept the key {key.get_name()} {key.fingerprint}: {error}"
            ) from error
        if further:
            raise AuthenticationRefused(f"{self._address} wants more than a key: {', '.join(further)}")


async def host_key(host: str, port: int, known: KnownKeys, *, deadline: float = 30) -> HostKey:
    """See `SshTransport.host_key`: nobody logs in. Raises `TransportError`."""
    return await SshTransport(host, port, "", "", "", deadline=deadline).host_key(known)


def _prefer(ssh: paramiko.Transport, known: KnownKeys) -> None:
    """Ask for the types of host key that we know first: a server has several keys. And for the cheapest cipher.

    Paramiko asks for AES-CTR with an HMAC first; AES-GCM does both in one pass, a fifth less CPU for each byte. It also
    offers, last, what OpenSSH has given up; a server that wants only that is refused.
    """
    wanted = [
        name for known_type in known.types for name in (_RSA_SIGNATURES if known_type == "ssh-rsa" else (known_type,))
    ]
    options = ssh.get_security_options()
    supported = options.key_types
    options.key_types = [t for t in wanted if t in supported] + [t for t in supported if t not in wanted]
    options.ciphers = sorted(_strong(options.ciphers), key=lambda name: "-gcm" not in name)
    options.digests = _strong(options.digests)
    options.kex = _strong(options.kex)


def _strong(names: Sequence[str]) -> tuple[str, ...]:
    """Algorithms without CBC mode, 3DES, RC4, MD5 and SHA-1, whole or truncated.

    >>> _strong(["aes128-ctr", "3des-cbc", "hmac-sha2-256-etm@openssh.com", "hmac-sha1-96", "hmac-md5"])
    ('aes128-ctr', 'hmac-sha2-256-etm@openssh.com')
    """
    return tuple(name for name in names if not _WEAK.search(name))


def _start(ssh: paramiko.Transport, command: str) -> paramiko.Channel:
    channel = _open_session(ssh)
    # Unread standard error would fill the window that all output shares.
    channel.set_combine_stderr(True)
    channel.exec_command(command)
    return channel


def _open_session(ssh: paramiko.Transport) -> paramiko.Channel:
    # Where one session is allowed, sshd counts the last one until it has cleaned up, of which it tells nothing.
    for pause in _SESSION_PAUSES:
        try:
            return ssh.open_session()
        except paramiko.ChannelException:
            time.sleep(pause)
    return ssh.open_session()


def _close(ssh: paramiko.Transport) -> None:
    ssh.close()
    ssh.sock.close()
    if ssh.is_alive():
        ssh.join()
    ssh.packetizer.complete_handshake()  # ends a timer, which is a thread, that a handshake cut short leaves behind
