"""Many jobs of one user at once, as a busy site has them, without as many qsubs."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace

from . import submit
from .errors import PbsError, UsageError
from .lifecycle import Lifecycle
from .submit import Caller

MOST = 100_000
DEFAULT = ("-h", "-N", "other", "-l", "select=1:ncpus=4:mem=8gb", "-l", "walltime=12:00:00")


def fill(life: Lifecycle, user: str, count: int, options: list[str], now: float) -> None:
    """Submit `count` equal jobs of `user`; options are qsub's, without any the jobs are held.

    Raises ValueError for a count that makes no sense, and for what qsub would refuse.
    """
    if not 0 < count <= MOST:
        raise ValueError(f"count must be from 1 to {MOST}")
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = os.geteuid()  # a user that exists in PBS only
    typed = [*(options or DEFAULT), "--", "/bin/sleep", "3600"]
    caller = Caller(user, uid, "/", {"HOME": "/", "LOGNAME": user, "PATH": "/usr/bin:/bin"}, False)
    complex_ = life.complex
    try:
        submission = submit.parse(typed, "")
        queue = submit.destination(submission, complex_.config)
        complex_.queue(queue)
        first = submit.build(submission, typed, "", caller, complex_.config, queue, complex_.next_seq, now)
    except (PbsError, UsageError) as error:
        raise ValueError(str(error)) from error
    for seq in range(complex_.next_seq, complex_.next_seq + count):
        job = replace(first, id=f"{seq}.{complex_.config.server}", seq=seq, rank=seq, attrs=dict(first.attrs))
        complex_.next_seq = seq + 1
        life.enqueue(job, "", now)
