"""Getting a host key before anything is trusted, and writing it down only when it is the right one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bridge.setup.hostkey import NotTrusted, trust
from bridge.testbed.sshd import Sshd
from pbs_adapter.transport import TransportError
from pbs_adapter.transport.known_hosts import HostKey, lookup
from pbs_adapter.transport.ssh import host_key

from .conftest import ssh_to

pytestmark = pytest.mark.usefixtures("nothing_left")


def never(key: HostKey) -> bool:
    raise AssertionError(f"asked about {key}")


async def test_the_key_is_the_servers_and_nobody_logged_in(sshd: Sshd) -> None:
    before = sshd.log.read_text().count("Accepted publickey")
    key = await host_key(sshd.host, sshd.port, lookup("", sshd.host, sshd.port))
    assert lookup(sshd.known_hosts.read_text(), sshd.host, sshd.port).allows(key.blob)
    listed = subprocess.run(["ssh-keygen", "-lf", sshd.known_hosts], capture_output=True, text=True, check=True)
    assert key.fingerprint in listed.stdout
    assert sshd.log.read_text().count("Accepted publickey") == before


async def test_no_server(sshd: Sshd) -> None:
    with pytest.raises(TransportError, match=rf"{re.escape(sshd.host)}:1: "):
        await host_key(sshd.host, 1, lookup("", sshd.host, 1))


async def test_a_confirmed_key_is_written_and_then_good_for_a_login(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "folder/known_hosts"
    asked: list[HostKey] = []

    def agree(key: HostKey) -> bool:
        asked.append(key)
        return True

    said = await trust(sshd.host, sshd.port, file, agree)
    assert asked[0].fingerprint in said
    again = await trust(sshd.host, sshd.port, file, never)
    assert asked[0].fingerprint in again
    transport = ssh_to(sshd, known_hosts_file=str(file))
    stream = await transport.open(["echo", "in"])
    assert b"in" in await stream.read(1000) + await stream.read(1000)
    await stream.aclose()
    await transport.aclose()


async def test_a_key_that_is_not_confirmed_is_not_written(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("other ssh-ed25519 QUJD")
    with pytest.raises(NotTrusted, match=r"was not confirmed: ssh-ed25519 SHA256:"):
        await trust(sshd.host, sshd.port, file, lambda _: False)
    assert file.read_text() == "other ssh-ed25519 QUJD"
    await trust(sshd.host, sshd.port, file, lambda _: True)
    assert file.read_text().startswith("other ssh-ed25519 QUJD\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [("{name} ssh-ed25519 QUJD", "has changed, or someone is in between"), ("@revoked * {key}", "is revoked")],
)
async def test_a_changed_or_revoked_key_is_refused_without_a_question(
    sshd: Sshd, tmp_path: Path, line: str, message: str
) -> None:
    name, key = sshd.known_hosts.read_text().strip().split(" ", 1)
    file = tmp_path / "known_hosts"
    file.write_text(line.format(name=name, key=key))
    with pytest.raises(NotTrusted, match=message):
        await trust(sshd.host, sshd.port, file, never)
    assert file.read_text() == line.format(name=name, key=key)
