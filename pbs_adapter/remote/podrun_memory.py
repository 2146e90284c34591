"""emptyDir volumes of medium Memory: folders of the compute node's tmpfs, shared by the pod's containers.

What is written there is memory of the job: the kernel charges it to the cgroup of the process that writes. The folder
above is the account's alone and has a random name. podrun holds a lock in it: what a podrun that was killed has left is
removed by its guard, or by the next podrun of the account on this node.
"""

import fcntl
import os
import tempfile
from typing import Iterable, Optional

from . import podrun_files as files
from .podrun_runtime import StartFailed

PLACE = "/dev/shm"
_LOCK = ".lock"
_TRIES = 5


class MemoryFolder:
    """Holds the lock while it exists. `path` has a folder for each volume."""

    def __init__(self, path: str, lock: int) -> None:
        self.path = path
        self._lock = lock

    def remove(self) -> None:
        files.remove_tree(self.path)
        os.close(self._lock)


def make(names: Iterable[str]) -> MemoryFolder:
    """A new folder with a folder, mode 0777, for each of `names`. Raises StartFailed."""
    tidy()
    try:
        if not _is_tmpfs():
            raise StartFailed("%s on %s is no tmpfs: no volume can be in memory" % (PLACE, os.uname()[1]))
        for _ in range(_TRIES):
            folder = _locked(tempfile.mkdtemp(prefix=_prefix(), dir=PLACE))
            if folder is not None:
                break
        else:
            raise StartFailed("no folder in %s on %s" % (PLACE, os.uname()[1]))
        for name in names:
            path = os.path.join(folder.path, name)
            os.mkdir(path, 0o700)
            os.chmod(path, 0o777)
    except OSError as error:
        raise StartFailed("volumes in memory: %s: %s" % (PLACE, error.strerror)) from error
    return folder


def tidy() -> None:
    """Remove what podruns of this account have left on this node: folders that nobody holds the lock of."""
    try:
        left = [name for name in os.listdir(PLACE) if name.startswith(_prefix())]
    except OSError:
        return
    for name in left:
        path = os.path.join(PLACE, name)
        try:
            folder = files.open_folder(path)
        except OSError:
            continue
        try:
            if os.fstat(folder).st_uid != os.getuid():
                continue
            lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                files.remove_tree(path)
            finally:
                os.close(lock)
        except OSError:
            continue  # it is held, or being made
        finally:
            os.close(folder)


def _locked(path: str) -> Optional[MemoryFolder]:
    """None when somebody tidied it away before it was locked."""
    lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(os.path.join(path, _LOCK))
        return MemoryFolder(path, lock)
    except OSError:
        os.close(lock)
        return None


def _prefix() -> str:
    return "hpc-bridge-%d-" % os.getuid()


def _is_tmpfs() -> bool:
    kind = b""
    with open("/proc/self/mounts", "rb") as file:
        for line in file:
            fields = line.split()
            if len(fields) > 2 and fields[1] == os.fsencode(PLACE):
                kind = fields[2]
    return kind == b"tmpfs"
