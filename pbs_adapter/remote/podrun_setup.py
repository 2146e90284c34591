"""The cluster's `setup` lines (`module load …`), run once in a shell; what they change goes to every container.

The lines run in bash (else sh), not as a login shell: profiles may print, exit or take seconds. Only where there is no
`module` command, the files that define it are read first. The first line that fails fails the pod. The environment is
taken with its NUL separators, so that values with newlines survive.
"""

import os
import socket
import subprocess
import tempfile
import time
from typing import Callable, Dict, Mapping, Sequence

from .podrun_runtime import StartFailed

TIMEOUT = 300.0
_PROLOGUE = """exec 3>&1 1>&2
command -v module >/dev/null 2>&1 || for f in /etc/profile.d/*modules*.sh /etc/profile.d/*lmod*.sh; do
  [ -r "$f" ] && . "$f"
done
set -e
"""
_EPILOGUE = "\nexec cat /proc/self/environ >&3 3>&-\n"
_SHELLS_OWN = (b"_", b"SHLVL", b"PWD", b"OLDPWD")


def changes(before: Mapping[bytes, bytes], dump: bytes) -> Dict[bytes, bytes]:
    """Variables of the NUL-separated `dump` that `before` lacks or has otherwise; exported functions are left out."""
    found = {}
    for entry in dump.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name and name not in _SHELLS_OWN and not name.startswith(b"BASH_FUNC_"):
            if before.get(name) != value:
                found[name] = value
    return found


def run(lines: Sequence[str], environ: Mapping[bytes, bytes], interrupted: Callable[[], bool]) -> Dict[bytes, bytes]:
    """Run `lines` from `environ`; return what changed. Raises `StartFailed`; {} at once when `interrupted()`."""
    if not lines:
        return {}
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    script = _PROLOGUE + "\n".join(lines) + _EPILOGUE
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [shell, "-c", script], stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=dict(environ)
        )
        deadline = time.monotonic() + TIMEOUT
        while process.poll() is None:
            if interrupted() or time.monotonic() > deadline:
                process.kill()
                process.wait()
                if interrupted():
                    return {}
                raise StartFailed("the cluster's setup lines did not end within %d s" % TIMEOUT)
            time.sleep(0.02)
        output.seek(0)
        errors.seek(0, os.SEEK_END)
        errors.seek(max(0, errors.tell() - 1024))
        if process.returncode != 0:
            text = errors.read().decode("utf-8", "replace").strip()
            raise StartFailed("the cluster's setup lines ended with %d: %s" % (process.returncode, text))
        return changes(environ, output.read())


def host_address() -> str:
    """The compute node's address as its own name resolves, for podIP; empty when that is loopback or nothing."""
    try:
        address = socket.gethostbyname(os.uname()[1])
    except OSError:
        return ""
    return "" if address.startswith("127.") else address
