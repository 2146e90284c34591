"""What every transport keeps: the same tests for local, command (a bare shell, and OpenSSH) and the built-in SSH."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from pbs_adapter.transport import ByteStream, Transport, TransportError

from .conftest import Site, eventually

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
async def transport(site: Site) -> AsyncIterator[Transport]:
    made = site.make()
    yield made
    await made.aclose()


async def everything(stream: ByteStream) -> bytes:
    data = b""
    while part := await stream.read(65536):
        data += part
    return data


async def shell(transport: Transport, script: str, *arguments: str) -> str:
    stream = await transport.open(["/bin/sh", "-c", script, "sh", *arguments])
    output = await everything(stream)
    await stream.aclose()
    return output.decode().removeprefix("Welcome\n")


async def test_arguments_arrive_as_they_are(transport: Transport) -> None:
    hostile = ["a b", "$(id)", "`id`", "'", '"', "\\", "a\nb", "*", "~", "!x", "é", "-e", ";", ""]
    assert await shell(transport, 'for word; do printf "%s|" "$word"; done', *hostile) == "|".join([*hostile, ""])


async def test_all_bytes_pass_in_both_directions(transport: Transport) -> None:
    stream = await transport.open(["/bin/sh", "-c", "echo go; exec cat"])
    while not (await stream.read(4096)).endswith(b"go\n"):
        pass
    sent = os.urandom(3_000_000)
    received = b""
    writing = asyncio.create_task(stream.write(sent))
    while len(received) < len(sent):
        received += await stream.read(65536)
    await writing
    assert hashlib.sha256(received).digest() == hashlib.sha256(sent).digest()
    await stream.aclose()


async def test_a_program_that_does_not_read_makes_the_writer_wait(transport: Transport) -> None:
    stream = await transport.open(["/bin/sh", "-c", "exec sleep 1000"])
    writing = asyncio.create_task(stream.write(bytes(50_000_000)))
    done, _ = await asyncio.wait([writing], timeout=0.3)
    assert not done
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_a_program_that_floods_stderr_stalls_nothing(transport: Transport) -> None:
    script = (
        "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789 >&2; i=$((i+1)); done; echo end"
    )
    stream = await transport.open(["/bin/sh", "-c", script])
    assert b"end\n" in await everything(stream)


async def test_closing_ends_the_program_by_the_end_of_its_input(transport: Transport, site: Site) -> None:
    path = f"{site.folder}-end"
    stream = await transport.open(
        ["/bin/sh", "-c", 'cat >/dev/null; echo seen >"$1"; sleep 0.2; echo kept >"$1"', "sh", path]
    )
    await stream.aclose()
    await stream.aclose()
    assert await shell(transport, 'cat "$1"; rm "$1"', path) == "kept\n"
    with pytest.raises(TransportError):
        await stream.write(b"more")


async def test_files_are_installed_once_by_their_content(transport: Transport, site: Site) -> None:
    content = os.urandom(300_000)
    path = await transport.install("helper-1.pyz", content, f"{site.folder}/deep/bin")
    assert path == f"{site.folder}/deep/bin/helper-1.pyz"
    look = 'cksum <"$1"; stat -c "%a %i" "$1" "${1%/*}"; ls -A "${1%/*}"'
    first = await shell(transport, look, path)
    assert f" {len(content)}\n700 " in first
    assert first.count("\n700 ") == 2
    assert first.endswith("\nhelper-1.pyz\n")
    assert await transport.install("helper-1.pyz", content, f"{site.folder}/deep/bin") == path
    assert await shell(transport, look, path) == first  # the same inode: it was not sent again
    await shell(transport, 'echo changed >"$1"', path)
    await transport.install("helper-1.pyz", content, f"{site.folder}/deep/bin")
    assert (await shell(transport, look, path)).split()[:2] == first.split()[:2]


async def test_a_directory_that_cannot_be_made_is_told(transport: Transport) -> None:
    with pytest.raises(TransportError, match=r"cannot make /proc/none"):
        await transport.install("x", b"content", "/proc/none/bin")


async def test_a_file_that_cannot_be_written_is_told(transport: Transport, site: Site) -> None:
    await shell(transport, 'mkdir -p "$1/bin/x"', site.folder)  # a directory in the way
    with pytest.raises(TransportError, match="cannot write"):
        await transport.install("x", bytes(1_000_000), f"{site.folder}/bin")


@pytest.mark.parametrize(("name", "directory"), [("../x", "/tmp"), ("x", "relative"), ("", "/tmp"), ("a b", "/tmp")])
async def test_names_that_lead_elsewhere_are_refused(transport: Transport, name: str, directory: str) -> None:
    with pytest.raises(ValueError, match="not a file name"):
        await transport.install(name, b"", directory)


async def test_an_install_in_progress_can_be_cancelled(transport: Transport, site: Site) -> None:
    task = asyncio.create_task(transport.install("big", os.urandom(30_000_000), f"{site.folder}/bin"))
    await asyncio.sleep(0.05)
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)


async def test_closing_the_transport_ends_what_runs(site: Site) -> None:
    transport = site.make()
    stream = await transport.open(["/bin/sh", "-c", "echo up; exec sleep 1000"])
    reading = asyncio.create_task(everything(stream))
    await eventually(lambda: not reading.done(), "a read that waits")
    await transport.aclose()
    await asyncio.gather(reading, return_exceptions=True)
    await transport.aclose()
