"""Opens what other processes of the account may have put in the way, in the pod directory and below volumes.

Nothing here follows a link that leads out, waits for a pipe, or reads more than it is told to. A path below an allowed
directory is walked component by component with descriptors, so that a directory that is exchanged for a link meanwhile
leads nowhere: what was opened is what is used. Links that stay inside the directory are followed, since people have
such. Errors are OSError; `Outside` is a path that leaves its directory.
"""

import errno
import os
import stat
from typing import FrozenSet, List, Optional, Sequence, Tuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = 40  # as many as the kernel follows
_DEEPEST = 4096  # directories above another one

Identity = Tuple[int, int]


class Outside(OSError):
    """The path leads out of the directory that it must stay in."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EXDEV, "leads out", path)


def read_bounded(directory: str, path: str, limit: int) -> bytes:
    """The content of the ordinary file `path` below `directory`; no part of `path` may be a link.

    The folder is opened first: an NFS client then asks the server anew instead of remembering that the file was
    missing. OSError (EFBIG) when it is larger than `limit` bytes.
    """
    folder = open_folder(directory, *path.split("/")[:-1])
    try:
        descriptor = os.open(path.split("/")[-1], _READ, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file", path)
        content = b"" if status.st_size > limit else file.read(limit + 1)
        if status.st_size > limit or len(content) > limit:
            raise OSError(errno.EFBIG, "larger than %d bytes" % limit, path)
        return content


def open_folder(directory: str, *names: str) -> int:
    """A descriptor of `directory`, or of a folder below it; none of them may be a link."""
    folder = os.open(directory, _FOLDER)
    for name in names:
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def replace(folder: int, name: str, content: bytes) -> None:
    """Write the file `name` of an open folder so that readers see the old content or the new one, and durably."""
    temporary = ".%s.podrun" % name.lstrip(".")
    try:
        os.unlink(temporary, dir_fd=folder)  # whatever it is
    except FileNotFoundError:
        pass
    descriptor = os.open(temporary, _NEW, 0o600, dir_fd=folder)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def parts_of(path: str) -> List[str]:
    """The components of a path, without those that say nothing."""
    return [part for part in path.split("/") if part not in ("", ".")]


def walk(root: int, names: Optional[Sequence[str]], path: str, make: str = "", mode: Optional[int] = None) -> List[int]:
    """Open `path` below the directory `root`: path descriptors from `root` itself to the end, all the caller's.

    `names` are the absolute paths of `root`: an absolute link to something below one of them stays inside; None: no
    link at all is followed. `make` says what is made of what is missing: `directory`: directories; `file`: the last
    component, as an empty file; `folders+file`: the directories above it too. `mode`: of new directories (None: the
    umask's).
    """
    chain = [os.open(".", _PATH | os.O_DIRECTORY, dir_fd=root)]
    todo = parts_of(path)[::-1]
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":
                if len(chain) == 1:
                    raise Outside(path)
                os.close(chain.pop())
                continue
            child = _child(chain[-1], part, _kind(make, bool(todo)), mode)
            chain.append(child)
            if not stat.S_ISLNK(os.fstat(child).st_mode):
                continue
            if names is None:
                raise OSError(errno.ELOOP, "a symbolic link is in the way", part)
            target = os.readlink("", dir_fd=child)
            os.close(chain.pop())
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                target = _below(target, names, path)
                while len(chain) > 1:
                    os.close(chain.pop())
            todo += parts_of(target)[::-1]
        return chain
    except BaseException:
        close(chain)
        raise


def _kind(make: str, folder: bool) -> str:
    """What to make of one missing component; `folder`: more come below it."""
    if folder:
        return "directory" if make in ("directory", "folders+file") else ""
    return "file" if make == "folders+file" else make


def _child(parent: int, name: str, make: str, mode: Optional[int]) -> int:
    try:
        return _open_any(parent, name)
    except FileNotFoundError:
        if not make:
            raise
    try:
        if make == "file":
            os.close(os.open(name, _NEW, 0o644, dir_fd=parent))
        else:
            os.mkdir(name, 0o755, dir_fd=parent)
            if mode is not None:
                _set_mode(parent, name, mode)
    except FileExistsError:
        pass
    return _open_any(parent, name)


def _open_any(parent: int, name: str) -> int:
    """A path descriptor of whatever `name` is, a link itself too; asking for a directory first mounts an automount."""
    try:
        return os.open(name, _PATH | os.O_DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    return os.open(name, _PATH, dir_fd=parent)


def _set_mode(parent: int, name: str, mode: int) -> None:
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        os.fchmod(descriptor, mode | (os.fstat(descriptor).st_mode & 0o7000))
    finally:
        os.close(descriptor)


def _below(target: str, names: Sequence[str], path: str) -> str:
    """An absolute link's target relative to the directory with these `names`. Raises Outside."""
    for place in (target, os.path.realpath(target)):  # the second may be a lie by then; the walk goes on inside anyway
        for name in names:
            prefix = name.rstrip("/") + "/"
            if (place.rstrip("/") + "/").startswith(prefix):
                return place[len(prefix) :]
    raise Outside(path)


def close(descriptors: Sequence[int]) -> None:
    """Close them all."""
    for descriptor in descriptors:
        os.close(descriptor)


def identity(descriptor: int) -> Identity:
    """What tells one file or directory from all others."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def above(descriptor: int) -> FrozenSet[Identity]:
    """A directory and all that it lies in."""
    found = {identity(descriptor)}
    folder = os.open(".", _PATH | os.O_DIRECTORY, dir_fd=descriptor)
    try:
        for _ in range(_DEEPEST):
            parent = os.open("..", _PATH | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = parent
            if identity(folder) in found:
                return frozenset(found)
            found.add(identity(folder))
    finally:
        os.close(folder)
    raise OSError(errno.ENAMETOOLONG, "too deep")


def path_of(descriptor: int) -> str:
    """Where the kernel says that it is now: a path without links."""
    return os.readlink("/proc/self/fd/%d" % descriptor)


def remove_tree(path: str) -> None:
    """Remove a file or a whole directory, however deep, following no link; what cannot be removed stays.

    Not shutil.rmtree, which recurses: a container can make more levels than Python's stack has.
    """
    name = os.path.basename(path)
    try:
        parent = os.open(os.path.dirname(path), _FOLDER)
    except OSError:
        return
    try:
        folder = _enter(parent, name)
        if folder is None:
            _unlink(parent, name)
            return
        _empty(folder)
        os.rmdir(name, dir_fd=parent)
    except OSError:
        pass
    finally:
        os.close(parent)


def _empty(folder: int) -> None:
    """Remove all that is in an open directory, with one descriptor at a time; closes it."""
    waiting = [_plain_removed(folder)]
    names: List[str] = []
    homes = [identity(folder)]
    while True:
        if waiting[-1]:
            name = waiting[-1].pop()
            inner = _enter(folder, name)
            if inner is not None:
                os.close(folder)
                folder = inner
                names.append(name)
                homes.append(identity(folder))
                waiting.append(_plain_removed(folder))
            continue
        waiting.pop()
        homes.pop()
        if not homes:
            os.close(folder)
            return
        above_it = os.open("..", _FOLDER, dir_fd=folder)
        os.close(folder)
        folder = above_it
        if identity(folder) != homes[-1]:
            os.close(folder)
            return  # somebody moved it while we were in it
        try:
            os.rmdir(names.pop(), dir_fd=folder)
        except OSError:
            pass


def _enter(parent: int, name: str) -> Optional[int]:
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        return _opened_up(parent, name)
    except OSError:
        return None
    try:
        if stat.S_IMODE(os.fstat(folder).st_mode) & 0o700 != 0o700:
            os.fchmod(folder, 0o700)
    except OSError:
        pass
    return folder


def _opened_up(parent: int, name: str) -> Optional[int]:
    """A directory that its owner made unreadable."""
    try:
        held = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=parent)
        try:
            os.chmod("/proc/self/fd/%d" % held, 0o700)
            return os.open("/proc/self/fd/%d" % held, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(held)
    except OSError:
        return None


def _plain_removed(folder: int) -> List[str]:
    """Remove what is no directory; the names of the directories."""
    return [name for name in os.listdir(folder) if not _unlink(folder, name)]


def _unlink(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
        return True
    except OSError:
        return False
