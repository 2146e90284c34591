"""status.json on a shared file system: replaced as a whole, durable, bounded, and announced.

A reader on another host sees the old or the new content, never a part. The mark `../../dirty/<uid>` is replaced after
each write, so that the helper finds all changes by listing one folder. A 64 KiB reserve file is given up for the last
status when the file system is full; before that `full` tells, and the pod is ended.

Version 1 is for good: fields are added to it, readers pass over those that they do not know.
"""

import errno
import json
import os
from typing import Any, Dict

from . import podrun_files as files

RESERVE = 64 * 1024
LIMIT = 224 * 1024  # bytes: the helper reads no more than 256 KiB


class StatusFile:
    """Writes status.json of the pod directory `directory`; `uid` names the mark."""

    def __init__(self, directory: str, uid: str) -> None:
        self._directory = directory
        self._uid = uid
        self._marks = os.path.dirname(os.path.dirname(directory))
        self._reserve = os.path.join(directory, ".reserve")
        self._seq = 0
        self.full = ""  # why the file system takes no more
        try:
            _replace(directory, ".reserve", os.urandom(RESERVE))  # random: a compressing file system would keep nothing
        except OSError as error:
            print("podrun: no reserve: %s" % error, flush=True)

    def write(self, document: Dict[str, Any], last: bool = False) -> bool:
        """Write `document` with the next `seq`. False (and a line on stdout) when it could not be written."""
        self._seq += 1
        content = bounded(dict(document, seq=self._seq))
        try:
            try:
                _replace(self._directory, "status.json", content)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self.full = str(error.strerror)
                if not last or not os.path.exists(self._reserve):
                    raise
                os.unlink(self._reserve)
                _replace(self._directory, "status.json", content)
            self._announce()
        except OSError as error:
            print("podrun: status.json: %s" % error, flush=True)
            return False
        return True

    def _announce(self) -> None:
        try:
            _replace(os.path.join(self._marks, "dirty"), self._uid, b"%d\n" % self._seq)
        except FileNotFoundError:
            os.makedirs(os.path.join(self._marks, "dirty"), mode=0o700, exist_ok=True)
            _replace(os.path.join(self._marks, "dirty"), self._uid, b"%d\n" % self._seq)

    def release(self) -> None:
        """After the last status: the reserve has served."""
        try:
            os.unlink(self._reserve)
        except OSError:
            pass


def bounded(document: Dict[str, Any], limit: int = LIMIT) -> bytes:
    """The document as JSON of at most `limit` bytes, as far as that takes leaving out what says least: messages of
    earlier runs, then those of this one, then earlier runs at all."""
    content = _encoded(document)
    for shorten in (_short_last, _short_messages, _no_last):
        if len(content) <= limit:
            break
        containers = {name: shorten(dict(entry)) for name, entry in document["containers"].items()}
        document = dict(document, containers=containers)
        content = _encoded(document)
    return content


def _encoded(document: Dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _short_last(entry: Dict[str, Any]) -> Dict[str, Any]:
    if entry.get("last"):
        entry["last"] = dict(entry["last"], message="")
    return entry


def _short_messages(entry: Dict[str, Any]) -> Dict[str, Any]:
    return dict(entry, message=entry["message"][:32])


def _no_last(entry: Dict[str, Any]) -> Dict[str, Any]:
    return dict(entry, last=None)


def _replace(directory: str, name: str, content: bytes) -> None:
    folder = files.open_folder(directory)
    try:
        files.replace(folder, name, content)
    finally:
        os.close(folder)
