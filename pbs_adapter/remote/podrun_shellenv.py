"""Gives an apptainer container its exact environment, by a script that apptainer reads inside the container.

Apptainer's own ways change values: APPTAINERENV_* and --env-file pass through JSON, which turns bytes that are no UTF-8
into replacement characters, refuse HOME, append to LD_LIBRARY_PATH and, without --no-eval, execute `$()`. But the last
of /.singularity.d/env/*.sh has the last word; apptainer reads it with its built-in shell (the image needs none), and
`$'…'` with hexadecimal escapes is exact for every byte (measured with 1.4.5, all of 1 to 255).

The script first waits until podrun opens the gate, a named pipe, and holds the termination message's file open
meanwhile: /dev is private to the container and gone with its last process, so podrun takes hold of the file there.
"""

import re
from typing import Iterable, Mapping, Optional

FOLDER = "/.singularity.d/env"
SCRIPT = FOLDER + "/zz-hpc-bridge.sh"
GATE = FOLDER + "/zz-hpc-bridge.gate"
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*\Z")
# Read-only in apptainer's shell.
_FIXED = (b"UID", b"EUID", b"GID", b"APPTAINER_NAME", b"APPTAINER_CONTAINER", b"APPTAINER_INSTANCE")
_PLAIN = frozenset(b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 !"#%&()*+,-./:;<=>?@[]^_{|}~$`')


def impossible(names: Iterable[bytes]) -> Optional[bytes]:
    """The first of `names` that a variable in an apptainer container cannot have; None: all can."""
    return next((name for name in names if not _NAME.match(name) or name in _FIXED), None)


def quoted(value: bytes) -> bytes:
    r"""`value` as one word of shell.

    >>> quoted(b"it's $(id)\n\xff")
    b"$'it\\x27s $(id)\\x0a\\xff'"
    """
    return b"$'" + b"".join(b"%c" % byte if byte in _PLAIN else b"\\x%02x" % byte for byte in value) + b"'"


def script(env: Mapping[bytes, bytes], message: Optional[str]) -> bytes:
    """The script. `message`: the file below /dev to create and to hold open at the gate."""
    wait = b"until read -r REPLY < " + quoted(GATE.encode()) + b"; do :; done"  # the pipe's end is no leave to go on
    if message is not None:
        wait = b"{ " + wait + b"; } > " + quoted(message.encode("utf-8"))
    lines = [wait, b"unset REPLY"]
    lines += [b"export %s=%s" % (name, quoted(value)) for name, value in env.items()]
    return b"\n".join(lines) + b"\n"
