"""Who else could change what lies in the spool: looked at before anything there is believed or run.

The helper itself is a file of the spool, and so is each pod's whole life. Whoever can write into one of these
directories, or replace one of them by another, acts as the account. The install script asks the same in shell
(transport/install.py).
"""

import grp
import os
import pwd
import stat
from typing import Iterable

from .helper_errors import OpError


def check_owner(root: str, inner: Iterable[str]) -> None:
    """Raise OpError(permanent) unless the spool `root` and the directories `inner` in it are ours alone.

    Every directory above must keep others from replacing what is in it: not writable for them, or with the sticky bit
    and then made by us or by root.
    """
    me = os.getuid()
    for path in [root] + list(inner):
        status = os.stat(path)
        if status.st_uid != me:
            raise _refused(path, "belongs to user {}, not to this account".format(status.st_uid))
        if _open_to_others(status):
            raise _refused(path, "can be written by others (mode {:04o}): chmod go-w".format(status.st_mode & 0o7777))
    for path in {os.path.abspath(root), os.path.realpath(root)}:
        while path != "/":
            above = os.path.dirname(path)
            status = os.stat(above)
            if _open_to_others(status):
                if not status.st_mode & stat.S_ISVTX:
                    text = "{} can be written by others, who could replace it: chmod +t, or another spool"
                    raise _refused(root, text.format(above))
                if os.lstat(path).st_uid not in (0, me):
                    raise _refused(root, "{} was made by another user".format(path))
            path = above


def _open_to_others(status: os.stat_result) -> bool:
    """Whether anybody but its owner may write there. A group of its user alone, named as he is, is nobody else."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _own_group(status.st_gid)


def _own_group(gid: int) -> bool:
    try:
        group = grp.getgrgid(gid)
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == name and not set(group.gr_mem) - {name}


def _refused(path: str, why: str) -> OpError:
    return OpError("permanent", "the spool is not safe: {}: {}".format(path, why))
