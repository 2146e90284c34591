"""What only SSH has: keys that are refused, connections that break or hang, threads that must end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.testbed.sshd import Sshd
from pbs_adapter.transport import AuthenticationRefused, ByteStream, HostKeyRefused, TransportError
from pbs_adapter.transport.known_hosts import lookup
from pbs_adapter.transport.ssh import SshTransport

from .conftest import eventually, ssh_to

pytestmark = pytest.mark.usefixtures("nothing_left")


def new_key(path: Path, password: bytes = b"") -> str:
    """Write a private key; return the public one as in known_hosts."""
    key = Ed25519PrivateKey.generate()
    cipher = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, cipher))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


@pytest.fixture
async def silent() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A port that takes connections and says nothing, and what is set when one has come."""
    arrived = asyncio.Event()
    writers = []

    async def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        arrived.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(arrive, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], arrived
    server.close()
    for writer in writers:
        writer.close()
    await server.wait_closed()


def logins(server: Sshd) -> str:
    return server.log.read_text()


async def refused(transport: SshTransport) -> str:
    with pytest.raises(TransportError) as caught:
        await transport.open(["true"])
    await transport.aclose()
    return str(caught.value)


async def test_an_unknown_host_key_is_refused_before_anything_is_sent(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("")
    fingerprint = subprocess.run(
        ["ssh-keygen", "-l", "-f", "-"], input=sshd.known_hosts.read_text(), capture_output=True, text=True, check=True
    ).stdout.split()[1]
    before = len(logins(sshd))
    transport = ssh_to(sshd, known_hosts_file=str(known))
    with pytest.raises(HostKeyRefused, match="is unknown") as caught:
        await transport.open(["true"])
    await transport.aclose()
    assert f"ssh-ed25519 {fingerprint}" in str(caught.value)
    assert str(known) in str(caught.value)
    assert "Accepted" not in logins(sshd)[before:]
    assert "Failed" not in logins(sshd)[before:]


async def test_a_changed_host_key_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[{sshd.host}]:{sshd.port} {new_key(tmp_path / 'other')}\n")
    transport = ssh_to(sshd, known_hosts_file=str(known))
    with pytest.raises(HostKeyRefused, match="has changed"):
        await transport.open(["true"])
    await transport.aclose()


async def test_a_revoked_host_key_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    line = sshd.known_hosts.read_text()
    known.write_text(f"{line}@revoked * {line.split(maxsplit=1)[1]}")
    with pytest.raises(HostKeyRefused):
        await (transport := ssh_to(sshd, known_hosts_file=str(known))).open(["true"])
    await transport.aclose()


async def test_a_key_that_the_account_does_not_know_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    transport = ssh_to(sshd, key_file=str(tmp_path / "key"))
    with pytest.raises(AuthenticationRefused, match="does not accept the key ssh-ed25519 SHA256:"):
        await transport.open(["true"])
    await transport.aclose()


@pytest.mark.parametrize("kind", ["missing", "encrypted", "empty"])
async def test_a_key_that_cannot_be_used_is_refused(sshd: Sshd, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    if kind == "encrypted":
        new_key(path, b"secret")
    elif kind == "empty":
        path.write_text("")
    transport = ssh_to(sshd, key_file=str(path))
    with pytest.raises(AuthenticationRefused, match="cannot use keyFile"):
        await transport.open(["true"])
    await transport.aclose()


async def test_nobody_listening_is_unreachable(sshd: Sshd) -> None:
    assert "111" in await refused(ssh_to(sshd, port=1))


async def test_a_server_that_says_nothing_is_given_up(sshd: Sshd, silent: tuple[int, asyncio.Event]) -> None:
    assert "no answer within 0.2 s" in await refused(ssh_to(sshd, port=silent[0], deadline=0.2))


async def test_connecting_can_be_cancelled(sshd: Sshd, silent: tuple[int, asyncio.Event]) -> None:
    transport = ssh_to(sshd, port=silent[0])
    opening = asyncio.create_task(transport.open(["true"]))
    await silent[1].wait()
    opening.cancel()
    assert isinstance((await asyncio.gather(opening, return_exceptions=True))[0], asyncio.CancelledError)
    await transport.aclose()


async def test_a_connection_has_three_threads(sshd: Sshd) -> None:
    before = set(threading.enumerate())
    transport = ssh_to(sshd)
    stream = await transport.open(["cat"])

    def ours() -> list[threading.Thread]:
        return [t for t in set(threading.enumerate()) - before if not t.name.startswith("asyncio_")]

    await eventually(lambda: len(ours()) == 3, "exactly three threads")
    await stream.aclose()
    await eventually(lambda: len(ours()) == 1, "the reader's and the writer's end")
    await transport.aclose()
    assert not ours()


async def with_session(transport: SshTransport, command: str) -> tuple[ByteStream, int]:
    """A stream to `command`, and the process of sshd that serves it."""
    script = (
        "s=$PPID; while ! grep -q ^sshd /proc/$s/comm; do s=$(cut -d' ' -f4 /proc/$s/stat); done; echo session $s; "
    )
    stream = await transport.open(["/bin/sh", "-c", script + command])
    said = b""
    while (found := re.search(rb"session (\d+)\n", said)) is None:
        part = await stream.read(1000)
        assert part, said
        said += part
    return stream, int(found[1])


async def test_a_stopped_server_cannot_hold_the_closing_up(sshd: Sshd) -> None:
    transport = ssh_to(sshd)
    stream, session = await with_session(transport, "exec sleep 1000")
    os.kill(session, signal.SIGSTOP)
    try:
        writing = asyncio.create_task(stream.write(bytes(100_000_000)))
        done, _ = await asyncio.wait([writing], timeout=0.3)
        assert not done
        await transport.aclose()
        assert isinstance((await asyncio.gather(writing, return_exceptions=True))[0], TransportError)
    finally:
        os.kill(session, signal.SIGCONT)


async def test_a_server_that_goes_away_ends_the_stream(sshd: Sshd) -> None:
    transport = ssh_to(sshd)
    stream, session = await with_session(transport, "exec cat")
    os.kill(session, signal.SIGKILL)
    with contextlib.suppress(TransportError):  # whether it ended or broke depends on how much paramiko saw
        assert await stream.read(100) == b""
    with pytest.raises(TransportError):
        await stream.write(b"more")
    await transport.aclose()


async def test_weak_algorithms_are_not_offered() -> None:
    """What goes over the wire before anything is agreed: the server sees every algorithm that we would take."""
    said = bytearray()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        while data := await reader.read(4096):
            said.extend(data)
            if b"mac" in said and len(said) > 900:
                break
        writer.close()

    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    with pytest.raises(TransportError):
        await SshTransport("127.0.0.1", port, "u", "k", "h", deadline=5).host_key(lookup("", "127.0.0.1", port))
    listening.close()
    await listening.wait_closed()
    offered = re.findall(rb"[a-z0-9@.-]+(?:,[a-z0-9@.-]+)+", bytes(said))
    names = {name.decode() for line in offered for name in line.split(b",")}
    assert {"aes256-gcm@openssh.com", "hmac-sha2-256", "ssh-ed25519", "curve25519-sha256@libssh.org"} <= names
    assert not [name for name in names if re.search(r"cbc|3des|md5|arcfour|sha1\b|-96", name)]
