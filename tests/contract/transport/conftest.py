"""A real sshd for every test here, a small helper that speaks the wire protocol, and a look at what is left behind."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import pbs_adapter.remote.wire
from bridge.testbed import sshd as testbed
from bridge.testbed.accounts import Account
from pbs_adapter.transport import Transport
from pbs_adapter.transport.command import CommandTransport
from pbs_adapter.transport.local import LocalTransport
from pbs_adapter.transport.ssh import SshTransport


class OneSession(testbed.Sshd):
    """A strict site: one session a connection, and a login shell that prints something."""

    def _configuration(self, account: Account) -> str:
        return (
            super()._configuration(account) + 'MaxSessions 1\nForceCommand echo Welcome; eval "$SSH_ORIGINAL_COMMAND"\n'
        )


@pytest.fixture(scope="session")
def sshd_if_available() -> Iterator[testbed.Sshd | None]:
    """A login node that allows the least."""
    if not testbed.available():
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="hpcb-transport-"))
    folder.chmod(0o711)
    work = folder / "sshd"
    work.mkdir(mode=0o700)
    account = Account("transport", folder / "home", folder / "account.log")
    server = OneSession(account, work)
    try:
        yield server
    finally:
        server.stop()
        account.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sshd(sshd_if_available: testbed.Sshd | None) -> testbed.Sshd:
    """The login node, or a skip that says what is missing."""
    if sshd_if_available is None:
        pytest.skip("sshd is missing and cannot be installed")
    return sshd_if_available


@dataclass
class Site:
    """One way to reach an account: `make` gives a fresh transport, `folder` is a directory that it may write."""

    make: Callable[[], Transport]
    folder: str


@pytest.fixture(params=["local", "command", "openssh", "ssh"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """The account through each transport; `command` is a login shell without any environment that prints first."""
    folder = str(tmp_path / "spool")
    if request.param == "local":
        yield Site(LocalTransport, folder)
    elif request.param == "command":
        yield Site(lambda: CommandTransport(["env", "-i", "/bin/sh", "-c", 'echo Welcome; eval "$0"']), folder)
    else:
        server: testbed.Sshd = request.getfixturevalue("sshd")
        folder = server.run("mktemp -d /tmp/hpcb-spool-XXXXXX").stdout.split()[-1]
        if request.param == "openssh":
            yield Site(lambda: CommandTransport(server.ssh_argv()), folder)
        else:
            yield Site(lambda: ssh_to(server), folder)
        server.run("rm", "-rf", folder)


def ssh_to(server: testbed.Sshd, **changes: object) -> SshTransport:
    """The built-in client for this server, with some arguments changed."""
    arguments: dict[str, object] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "key_file": str(server.key_file),
        "known_hosts_file": str(server.known_hosts),
    }
    return SshTransport(**{**arguments, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def helper_program() -> bytes:
    """`peer_helper.py` as a zipapp."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("wire.py", Path(pbs_adapter.remote.wire.__file__).read_text())
        archive.writestr("__main__.py", Path(__file__).with_name("peer_helper.py").read_text())
    return packed.getvalue()


async def eventually(condition: Callable[[], bool], what: str, deadline: float = 20) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {deadline} s: {what}")
        await asyncio.sleep(0.005)


def _threads() -> set[threading.Thread]:
    # The event loop's own threads for name look-ups end with the loop.
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:  # the listing's own
            continue
    return found


@pytest.fixture
async def nothing_left(sshd_if_available: testbed.Sshd | None) -> AsyncIterator[None]:
    """No thread, file descriptor or task may outlive the test; the server's own are there before it."""
    threads, descriptors = _threads(), _descriptors()
    yield
    left: set[object] = set()

    def clean() -> bool:
        nonlocal left
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        left = {*(_threads() - threads), *(_descriptors() - descriptors), *tasks}
        return not left

    try:
        await eventually(clean, "everything has ended", 10)
    except pytest.fail.Exception:
        pytest.fail(f"left behind: {left}")
