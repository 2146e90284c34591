"""Runs one POSIX shell script on a login node and tells its parts apart, whatever login scripts print around them.

A script calls `part NAME COMMAND…`; each part's output, standard error and exit status come back under its name.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from pbs_adapter.transport import Transport, TransportError
from pbs_adapter.transport.install import SET_PATH

_MOST = 256 << 20  # bytes; `pbsnodes -av` of a large site
PART = """\
part() {
    name=$1; shift
    printf '\\n%s begin %s\\n' "$MARK" "$name"
    { said=$("$@" 2>&1 >&3 3>&- </dev/null); status=$?; } 3>&1
    printf '\\n%s end %s\\n%s\\n%s done\\n' "$MARK" "$status" "$said" "$MARK"
}
"""
#: Sets `pbs` to PBS's installation ($1, else by /etc/pbs.conf, else by PATH; empty: none) and puts it on PATH.
FIND_PBS = """\
pbs=$1
[ -n "$pbs" ] || pbs=$(sed -n 's/^ *PBS_EXEC *= *["'\\'']\\{0,1\\}\\([^"'\\'' ]*\\).*/\\1/p' /etc/pbs.conf 2>/dev/null)
[ -n "$pbs" ] || { pbs=$(command -v qstat) && pbs=$(readlink -f "$pbs") && pbs=${pbs%/bin/qstat}; }
[ -n "$pbs" ] && { PATH=$pbs/bin:$PATH; PBS_EXEC=$pbs; export PATH PBS_EXEC; }
TZ=UTC; export TZ
"""
#: Commands that show what containers could be started with, as parts.
RUNTIMES = """\
part bwrap bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc --dev /dev true
for each in apptainer singularity; do
    path=$(command -v "$each") || continue
    part "$each" "$path" --version
    libexec=$(dirname "$(dirname "$(readlink -f "$path")")")/libexec
    part "$each-setuid" sh -c 'find -L "$1" -name starter-suid -perm -4000 -user root | grep .' sh "$libexec"
done
part userns unshare --user true
"""
VERSION = 'import sys; print("%d.%d.%d" % sys.version_info[:3]); sys.exit(sys.version_info < (3, 6))'


@dataclass(frozen=True, slots=True)
class Answer:
    """One part. `status` is its exit status: 0 success, 127 no such command."""

    status: int
    output: bytes
    error: str = ""

    @property
    def ok(self) -> bool:
        """Did the command succeed?"""
        return self.status == 0

    @property
    def text(self) -> str:
        """Its output as one line for people: bounded, and without control characters."""
        return plain(self.output.decode("utf-8", "replace"))

    @property
    def problem(self) -> str:
        """Why it failed, in its own words."""
        return plain(self.error) or self.text or f"exit status {self.status}"


MISSING = Answer(127, b"", "not there")


def plain(text: str, most: int = 300) -> str:
    """`text` as one printable line.

    >>> plain("a\\tb\\x1b[0m\\n c")
    'a b?[0m c'
    """
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:most]


def script(body: str, mark: str) -> str:
    """A whole script: what parts need, the body, and the end mark."""
    return f"MARK={mark}; {SET_PATH}\n{PART}{body}printf '\\n%s over\\n' \"$MARK\"\n"


def new_mark() -> str:
    """A word that nothing else prints."""
    return f"HPC-BRIDGE-SETUP-{secrets.token_hex(8)}"


async def ask(transport: Transport, body: str, *args: str, deadline: float = 90) -> Mapping[str, Answer]:
    """Run a script with arguments `$1`…; its parts by name. Raises `TransportError`, also when it did not end."""
    mark = new_mark()
    over = f"\n{mark} over\n".encode()
    try:
        async with asyncio.timeout(deadline):
            stream = await transport.open(["/bin/sh", "-c", script(body, mark), "hpc-bridge", *args])
            said = bytearray()
            try:
                while data := await stream.read(1 << 16):
                    said += data
                    if len(said) > _MOST:
                        raise TransportError("the login node answered with more than can be right")
                    if over in said:  # a login shell may say more after it
                        break
            finally:
                await stream.aclose()
    except TimeoutError as error:
        raise TransportError(f"no whole answer within {deadline:g} s") from error
    if over not in said:
        told = plain((bytes(said[-2000:]).decode("utf-8", "replace") + stream.diagnostics)[-300:])
        raise TransportError(f"no shell answered on the login node{': ' + told if told else ''}")
    return parts(bytes(said), mark)


def parts(said: bytes, mark: str) -> dict[str, Answer]:
    """The parts in what a script printed, by name; of two with one name the last."""
    word = re.escape(mark.encode())
    pattern = rb"\n%b begin (\S+)\n(.*?)\n%b end (\d+)\n(.*?)\n%b done\n" % (word, word, word)
    return {
        name.decode("ascii", "replace"): Answer(int(status), output, error.decode("utf-8", "replace"))
        for name, output, status, error in re.findall(pattern, said, re.DOTALL)
    }
