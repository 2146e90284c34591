"""Files below a directory that the pod's own processes may write to: nothing here follows a symbolic link.

Every operation is relative to an open directory, so that a link put in the way later leads nowhere either. Errors are
OSError. The file system is shared and may be NFS: files are replaced by rename, directories opened before their files.
"""

import errno
import os
import shutil
import stat
from contextlib import contextmanager
from typing import Iterator, List, Optional

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(path: str) -> List[str]:
    """The names of a relative path. Raises OSError(EINVAL) for anything that could lead out of its directory."""
    parts = path.split("/")
    if len(path) > 4000 or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise OSError(errno.EINVAL, "not a path below the pod directory", path)
    return parts


@contextmanager
def directory(name: str, parent: Optional[int] = None) -> Iterator[int]:
    """An open directory; OSError (ELOOP, ENOTDIR) when `name` is a link or a file."""
    fd = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def below(root: int, parts: List[str], create: bool = False) -> Iterator[int]:
    """The directory `parts` below the open directory `root`; missing ones are made with mode 0700 when `create`."""
    fd = os.dup(root)
    try:
        for part in parts:
            if create:
                make_directory(part, fd)
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def make_directory(name: str, parent: int) -> bool:
    """True when it was made, False when something of that name exists."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        return True
    except FileExistsError:
        return False


def exists(name: str, parent: int) -> bool:
    """Whether there is an entry of that name, whatever it is."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False


def open_regular(name: str, parent: int) -> int:
    """An ordinary file opened for reading. Links, pipes and devices raise OSError and are never waited for."""
    fd = os.open(name, _READ, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file", name)
    except OSError:
        os.close(fd)
        raise
    return fd


def read_bounded(name: str, parent: int, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes; OSError(EFBIG) when it is larger."""
    fd = open_regular(name, parent)
    try:
        data = b""
        while len(data) <= limit:
            block = os.read(fd, limit + 1 - len(data))
            if not block:
                return data
            data += block
        raise OSError(errno.EFBIG, "larger than {} bytes".format(limit), name)
    finally:
        os.close(fd)


def replace(name: str, parent: int, content: bytes, mode: int = 0o600, sync: bool = False) -> None:
    """Write a file so that readers see the old content or the new one. `sync`: it survives a crash of the host."""
    temporary = ".{}.{}".format(name[:200], os.urandom(6).hex())
    fd = os.open(temporary, _CREATE, 0o600, dir_fd=parent)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        os.unlink(temporary, dir_fd=parent)
        raise
    if sync:
        _sync_directory(parent)


def _sync_directory(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise


def remove_tree(name: str, parent: int) -> None:
    """Remove a file, link or whole directory, also one whose directories their owner made unwritable."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        return
    path = "/proc/self/fd/{}/{}".format(parent, name)
    shutil.rmtree(path, ignore_errors=True)
    if exists(name, parent):
        _open_up(path)
        shutil.rmtree(path)


def _open_up(path: str) -> None:
    """Make every directory below `path` writable again; os.walk does not follow links."""
    os.chmod(path, 0o700)
    for root, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(root, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
