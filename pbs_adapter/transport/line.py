"""One command for a login shell that may be any: sh, csh, tcsh, fish.

What SSH is given to run is read by the account's login shell, and these agree on very little: csh takes no line break
inside quotes and replaces `!` there, fish has its own escapes. So whatever is not plain is packed into base64, and the
login shell sees one line with one pair of quotes, in which nothing means anything to it.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence

from pbs_adapter.transport.install import SET_PATH

_PLAIN = re.compile(r"[A-Za-z0-9_./:,@+-]+", re.ASCII)
_WORD = 500  # some csh take no word above 1,024 characters
_UNPACK = f'{SET_PATH}; eval "$(printf %s "$@" | base64 -d)"'


def command_line(argv: Sequence[str]) -> str:
    """A line that runs `argv` in place of the shell that reads it, whichever shell that is.

    >>> command_line(["/bin/cat", "file"])
    'exec /bin/cat file'
    """
    if all(_PLAIN.fullmatch(word) for word in argv):
        return " ".join(["exec", *argv])
    packed = base64.b64encode(("exec " + shlex.join(argv)).encode("utf-8", "surrogateescape")).decode("ascii")
    words = [packed[at : at + _WORD] for at in range(0, len(packed), _WORD)]
    return " ".join(["exec /bin/sh -c", f"'{_UNPACK}'", "sh", *words])
