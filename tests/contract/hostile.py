"""What a pod, or a job outside a container, may leave in the spool: one function a kind, for each entry point."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

DEPTH = 1500  # beyond Python's own recursion limit and the longest path
#: The entries of a pod directory that the helper opens.
FILES = ("status.json", "job.id", "stop.json", "pod.json", "job.deleted", "job.qsub")
OPENED = (*FILES, "submit.lock", "claim", "secrets", "logs")


def deep(folder: Path) -> None:
    """A tree that nobody can name a path into."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def clear(path: Path) -> None:
    """Make room for something else of that name."""
    if path.is_dir() and not path.is_symlink():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    else:
        path.unlink(missing_ok=True)


def put(path: Path, kind: str) -> None:
    """Replace whatever is at `path` by something that is not what it should be."""
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        (path / "inner").mkdir(parents=True)
    elif kind == "file":
        path.write_text("x")
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(1 << 40)  # sparse
    elif kind == "binary":
        path.write_bytes(os.urandom(1000))
    elif kind == "brackets":
        path.write_bytes(b"[" * 50_000)


def _in_its_place(kind: str) -> Callable[[Path], None]:
    return lambda pod: put(pod, kind)


def _in_place_of_files(kind: str) -> Callable[[Path], None]:
    def spoil(pod: Path) -> None:
        for name in OPENED if kind != "folder" else FILES:
            put(pod / name, kind)

    return spoil


def _deep(pod: Path) -> None:
    deep(pod / "volumes/data")


#: Kind → what does it to a pod directory.
KINDS: dict[str, Callable[[Path], None]] = {
    "deep": _deep,
    **{f"directory-is-{kind}": _in_its_place(kind) for kind in ("file", "link", "loop", "pipe")},
    **{
        f"files-are-{kind}": _in_place_of_files(kind)
        for kind in ("pipe", "link", "folder", "huge", "binary", "brackets")
    },
}
