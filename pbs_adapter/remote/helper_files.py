"""Files below a directory that the pod's own processes may write to: nothing here follows a symbolic link.

Every operation is relative to an open directory, so that a link put in the way later leads nowhere either. Errors are
OSError. The file system is shared and may be NFS: files are replaced by rename, directories opened before their files.
"""

import errno
import itertools
import os
import stat
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, Optional, Tuple

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BATCH = 1000  # entries of a directory in memory at once, and most that may resist before it is given up
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


def open_regular(name: str, parent: int, limit: Optional[int] = None) -> int:
    """An ordinary file opened for reading: the one way to open what lies in the spool, pods' files and our own alike.

    Links, pipes and devices raise OSError and are never waited for; OSError(EFBIG) when it is larger than `limit`.
    """
    fd = os.open(name, _READ, dir_fd=parent)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file", name)
        if limit is not None and status.st_size > limit:
            raise _too_large(name, limit)
    except OSError:
        os.close(fd)
        raise
    return fd


def read_bounded(name: str, parent: int, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes; OSError(EFBIG) when it is larger, or grows meanwhile."""
    fd = open_regular(name, parent, limit)
    try:
        data = b""
        while len(data) <= limit:
            block = os.read(fd, limit + 1 - len(data))
            if not block:
                return data
            data += block
        raise _too_large(name, limit)
    finally:
        os.close(fd)


def _too_large(name: str, limit: int) -> OSError:
    return OSError(errno.EFBIG, "larger than {} bytes".format(limit), name)


def open_log(name: str, parent: int, limit: int) -> int:
    """A file opened for appending, made if need be. What is over `limit`, or no file of ours, is moved to `name`.1."""
    try:
        os.close(open_regular(name, parent, limit))
    except FileNotFoundError:
        pass
    except OSError:
        os.rename(name, _free(name + ".1", parent), src_dir_fd=parent, dst_dir_fd=parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not an ordinary file", name)
    return fd


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
        _put(temporary, name, parent)
    except OSError:
        os.unlink(temporary, dir_fd=parent)
        raise
    if sync:
        _sync_directory(parent)


def _put(temporary: str, name: str, parent: int) -> None:
    """Rename, also over a directory that somebody made in the file's place: it is moved aside."""
    try:
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except IsADirectoryError:
        os.rename(name, _aside(name), src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


def _aside(name: str) -> str:
    return ".{}.{}".format(name[:200], os.urandom(6).hex())


def _free(name: str, parent: int) -> str:
    """`name`, or another one where a directory has it: over that nothing can be renamed."""
    try:
        taken = stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        taken = False
    return _aside(name) if taken else name


def _sync_directory(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise


@contextmanager
def opened_up(name: str, parent: int) -> Iterator[int]:
    """`directory`, also where its owner, who is us, took the right to read or write it away: it is given back."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(path).st_mode & 0o700 != 0o700:
            try:
                os.chmod("/proc/self/fd/{}".format(path), 0o700)
            except PermissionError:
                pass  # it is not ours; perhaps it can be read all the same
        fd = os.open(".", _DIRECTORY, dir_fd=path)
    finally:
        os.close(path)
    try:
        yield fd
    finally:
        os.close(fd)


def _entries(fd: int, most: int) -> "List[Tuple[str, bool]]":
    """(name, is it a directory) of up to `most` entries of an open directory: it may have millions."""
    with os.scandir("/proc/self/fd/{}".format(fd)) as found:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in itertools.islice(found, most)]


def names(fd: int) -> Iterator[str]:
    """The names in an open directory, one after the other: it may have millions."""
    with os.scandir("/proc/self/fd/{}".format(fd)) as found:
        for entry in found:
            yield entry.name


def remove_tree(name: str, parent: int) -> None:
    """Remove whatever has that name: a file, a link, or a directory of any depth, width and mode.

    Directories below are moved up into the top one before they are emptied, so that the depth costs neither stack nor
    descriptors. What cannot be removed does not keep the rest; the first OSError is raised at the end.
    """
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        return
    with opened_up(name, parent) as top:
        _drain(top, lambda inner, is_dir: _dissolve(inner, is_dir, top))
    os.rmdir(name, dir_fd=parent)


def _drain(fd: int, act: Callable[[str, bool], None]) -> None:
    """Let `act` remove each entry, a batch at a time, also those that come meanwhile."""
    stuck: Dict[str, OSError] = {}
    while len(stuck) < _BATCH:
        batch = [entry for entry in _entries(fd, _BATCH + len(stuck)) if entry[0] not in stuck]
        if not batch:
            break
        for name, is_dir in batch:
            try:
                act(name, is_dir)
            except FileNotFoundError:
                pass
            except OSError as error:
                stuck[name] = error
    if stuck:
        raise next(iter(stuck.values()))


def _dissolve(name: str, is_dir: bool, top: int) -> None:
    """Remove an entry of `top`; the directories in it become entries of `top` themselves."""
    if is_dir and not _rmdir(name, top):
        with opened_up(name, top) as fd:
            _drain(fd, lambda inner, deeper: _lift(inner, deeper, fd, top))
        os.rmdir(name, dir_fd=top)
    elif not is_dir:
        os.unlink(name, dir_fd=top)


def _lift(name: str, is_dir: bool, parent: int, top: int) -> None:
    if not is_dir:
        os.unlink(name, dir_fd=parent)
    elif not _rmdir(name, parent):
        aside = ".up-" + os.urandom(8).hex()
        try:
            os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=top)
        except PermissionError:
            with opened_up(name, parent):  # moving a directory elsewhere writes its `..`
                os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=top)


def _rmdir(name: str, parent: int) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
