"""Puts one file on the far side through any transport, with nothing there but a POSIX shell and coreutils.

The far shell says what it needs in marked lines, since login scripts print things before it. It reads the content by
size, so that a transport needs no way to end only its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence

from pbs_adapter.transport import ByteStream, TransportError

#: Login nodes may give a forced command no PATH at all; what comes from the user's own PATH wins.
SET_PATH = 'PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin"; export PATH'

_MARK = "HPC-BRIDGE-INSTALL"
_CHUNK = 64 * 1024
_MOST_NOISE = 256 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")

#: `safe DIR…` calls `fail TEXT` unless nobody but us, or root, can change what is in these directories, or replace one
#: of them on the way there. The helper asks the same of the whole spool (remote/helper_owner.py).
SAFE = """\
others() { [ $((0$1 & 2)) -ne 0 ] || { [ $((0$1 & 16)) -ne 0 ] && [ "$2" != "$(id -un)" ]; }; }
guarded() {
    at=$1 child=$(stat -c %u -- "$1")
    while [ "$at" != / ]; do
        below=$at at=$(dirname -- "$at")
        set -- $(stat -L -c '%a %u %G' -- "$at")
        if others "$1" "$3"; then
            [ $((0$1 & 512)) -ne 0 ] ||
                fail "the spool is not safe: $at can be written by others, who could replace $below: chmod +t"
            case $child in 0 | "$(id -u)") ;; *) fail "the spool is not safe: $below was made by another user";; esac
        fi
        child=$(stat -c %u -- "$at")
    done
}
safe() {
    for each in "$@"; do
        set -- $(stat -L -c '%a %u %G' -- "$each")
        [ "$2" = "$(id -u)" ] || fail "the spool is not safe: $each belongs to user $2, not to this account"
        ! others "$1" "$3" || fail "the spool is not safe: $each can be written by others (mode $1): chmod go-w"
        guarded "$each"
        real=$(cd -P -- "$each" && pwd) && [ "$real" = "$each" ] || guarded "$real"
    done
}
"""

_SCRIPT = f"""\
umask 077; exec 2>&1; {SET_PATH}
say() {{ printf '\\n{_MARK} %s\\n' "$1"; }}
fail() {{ say "error $1"; exit 1; }}
directory=$1 name=$2 size=$3 sum=$4
case $directory in "~/"*) directory=$HOME/${{directory#"~/"}};; esac
case $directory in /*) ;; *) fail "HOME is not set";; esac
mkdir -p -- "$directory" && cd -- "$directory" || fail "cannot make $directory"
{SAFE}safe "$(dirname -- "$directory")" "$directory"
holds() {{ [ -f "$1" ] && [ "$(sha256sum < "$1" | cut -d" " -f1)" = "$sum" ]; }}
holds "$name" && {{ say "ok $directory/$name"; exit 0; }}
say send
head -c "$size" > ".$name.$$" && holds ".$name.$$" && chmod 700 ".$name.$$" && [ ! -d "$name" ] &&
    mv -f ".$name.$$" "$name" || {{
    rm -f ".$name.$$"; fail "cannot write $directory/$name"; }}
say "ok $directory/$name"
"""


async def install(
    open_stream: Callable[[Sequence[str]], Awaitable[ByteStream]],
    name: str,
    content: bytes,
    directory: str,
    *,
    deadline: float = 120,
) -> str:
    """See `Transport.install`. `deadline` (s) bounds all of it."""
    if not _NAME.fullmatch(name) or not directory.startswith(("/", "~/")) or "\0" in directory:
        raise ValueError(f"not a file name and directory to install to: {name!r}, {directory!r}")
    digest = hashlib.sha256(content).hexdigest()
    try:
        async with asyncio.timeout(deadline):
            argv = ["/bin/sh", "-c", _SCRIPT, "install", directory, name, str(len(content)), digest]
            stream = await open_stream(argv)
            try:
                return await _talk(stream, content)
            finally:
                await stream.aclose()
    except TimeoutError as error:
        raise TransportError(f"installing {name} took more than {deadline:g} s") from error


async def _talk(stream: ByteStream, content: bytes) -> str:
    answers = _Answers(stream)
    answer, text = await answers.next()
    if answer == "send":
        # A shell that gives up early, for example on a full disk, closes its input and then says why.
        with contextlib.suppress(TransportError):
            for at in range(0, len(content), _CHUNK):
                await stream.write(content[at : at + _CHUNK])
        answer, text = await answers.next()
    if answer != "ok" or not text.startswith("/"):
        raise TransportError(f"cannot install on the login node: {text or answer}".strip())
    await answers.drain()
    return text


class _Answers:
    """Reads the marked lines; keeps the end of everything else for messages."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = b""
        self._noise = b""
        self._skipped = 0

    async def next(self) -> tuple[str, str]:
        """Return an answer's word and its text; for `error` the far side's own words are in front of the text."""
        while True:
            line = await self._line()
            if line.startswith(_MARK.encode() + b" "):
                word, _, text = line.decode("utf-8", "surrogateescape").partition(" ")[2].partition(" ")
                return word, f"{self._tail()} {text}".strip() if word == "error" else text
            self._noise = (self._noise + line + b"\n")[-1000:]

    async def drain(self) -> None:
        """Wait for the end of the program, so that its session has ended before the next one starts."""
        while await self._stream.read(_CHUNK):
            pass

    async def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = await self._stream.read(_CHUNK)
            self._skipped += len(data)
            if not data or self._skipped > _MOST_NOISE:
                self._noise = (self._noise + self._buffer)[-1000:]
                raise TransportError(f"no shell answered on the login node. {self._tail()}".strip())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _tail(self) -> str:
        said = self._noise.decode("utf-8", "replace") + self._stream.diagnostics
        return " ".join(said.split())[-500:]
