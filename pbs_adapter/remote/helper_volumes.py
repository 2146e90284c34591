"""configMap, secret, downwardAPI and projected volumes on disk, exactly as the kubelet lays them out.

`root/..data` is a link to a dated folder that holds the files; each top-level name is a link through `..data`. So a
reader sees all files of one version, and an update is one rename. An emptyDir is made here and never looked at again.
"""

import os
import time
from typing import Dict, List, NamedTuple

from . import helper_files as files

_DATA = "..data"


class File(NamedTuple):
    """One file: `path` relative to the pod directory or volume."""

    path: str
    mode: int
    content: bytes


class Volume(NamedTuple):
    """The whole content of one volume below the pod directory.

    managed: what it holds is these files, even when there are none. Otherwise no files mean an emptyDir.
    """

    root: str
    files: List[File]
    managed: bool = False


def write_tree(root: int, items: List[File]) -> None:
    """Write files below the open directory `root`, making folders as needed. Raises OSError."""
    for item in items:
        parts = files.parts_of(item.path)
        with files.below(root, parts[:-1], create=True) as fd:
            files.replace(parts[-1], fd, item.content, item.mode & 0o777)


def write_volume(pod: int, volume: Volume) -> bool:
    """Bring one volume to its new content in one step; False when it has it already. Raises OSError."""
    with files.below(pod, files.parts_of(volume.root), create=True) as root:
        if not (volume.files or volume.managed) or _same(root, volume.files):
            return False
        stamp = "..{}.{}".format(time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime()), os.urandom(5).hex())
        os.mkdir(stamp, 0o700, dir_fd=root)
        with files.directory(stamp, root) as fd:
            write_tree(fd, volume.files)
        temporary = "..data_tmp"
        files.remove_tree(temporary, root)
        os.symlink(stamp, temporary, dir_fd=root)
        os.rename(temporary, _DATA, src_dir_fd=root, dst_dir_fd=root)
        _link_names(root, {files.parts_of(item.path)[0] for item in volume.files})
        for name in os.listdir(root):
            if name.startswith("..") and name not in (_DATA, stamp):
                files.remove_tree(name, root)
        return True


def _link_names(root: int, names: "set[str]") -> None:
    """Links for new names, none for names that are gone. What is no link of ours is replaced: the volume is ours."""
    for name in os.listdir(root):
        if not name.startswith("..") and (name not in names or _target(name, root) != _DATA + "/" + name):
            files.remove_tree(name, root)
    for name in names - set(os.listdir(root)):
        os.symlink(_DATA + "/" + name, name, dir_fd=root)


def _target(name: str, parent: int) -> str:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError:
        return ""


def _same(root: int, items: List[File]) -> bool:
    """Whether the current version has exactly these files."""
    wanted: Dict[str, File] = {item.path: item for item in items}
    current = _target(_DATA, root)
    if not current.startswith("..") or "/" in current:
        return False
    try:
        with files.directory(current, root) as fd:
            found = _paths(fd, "")
            return sorted(found) == sorted(wanted) and all(_has(fd, item) for item in items)
    except OSError:
        return False


def _paths(parent: int, prefix: str) -> List[str]:
    found: List[str] = []
    for name in os.listdir(parent):
        try:
            with files.directory(name, parent) as fd:
                found += _paths(fd, prefix + name + "/")
        except NotADirectoryError:
            found.append(prefix + name)
    return found


def _has(root: int, item: File) -> bool:
    parts = files.parts_of(item.path)
    with files.below(root, parts[:-1]) as fd:
        mode = os.stat(parts[-1], dir_fd=fd, follow_symlinks=False).st_mode
        return (
            mode & 0o777 == item.mode & 0o777 and files.read_bounded(parts[-1], fd, len(item.content)) == item.content
        )
