"""The file tree that a container of runtime `host` sees, as a list of bubblewrap options.

Options act in order. Mount points that the host's read-only tree lacks cannot be created in it (and must not be): the
folder that would hold them is rebuilt as an empty one with each entry of the host's folder bound into it.
"""

import glob
import os
import re
from typing import Dict, List, Sequence

from .podrun_runtime import StartFailed

_CONTROL = re.compile("[\x00-\x1f\x7f]")
SHOWN = ("/usr", "/etc", "/opt")
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Files of /etc that are often links to where programs of the system keep them (systemd-resolved, for example).
LINKED = ("/etc/resolv.conf", "/etc/hosts", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime")
# Sockets and caches through which libc asks sssd or nscd: without them the job's own user often has no name.
NAME_SERVICES = ("/var/lib/sss/pipes", "/var/lib/sss/mc", "/run/nscd")
# Accelerators and fast networks. Which of them a job may open is PBS's affair (its cgroups), as outside a container.
DEVICES = (
    "/dev/nvidia*",
    "/dev/dri",
    "/dev/kfd",
    "/dev/infiniband",
    "/dev/knem",
    "/dev/xpmem",
    "/dev/hfi1*",
    "/dev/cxi*",
)
# Links of these lead anywhere.
LEADING = ("/proc", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/core")
MAX_ENTRIES = 2000  # bubblewrap takes about 9000 arguments, three for each entry


class Root:
    """Collects the options. Call `host_tree` first and `finished` last."""

    def __init__(self) -> None:
        self._options = [b"--unshare-pid", b"--unshare-ipc", b"--tmpfs", b"/"]
        self._links: Dict[str, str] = {}
        self._rebuilt: List[str] = []

    def _add(self, *options: str) -> None:
        """Options are joined by NUL later: one with a NUL in it would be several. None may have other controls either,
        as all of them come from pod.json or are names of this host's files."""
        for option in options:
            if _CONTROL.search(option):
                raise StartFailed("%r cannot be given to bubblewrap: it has a control character" % option)
            self._options.append(os.fsencode(option))

    def host_tree(self, mounts: Sequence[str], others: Sequence[str] = ()) -> None:
        """The host's programs and settings, and room for mount points at `mounts` and for `others`."""
        for top in SYSTEM:
            if os.path.islink(top):
                self._links[top] = os.readlink(top)
                self._add("--symlink", self._links[top].lstrip("/"), top)
        shown = [top for top in SHOWN + SYSTEM if os.path.isdir(top) and top not in self._links]
        for top in shown:
            self._add("--ro-bind", top, top)
        for path in LINKED:
            real = os.path.realpath(path)
            if os.path.exists(real) and not _below(real, shown):
                self._add("--ro-bind", real, real)
        for path in NAME_SERVICES:
            if os.path.isdir(path):
                self._add("--ro-bind-try", path, path)
        if os.path.isdir("/sys"):
            self._add("--ro-bind", "/sys", "/sys")  # NUMA topology, devices
        self._add("--proc", "/proc", "--dev", "/dev")
        for pattern in DEVICES:
            for path in sorted(glob.glob(pattern)):
                self._add("--dev-bind-try", path, path)
        self._add("--dir", "/tmp", "--dir", "/run", "--dir", "/var/tmp")
        for folder in sorted({self._lacking(path, mounts, shown) for path in list(mounts) + list(others)}):
            if folder:
                self._rebuild(folder)

    def _real(self, path: str) -> str:
        top, _, rest = path[1:].partition("/")
        link = self._links.get("/" + top)
        return os.path.join("/", link, rest).rstrip("/") if link else path

    def _lacking(self, path: str, mounts: Sequence[str], shown: Sequence[str]) -> str:
        """The folder of the host's tree in which the mount point `path` is missing, or ""."""
        if any(path.startswith(mount + "/") for mount in mounts):
            return ""  # a matter of that volume
        folder = self._real(path)
        if not _below(folder, shown) or os.path.lexists(folder):
            return ""
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        real = os.path.realpath(folder)
        return real if _below(real, shown) and os.path.isdir(real) else ""

    def _rebuild(self, folder: str) -> None:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return  # bubblewrap will say what is wrong with it
        if len(names) > MAX_ENTRIES:
            return
        self._add("--tmpfs", folder)
        self._rebuilt.append(folder)
        for name in names:
            path = os.path.join(folder, name)
            if _CONTROL.search(name):
                continue  # nobody needs it, and no option can hold it
            if os.path.islink(path):
                self._add("--symlink", os.readlink(path), path)
            else:
                self._add("--ro-bind-try", path, path)

    def bind(self, source: str, path: str, read_only: bool) -> None:
        """Show `source` at `path`."""
        self._add("--ro-bind" if read_only else "--bind", source, path)

    def bind_descriptor(self, descriptor: int, path: str, read_only: bool) -> None:
        """Show what `descriptor` is open on at `path`; bubblewrap closes it."""
        self._add("--ro-bind-fd" if read_only else "--bind-fd", str(descriptor), path)

    def check(self, path: str, mounts: Sequence[str]) -> None:
        """Raises StartFailed when `path` cannot be a mount point."""
        if self.leads_on(path, mounts):
            raise StartFailed("nothing can be mounted at %s: the way there leads through a link" % path)

    def leads_on(self, path: str, mounts: Sequence[str]) -> bool:
        """Whether the way to `path` leads through a link that ends where bubblewrap must make nothing.

        bubblewrap makes what is missing of a path before it enters the container, and follows links then: those of
        /proc lead to all of the host, those of the host's tree perhaps into a volume, where a container put others.
        """
        real = os.path.realpath(path) if _below(path, SHOWN + SYSTEM) else path
        if _below(real, LEADING):
            return True
        return real != self._real(path) and any(_below(real, [mount]) for mount in mounts)

    def finished(self, cwd: str, read_only: bool, make: str = "") -> List[bytes]:
        """All options, ending in the working directory `cwd`; `make`: where it is created if it is missing."""
        if make not in ("", "/"):
            self._add("--dir", make)
        for folder in self._rebuilt + (["/"] if read_only else []):
            self._add("--remount-ro", folder)
        self._add("--chdir", cwd)
        return self._options


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
