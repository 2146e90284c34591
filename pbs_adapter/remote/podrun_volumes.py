"""Where a mount's content really is, found without following a container's symbolic links out of the volume.

Containers write into volumes, so everything below a volume's root is untrusted: a subPath is resolved, checked to be
inside, and opened component by component without following links, so that a container that swaps a directory for a link
meanwhile gains nothing. hostPath types are checked as the kubelet does.
"""

import errno
import os
import stat
from typing import Callable, Dict, Sequence

from .podrun_runtime import Places, StartFailed
from .podrun_spec import Container, Mount

_TYPES: Dict[str, Callable[[int], bool]] = {
    "Directory": stat.S_ISDIR,
    "DirectoryOrCreate": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "FileOrCreate": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


def root_of(directory: str, mount: Mount) -> str:
    """The volume's own path; a hostPath is created or checked as its type says."""
    if not mount.absolute:
        root = os.path.join(directory, mount.source)
        if not os.path.lexists(root):
            raise StartFailed("volume %s of mount %s does not exist" % (mount.source, mount.path))
        return root
    try:
        if mount.host_type == "DirectoryOrCreate":
            os.makedirs(mount.source, mode=0o755, exist_ok=True)
        elif mount.host_type == "FileOrCreate":
            os.close(os.open(mount.source, os.O_WRONLY | os.O_CREAT, 0o644))
        mode = os.stat(mount.source).st_mode
    except OSError as error:
        raise StartFailed("hostPath %s: %s" % (mount.source, error.strerror)) from error
    known = _TYPES.get(mount.host_type)
    if mount.host_type and (known is None or not known(mode)):
        raise StartFailed("hostPath %s is not of type %s" % (mount.source, mount.host_type))
    return mount.source


def sub_path(root: str, mount: Mount) -> str:
    """The real path of `mount.sub_path` below `root`; a missing folder of a writable volume is created."""
    real = os.path.realpath(root)
    target = os.path.realpath(os.path.join(real, mount.sub_path or ""))
    if target != real and not target.startswith(real.rstrip("/") + "/"):
        raise StartFailed("subPath %s of mount %s leads out of its volume" % (mount.sub_path, mount.path))
    if not os.path.exists(target):
        if mount.read_only or mount.source.startswith("secrets/"):
            raise StartFailed("subPath %s of mount %s does not exist" % (mount.sub_path, mount.path))
        make_inside(real, os.path.relpath(target, real), directory=True)
    return target


def make_inside(root: str, relative: str, directory: bool) -> None:
    """Create a folder or an empty file below `root`, following no link on the way."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for index, part in enumerate(parts):
            if not directory and index == len(parts) - 1:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
                os.close(os.open(part, flags, 0o666, dir_fd=parent))
                break
            try:
                os.mkdir(part, 0o755, dir_fd=parent)
            except FileExistsError:
                pass
            child = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = child
    except OSError as error:
        raise StartFailed("%s in volume %s: %s" % (relative, os.path.basename(root), error.strerror)) from error
    finally:
        os.close(parent)


def pin(root: str, target: str) -> int:
    """Open `target`, a real path at or below `root`, without following any link; a path descriptor."""
    real = os.path.realpath(root)
    descriptor = os.open(real, os.O_PATH | os.O_NOFOLLOW)
    try:
        for part in os.path.relpath(target, real).split("/"):
            if part == ".":
                continue
            child = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = child
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ELOOP, "became a link while it was being mounted")
        return descriptor
    except OSError as error:
        os.close(descriptor)
        raise StartFailed("%s: %s" % (target, error.strerror)) from error


def message_path(container: Container, places: Places) -> str:
    """Prepare the empty file that the container finds at its terminationMessagePath; "": it has none."""
    path = os.path.normpath(container.message_path) if container.message_path else ""
    if not path.startswith("/") or path == "/" or any(mount.path == path for mount in container.mounts):
        return ""
    with open(places.message, "wb"):
        pass
    return path


def mount_point(mount: Mount, source: str, others: Sequence[Mount], places: Places) -> None:
    """A mount inside another volume needs its mount point there, made without following the container's links.

    `others` are all mounts of the container, outer ones before inner ones.
    """
    outer = [other for other in others if mount.path.startswith(other.path + "/")]
    if not outer or outer[-1].absolute:
        return
    volume = root_of(places.directory, outer[-1])
    parent = sub_path(volume, outer[-1]) if outer[-1].sub_path else volume
    relative = mount.path[len(outer[-1].path) + 1 :]
    if not os.path.lexists(os.path.join(parent, relative)):
        make_inside(parent, relative, directory=os.path.isdir(source))
    elif os.path.realpath(os.path.join(parent, relative)) != os.path.join(os.path.realpath(parent), relative):
        raise StartFailed("mount %s lies behind a symbolic link in volume %s" % (mount.path, outer[-1].source))
