"""The processes of a session, from /proc: whom to signal, and what they use."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass

TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Usage:
    """CPU seconds, and bytes of memory."""

    cput: float = 0.0
    mem: int = 0
    vmem: int = 0


def sessions() -> dict[int, list[tuple[int, Usage]]]:
    """All living processes by session id; zombies are left out."""
    found: dict[int, list[tuple[int, Usage]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        fields = text[text.rindex(b")") + 2 :].split()  # the command's name may hold blanks and parentheses
        if fields[0] in (b"Z", b"X"):
            continue
        usage = Usage((int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE, int(fields[20]))
        found.setdefault(int(fields[3]), []).append((int(name), usage))
    return found


def signal_sessions(sids: set[int], number: int) -> int:
    """Signal every process of these sessions, as PBS does (not only the groups). Returns how many there were."""
    found = sessions()
    members = [pid for sid in sids for pid, _ in found.get(sid, [])]
    for pid in members:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return len(members)


def kill_sessions(sids: set[int]) -> None:
    """SIGKILL every process of these sessions, those that a fork may add meanwhile too."""
    for _ in range(5):
        if not signal_sessions(sids, signal.SIGKILL):
            return


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent has ended, so that none is left a zombie where init is lazy."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_all(seconds: float) -> None:
    """Wait for the children that are left, killed ones all, but not longer than that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            time.sleep(0.01)
