"""status.json on a shared file system: replaced as a whole, durable, and announced.

A reader on another host sees the old or the new content, never a part. The mark `../../dirty/<uid>` is replaced after
each write, so that the helper finds all changes by listing one folder. A 64 KiB reserve file is given up for the last
status when the file system is full; before that `full` tells, and the pod is ended.
"""

import errno
import json
import os
from typing import Any, Dict

RESERVE = 64 * 1024


class StatusFile:
    """Writes status.json of the pod directory `directory`; `uid` names the mark."""

    def __init__(self, directory: str, uid: str) -> None:
        self._directory = directory
        self._mark = os.path.join(directory, "..", "..", "dirty", uid)
        self._reserve = os.path.join(directory, ".reserve")
        self._seq = 0
        self.full = ""  # why the file system takes no more
        try:
            _replace(self._reserve, os.urandom(RESERVE))  # random: a compressing file system would keep nothing
        except OSError as error:
            print("podrun: no reserve: %s" % error, flush=True)

    def write(self, document: Dict[str, Any], last: bool = False) -> bool:
        """Write `document` with the next `seq`. False (and a line on stdout) when it could not be written."""
        self._seq += 1
        content = json.dumps(dict(document, seq=self._seq), separators=(",", ":")).encode("ascii")
        path = os.path.join(self._directory, "status.json")
        try:
            try:
                _replace(path, content)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self.full = str(error.strerror)
                if not last or not os.path.exists(self._reserve):
                    raise
                os.unlink(self._reserve)
                _replace(path, content)
            self._announce()
        except OSError as error:
            print("podrun: status.json: %s" % error, flush=True)
            return False
        return True

    def _announce(self) -> None:
        try:
            _replace(self._mark, b"%d\n" % self._seq)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self._mark), mode=0o700, exist_ok=True)
            _replace(self._mark, b"%d\n" % self._seq)

    def release(self) -> None:
        """After the last status: the reserve has served."""
        try:
            os.unlink(self._reserve)
        except OSError:
            pass


def _replace(path: str, content: bytes) -> None:
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, ".%s.podrun" % name.lstrip("."))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
