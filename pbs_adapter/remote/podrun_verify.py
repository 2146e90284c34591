"""Compares what a container sees at its mounts with what podrun meant, after its file tree is made, before its command.

Runtimes that bind by path can be made to bind something else: another container of the pod exchanges a directory for a
link between podrun's look and theirs. No path closes that race, but a look afterwards does: what is there must be the
very file or directory that podrun holds open. The container waits meanwhile, so nothing has been read or written.
"""

import collections
import os
import re
import socket
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import podrun_files as files

PATIENCE = 60.0  # seconds for a runtime to make the file tree
_OLD = ("oldroot", "newroot")  # what bubblewrap's first root has, until it has made the second


class Verifier:
    """Holds descriptors of its own of what the mounts (descriptor, place in the container) should be.

    The container waits for a byte from `held`. It is a datagram socket because its reader waits on when the other end
    is closed: should podrun be killed now, the container never starts.
    """

    def __init__(self, wanted: Sequence[Tuple[int, str]]) -> None:
        self._wanted = [(os.dup(descriptor), path) for descriptor, path in wanted]
        self._until = time.monotonic() + PATIENCE
        go, held = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._go, self.held = go.detach(), held.detach()

    def look(self, pid: Optional[int]) -> Optional[str]:
        """None: not ready yet. "": all is right and the container goes on. Else what is wrong; it never goes on."""
        root = self._root(pid)
        if root is None:
            return "the container's file tree was not ready in time" if time.monotonic() > self._until else None
        wrong = self._compared(root)
        if not wrong:
            try:
                os.write(self._go, b"\n")
            except OSError:
                pass  # it has ended
        return wrong

    def wrong(self, pid: int) -> str:
        """What is wrong in the container whose first process waits already; "": nothing.

        By its table of mounts: an image that a FUSE program serves lets nobody outside the container walk its tree.
        """
        try:
            there = collections.Counter((mount.device, mount.root) for mount in mounts_of("/proc/%d/mountinfo" % pid))
            here = {mount.number: mount for mount in mounts_of("/proc/self/mountinfo")}
            for descriptor, path in self._wanted:
                place = _within(descriptor, here)
                if not there[place]:
                    return "mount %s is not what it was when it was looked up: it was exchanged meanwhile" % path
                there[place] -= 1  # twice the same must be there twice
        except (OSError, ValueError, KeyError) as error:
            return "the container's mounts cannot be looked at: %s" % error
        return ""

    def _compared(self, root: int) -> str:
        try:
            return differing(root, self._wanted)
        finally:
            os.close(root)

    def _root(self, pid: Optional[int]) -> Optional[int]:
        """The container's root once bubblewrap has finished it, open."""
        try:
            root = os.open("/proc/%d/root" % (pid or 0), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        own = os.stat("/")
        if files.identity(root) == (own.st_dev, own.st_ino) or all(_has(root, name) for name in _OLD):
            os.close(root)
            return None
        return root

    def close(self) -> None:
        """Nothing is to be compared any more."""
        self.hand_over()
        if self._go >= 0:
            files.close([self._go] + [descriptor for descriptor, _ in self._wanted])
            self._go, self._wanted = -1, []

    def hand_over(self) -> None:
        """The container has its end (or never will)."""
        if self.held >= 0:
            os.close(self.held)
            self.held = -1


def differing(root: int, wanted: Sequence[Tuple[int, str]]) -> str:
    """What is wrong with the mounts in the file tree `root`; "" when each is the very thing that it should be."""
    for descriptor, path in wanted:
        try:
            chain = files.walk(root, ("/",), path)
        except OSError as error:
            return "mount %s cannot be seen in the container: %s" % (path, error.strerror)
        try:
            if files.identity(chain[-1]) != files.identity(descriptor):
                return "mount %s is not what it was when it was looked up: it was exchanged meanwhile" % path
        finally:
            files.close(chain)
    return ""


def _has(root: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=root, follow_symlinks=False)
        return True
    except OSError:
        return False


class MountEntry(NamedTuple):
    """One line of a mountinfo: the file system, the path in it that is mounted, and where."""

    number: int
    device: bytes
    root: bytes
    point: bytes


def mounts_of(path: str) -> List[MountEntry]:
    """A table of mounts. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        lines = [line.split() for line in file]
    return [MountEntry(int(f[0]), f[2], _unescaped(f[3]), _unescaped(f[4])) for f in lines if len(f) > 4]


def _unescaped(text: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match.group(1), 8)]), text)


def _within(descriptor: int, mounts: Dict[int, MountEntry]) -> Tuple[bytes, bytes]:
    """The file system of what is open, and its path in it. Raises OSError, KeyError, ValueError."""
    with open("/proc/self/fdinfo/%d" % descriptor, "rb") as file:
        number = next(int(line.split()[1]) for line in file if line.startswith(b"mnt_id:"))
    mount = mounts[number]
    path = os.fsencode(files.path_of(descriptor))
    point = mount.point.rstrip(b"/")
    if path != point and not path.startswith(point + b"/"):
        raise ValueError("%r is not below %r" % (path, mount.point))
    return mount.device, (mount.root.rstrip(b"/") + path[len(point) :].rstrip(b"/")) or b"/"
