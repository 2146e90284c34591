"""Where a mount's content really is, as an open descriptor: found without leaving the directory that it must stay in.

Containers write into volumes and hostPaths, so everything below their roots is untrusted: a path is walked component
by component (podrun_files.walk), and what was found is held open, so that a container that swaps a directory for a link
meanwhile gains nothing. A hostPath stays below the directory of the settings that lets it in and out of the spool; a
subPath stays in its volume. hostPath types are checked as the kubelet does.
"""

import os
import stat
import sys
from typing import Callable, Dict, List, NamedTuple, Sequence

from . import podrun_files as files
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
_MAKES = {"DirectoryOrCreate": "directory", "FileOrCreate": "file"}
EMPTY_DIR_MODE = 0o777  # as a kubelet's; the folders above are the account's alone


class Pin(NamedTuple):
    """What a mount shows: `descriptor` is open on it, `path` is where it was then, free of links.

    `exposed`: other containers may exchange the path meanwhile, so it is no good without a look at the descriptor.
    `foreign`: a hostPath mounted read-only: nothing is made in it.
    """

    descriptor: int
    path: str
    target: str  # the place in the container
    exposed: bool
    foreign: bool = False

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(os.fstat(self.descriptor).st_mode)


class Bind(NamedTuple):
    """One mount of a container. `nested`: it lies in another volume, where other containers may exchange the way."""

    pin: Pin
    read_only: bool
    nested: bool


def pin(mount: Mount, places: Places) -> Pin:
    """Find what `mount` shows. The descriptor is the caller's. Raises StartFailed."""
    chain = _host_path(mount, places) if mount.absolute else _volume(mount, places)
    try:
        path = files.path_of(chain[-1])
        if mount.sub_path:
            chain += _sub_path(mount, chain[-1], path)
            path = files.path_of(chain[-1])
        exposed, foreign = mount.absolute or bool(mount.sub_path), mount.absolute and mount.read_only
        return Pin(chain.pop(), path, mount.path, exposed, foreign)
    finally:
        files.close(chain)


def open_up(directory: str, mounts: Sequence[Mount]) -> None:
    """Give emptyDir volumes the mode that a kubelet gives them; those that the bridge fills keep theirs."""
    for source in {mount.source for mount in mounts if not (mount.absolute or mount.in_memory)}:
        if source.startswith("secrets/"):
            continue
        try:
            folder = files.open_folder(directory, *source.split("/"))
        except OSError:
            continue  # its mount will say so
        try:
            if not any(name.startswith("..") for name in os.listdir(folder)):
                os.fchmod(folder, EMPTY_DIR_MODE)
        except OSError:
            pass  # a file system without modes
        finally:
            os.close(folder)


def _volume(mount: Mount, places: Places) -> List[int]:
    try:
        if mount.in_memory:
            return [files.open_folder(os.path.join(places.memory, os.path.basename(mount.source)))]
        return [files.open_folder(places.directory, *mount.source.split("/"))]
    except OSError as error:
        text = "volume %s of mount %s: %s"
        raise StartFailed(text % (mount.source, mount.path, error.strerror)) from error


