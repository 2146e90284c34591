"""Directories that the settings must not show to pods, and where the spool must not be. Pure.

The spool holds every pod's secrets and status, and the programs that run on the login node; the account's home has its
keys. A hostPath or an image directory that reaches either makes each pod of the account the master of all others. What
the settings alone tell is refused when they are read; where links and the real home lead, `doctor` asks the cluster.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from pbs_adapter.remote.podrun_root import SHOWN, SYSTEM

# Where sites keep home directories, as far as a path can tell.
HOMES = ("/home", "/users", "/Users", "/u", "/export/home", "/nfs/home", "/global/homes")
LOCAL_WARNING = (
    "type: local runs the agent as the account itself: every job outside a container, and whoever breaks out of one, "
    "can read the agent's memory and kubeconfig, and so do in Kubernetes whatever the agent may"
)
_SEEN = (*SHOWN, *SYSTEM, "/sys", "/proc", "/dev")  # what every container sees of the compute node


def normal(path: str) -> str:
    """The path without double slashes, `.` and `..`.

    >>> normal("//a//b/../c/")
    '/a/c'
    """
    return posixpath.normpath("/" + path.lstrip("/"))


def inside(path: str, directory: str) -> bool:
    """Whether a path is the directory or lies in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def homes(users: Iterable[str]) -> tuple[str, ...]:
    """Where the home directories of these users are likely to be."""
    return (*(f"{top}/{user}" for user in users for top in HOMES if user), "/root")


def spools(spool: str, users: Iterable[str]) -> tuple[str, ...]:
    """Where the spool may be: a path of its own, or below the likely home directories."""
    if spool.startswith("~/"):
        return tuple(normal(f"{home}/{spool[2:]}") for home in homes(users))
    return (normal(spool),)


def shown_problem(path: str, spool: Iterable[str], home: Iterable[str]) -> str | None:
    """Why pods must not be shown this directory; None: they may be."""
    wanted = normal(path)
    if wanted == "/":
        return "would show pods everything; name the directories that they need"
    if inside(wanted, "/proc"):
        return "would show pods the memory and files of every process of the account; leave it out"
    for each in spool:
        if inside(each, wanted) or inside(wanted, each):
            return f"reaches the spool ({each}), which has the secrets of all pods; name a directory beside it"
    if any(inside(each, wanted) for each in home) or wanted in HOMES:
        return "holds home directories, with the account's own keys; name a directory within or elsewhere"
    return None


def spool_problem(path: str) -> str | None:
    """Why the spool must not be there; None: it may be."""
    top = next((each for each in _SEEN if inside(normal(path), each)), None)
    if top is None or path.startswith("~/"):
        return None
    return f"is below {top}, which every container sees; name a directory that only the account sees"


def problems(
    spool: str, compute_spool: str | None, shown: Iterable[tuple[str, str]], users: Iterable[str]
) -> Iterator[str]:
    """What is wrong with a cluster's settings, as `field: text`. shown: (field, directory) that pods may see."""
    for field, path in (("spool", spool), ("computeSpool", compute_spool)):
        if path is not None and (wrong := spool_problem(path)):
            yield f"{field}: {path} {wrong}"
    users = list(users)
    places = [place for path in (spool, compute_spool) if path is not None for place in spools(path, users)]
    for field, path in shown:
        if wrong := shown_problem(path, places, homes(users)):
            yield f"{field}: {path} {wrong}"
