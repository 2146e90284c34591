"""Whether the kernel killed something of this job for want of memory, as far as an ordinary user can tell.

The counter `oom_kill` of podrun's own memory cgroup: memory.events (version 2) or memory.oom_control (version 1, Linux
4.13 or newer). With PBS's cgroup hook that cgroup is the job's; without it, MoM's service shares it with other jobs, so
a count alone proves nothing: the caller asks for a container that died of a SIGKILL which podrun did not send.
"""

import os
from typing import List, Optional

# Where cgroups and mounts of the running process are told; another folder in tests.
PROC = "/proc/self"


def kills(proc: str = PROC) -> Optional[int]:
    """How many processes of podrun's cgroup the kernel has killed so far; None where nothing tells."""
    for path in _files(proc):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                words = [line.split() for line in file]
        except OSError:
            continue
        for pair in words:
            if len(pair) == 2 and pair[0] == "oom_kill" and pair[1].isdigit():
                return int(pair[1])
    return None


def _files(proc: str) -> List[str]:
    """Candidates: for each mounted memory hierarchy the file of our cgroup, else of its root (seen in a container)."""
    own = {}
    for line in _lines(os.path.join(proc, "cgroup")):
        parts = line.split(":", 2)
        if len(parts) == 3 and (parts[1] == "" or "memory" in parts[1].split(",")):
            own["cgroup" if parts[1] else "cgroup2"] = parts[2]
    found = []
    for line in _lines(os.path.join(proc, "mountinfo")):
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) < 5 or not kind or kind[0] not in own:
            continue
        if kind[0] == "cgroup" and "memory" not in kind[-1].split(","):
            continue
        name = "memory.oom_control" if kind[0] == "cgroup" else "memory.events"
        root, mount, path = place[3].rstrip("/"), place[4], own[kind[0]]
        below = path[len(root) :] if path.startswith(root + "/") else ""
        found += [os.path.join(mount, below.lstrip("/"), name), os.path.join(mount, name)]
    return found


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