def _host_path(mount: Mount, places: Places) -> List[int]:
    """All descriptors from the allowed directory to the hostPath."""
    try:
        root = os.open(mount.allowed, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # the admin's own links
        try:
            names = (mount.allowed, files.path_of(root))
            relative = os.path.relpath(mount.source, mount.allowed)
            chain = files.walk(root, names, relative, _MAKES.get(mount.host_type, ""))
        finally:
            os.close(root)
        try:
            _check_host_path(chain, mount, places)
        except BaseException:
            files.close(chain)
            raise
    except files.Outside as error:
        text = "hostPath %s leads out of %s by a symbolic link, and only that directory may be mounted"
        raise StartFailed(text % (mount.source, mount.allowed)) from error
    except OSError as error:
        raise StartFailed("hostPath %s: %s" % (mount.source, error.strerror)) from error
    return chain


def _check_host_path(chain: Sequence[int], mount: Mount, places: Places) -> None:
    around = files.above(chain[0]) | {files.identity(descriptor) for descriptor in chain}
    for path in spool(places.directory):
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if files.identity(folder) in around:
                raise StartFailed("hostPath %s lies in the spool of hpc-bridge" % mount.source)
            if files.identity(chain[-1]) in files.above(folder):
                raise StartFailed("hostPath %s holds the spool of hpc-bridge" % mount.source)
        finally:
            os.close(folder)
    mode = os.fstat(chain[-1]).st_mode
    if mount.host_type and not _TYPES[mount.host_type](mode):
        raise StartFailed("hostPath %s is not of type %s" % (mount.source, mount.host_type))


def spool(directory: str, program: str = "") -> List[str]:
    """The folders that no container may see: all of the spool, as far as it is known here.

    podrun itself lies in `<spool>/bin`, the pod directory below `<spool>`.
    """
    folder = os.path.dirname(os.path.abspath(program or sys.argv[0]))
    home = os.path.dirname(folder)
    known = os.path.basename(folder) == "bin" and home != "/"
    if known and os.path.realpath(directory).startswith(os.path.realpath(home) + "/"):
        return [home]
    return [os.path.dirname(os.path.dirname(directory))]


def _sub_path(mount: Mount, root: int, path: str) -> List[int]:
    """Descriptors from the volume's root to the subPath; a missing folder of a writable volume is made."""
    make = "" if mount.read_only or mount.source.startswith("secrets/") else "directory"
    mode = stat.S_IMODE(os.fstat(root).st_mode) & 0o777
    try:
        return files.walk(root, (path,), mount.sub_path or "", make, None if mount.absolute else mode)
    except files.Outside as error:
        text = "subPath %s of mount %s leads out of its volume"
        raise StartFailed(text % (mount.sub_path, mount.path)) from error
    except FileNotFoundError as error:
        raise StartFailed("subPath %s of mount %s does not exist" % (mount.sub_path, mount.path)) from error
    except OSError as error:
        text = "subPath %s of mount %s: %s"
        raise StartFailed(text % (mount.sub_path, mount.path, error.strerror)) from error


def message_path(container: Container, places: Places) -> str:
    """Prepare the empty file that the container finds at its terminationMessagePath; "": it has none."""
    path = os.path.normpath(container.message_path) if container.message_path else ""
    if not path.startswith("/") or path == "/" or any(mount.path == path for mount in container.mounts):
        return ""
    with open(places.message, "wb"):
        pass
    return path


def binds(container: Container, places: Places, message: str, tmp: str = "") -> List[Bind]:
    """All mounts of the container, outer ones first, and its `message` file if that is a path. `tmp`: its own /tmp,
    the first of them. The pins are the caller's to close. Raises StartFailed, and then leaves none open."""
    found: List[Bind] = []
    try:
        if tmp:
            found.append(Bind(Pin(files.open_folder(tmp), tmp, "/tmp", False), False, nested=False))
        for mount in sorted(container.mounts, key=lambda mount: mount.path.count("/")):
            found.append(_placed(pin(mount, places), mount.read_only, found))
        if message:
            descriptor = os.open(places.message, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            found.append(_placed(Pin(descriptor, places.message, message, False), False, found))
    except BaseException:
        close(found)
        raise
    return found


def close(found: Sequence[Bind]) -> None:
    """Close what the binds hold open."""
    files.close([bind.pin.descriptor for bind in found])


def _placed(pinned: Pin, read_only: bool, before: Sequence[Bind]) -> Bind:
    """A mount inside another volume needs its mount point there, made without following any link. Nothing can be
    mounted below /proc, whose links lead a runtime to all of the host."""
    if (pinned.target + "/").startswith("/proc/"):
        os.close(pinned.descriptor)
        raise StartFailed("nothing can be mounted at %s" % pinned.target)
    outer = [bind for bind in before if pinned.target.startswith(bind.pin.target + "/")]
    if not outer:
        return Bind(pinned, read_only, nested=False)
    around = outer[-1]
    relative = pinned.target[len(around.pin.target) + 1 :]
    make = "" if around.pin.foreign else "directory" if pinned.is_directory else "folders+file"
    try:
        files.close(files.walk(around.pin.descriptor, None, relative, make, 0o755))
    except OSError as error:
        os.close(pinned.descriptor)
        text = "mount %s cannot be put into the volume at %s: %s"
        raise StartFailed(text % (pinned.target, around.pin.target, error.strerror)) from error
    return Bind(pinned, read_only, nested=True)


def made_inside(folder: str, found: Sequence[Bind]) -> bool:
    """Whether the working directory lies in a volume or in /tmp. There it is made here, where that is possible without
    following a link: a runtime would follow what earlier runs put in its way, out of the container."""
    outer = [bind for bind in found if (folder + "/").startswith(bind.pin.target + "/")]
    if not outer:
        return False
    around = outer[-1]
    make = "" if around.read_only else "directory"
    try:
        relative = folder[len(around.pin.target) :]
        files.close(files.walk(around.pin.descriptor, None, relative, make, 0o755))
    except OSError:
        pass  # going there inside the container tells
    return True
