"""Reading the logs of one container run from the pod directory, also while they grow and are rotated.

Files are opened anew after each end of file: only that shows the growth of a file on NFS. When a run's status says that
it has ended, everything that is then in its files is sent, and the stream ends.
"""

import itertools
import json
import os
import re
from typing import Callable, Iterator, List, Optional, Tuple

from . import helper_files as files
from .helper_dirs import Spool
from .helper_errors import OpError
from .helper_records import (
    BLOCK,
    Formatter,
    Query,
    parts_in,
    run_ended,
    run_of,
    runs_in,
    tail_start,
    waiting,
)

FOLLOW_INTERVAL = 0.2
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_POD_JSON = 64 * 1024 * 1024
_ROTATING = 20
_MOST_PARTS = 10000  # files of a container that are looked at
_STATUS_EVERY = 3  # of the follow intervals


def read_log(spool: Spool, uid: str, query: Query, pause: Callable[[float], None]) -> Iterator[bytes]:
    """The output of `kubectl logs` in pieces. `pause(seconds)` waits while following and may raise to stop.

    Raises OpError(permanent) when there is no such container or run. Close the generator to give its files back.
    """
    run = _choose_run(spool, uid, query)
    formatter = Formatter(query)
    if formatter.done:
        return
    for block in _blocks(_Run(spool, uid, query.container, run), query, pause):
        output = formatter.feed(block)
        if output:
            yield output
        if formatter.done:
            return
    output = formatter.feed(b"", end=True)
    if output:
        yield output


def _choose_run(spool: Spool, uid: str, query: Query) -> int:
    if _NAME.fullmatch(query.container) is None:
        raise OpError("permanent", "not a container name: {!r}".format(query.container[:80]))
    marks = spool.marks(uid)
    if marks is None:
        raise OpError("permanent", "the pod has no directory on the cluster")
    name, containers = _names(spool, uid)
    if marks.status is not None:
        return run_of(marks.status, query, name)
    runs = runs_in(_Run(spool, uid, query.container, 0).names()) if marks.problem else []
    if runs and not (query.previous and len(runs) < 2):
        return runs[-2] if query.previous else runs[-1]  # podrun's status is spoilt: go by the files
    if query.container not in containers:
        raise OpError("permanent", "container {} is not valid for pod {}".format(query.container, name))
    raise waiting(query.container, name, "ContainerCreating")


def _names(spool: Spool, uid: str) -> Tuple[str, List[str]]:
    """(pod name, container names) from pod.json; the UID stands in for a name that cannot be read."""
    try:
        with files.directory(spool.pods) as pods, files.directory(uid, pods) as pod:
            spec = json.loads(files.read_bounded("pod.json", pod, _POD_JSON).decode("utf-8"))
        return str(spec.get("name", uid)), [str(container["name"]) for container in spec["containers"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return uid, []


class _Run:
    """The files of one run. Every access starts at the pod directory again, so that NFS shows what is new."""

    def __init__(self, spool: Spool, uid: str, container: str, run: int) -> None:
        self._spool = spool
        self._uid = uid
        self._container = container
        self._run = run

    def names(self) -> List[str]:
        """All files of the container; none when it has no folder yet."""
        try:
            with files.directory(self._spool.pods) as pods, files.directory(self._uid, pods) as pod:
                with files.below(pod, ["logs", self._container]) as folder:
                    return list(itertools.islice(files.names(folder), _MOST_PARTS))
        except OSError:
            return []

    def parts(self) -> List[int]:
        """Open descriptors of the run's files from the oldest to the newest; close them."""
        for _ in range(_ROTATING):
            opened = self._open_parts()
            if opened is not None:
                return opened
        raise OpError("retry", "the log is being rotated too fast to be read")

    def _open_parts(self) -> Optional[List[int]]:
        """None when a rotation came in between: then some file would be read twice or not at all."""
        opened: List[int] = []
        try:
            with files.directory(self._spool.pods) as pods, files.directory(self._uid, pods) as pod:
                with files.below(pod, ["logs", self._container]) as folder:
                    names = parts_in(itertools.islice(files.names(folder), _MOST_PARTS), self._run)
                    inodes = [os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino for name in names]
                    for name, inode in zip(names, inodes):
                        opened.append(files.open_regular(name, folder))
                        if os.fstat(opened[-1]).st_ino != inode:
                            close_all(opened)
                            return None
                    if parts_in(itertools.islice(files.names(folder), _MOST_PARTS), self._run) == names:
                        return opened
        except FileNotFoundError:
            close_all(opened)
            return None if self.names() else []
        except OSError as error:
            close_all(opened)
            raise OpError("permanent", "the log cannot be read: {}".format(error.strerror)) from error
        close_all(opened)
        return None

    def ended(self) -> bool:
        """Whether the run will write nothing more (its pod directory may be gone as well)."""
        marks = self._spool.marks(self._uid)
        return marks is None or run_ended(marks.status, self._container, self._run)


def close_all(descriptors: List[int]) -> None:
    """Close them all."""
    for fd in descriptors:
        os.close(fd)


def _blocks(run: _Run, query: Query, pause: Callable[[float], None]) -> Iterator[bytes]:
    """The raw bytes of the run's files from where the query begins, across rotation, until the end asked for."""
    position = _start(run, query)
    final = not query.follow
    rounds = 0
    while True:
        for block, reached in _read_from(run, position):
            position = reached
            yield block
        if final:
            return
        if rounds % _STATUS_EVERY == 0:
            final = run.ended()
        rounds += 1
        if not final:
            pause(FOLLOW_INTERVAL)


#: Where reading goes on: (inode of the file, offset in it); None: at the beginning of whatever is there.
Position = Optional[Tuple[int, int]]


def _start(run: _Run, query: Query) -> Position:
    if query.tail_lines is None:
        return None
    parts = run.parts()
    try:
        left = query.tail_lines
        position: Position = None
        for fd in reversed(parts):
            offset, found = tail_start(fd, left)
            position = (os.fstat(fd).st_ino, offset)
            left -= found
            if offset > 0 or left <= 0:
                break
        return position
    finally:
        close_all(parts)


def _read_from(run: _Run, position: Position) -> "Iterator[Tuple[bytes, Position]]":
    """Blocks from `position` to the present end, each with the position after it.

    The older files of a rotated log are opened together with the newest, so nothing is written to them any more. If the
    file of `position` is gone, reading goes on with the oldest one that is left.
    """
    parts = run.parts()
    try:
        known = [os.fstat(fd) for fd in parts]
        at = [i for i, stat in enumerate(known) if position is not None and stat.st_ino == position[0]]
        offset = position[1] if position is not None and at and known[at[0]].st_size >= position[1] else 0
        for index in range(at[0] if at else 0, len(parts)):
            while True:
                block = os.pread(parts[index], BLOCK, offset)
                if not block:
                    break
                offset += len(block)
                yield block, (known[index].st_ino, offset)
            offset = 0
    finally:
        close_all(parts)
