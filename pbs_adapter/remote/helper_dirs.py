"""The spool on the cluster: one directory a pod, their marks, the dirty list, and the epoch of the agent that leads.

    <spool>/<instance>/<cluster>/epoch        "EPOCH TOKEN": who spoke last to this account
    <spool>/<instance>/<cluster>/dirty/<uid>  made by podrun when status.json has changed
    <spool>/<instance>/<cluster>/pods/<uid>/  everything of one pod; names with a dot first are being made or removed

Two PBS clusters may share a home directory: each has its own folder. A pod directory appears whole, by rename. What is
in it may have been changed by the pod itself and is read as such.
"""

import errno
import json
import os
import re
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional

from . import helper_files as files
from .helper_errors import OpError, is_uid
from .helper_status import read_status
from .helper_volumes import File, Volume, write_tree, write_volume

_JOB_ID = re.compile(r"\d{1,18}(\[\d*\])?\.[A-Za-z0-9_.-]{1,255}", re.ASCII)
_SMALL = 64 * 1024
_STALE_STAGING = 3600.0


class Marks(NamedTuple):
    """What the files of a pod directory say.

    forced: cancel was asked to qdel even a job that runs. deleted: qdel has succeeded, perhaps in an earlier helper.
    """

    job_id: Optional[str] = None
    locked: bool = False
    claimed: bool = False
    stopping: bool = False
    forced: bool = False
    deleted: bool = False
    status: Optional[Dict[str, Any]] = None
    problem: str = ""

    @property
    def ended(self) -> bool:
        """podrun has written its last status."""
        return self.status is not None and self.status["phase"] == "Ended"


class Spool:
    """The directories of one instance. Methods raise OSError, and OpError where the request is at fault."""

    def __init__(self, root: str, instance: str, cluster: str, token: str) -> None:
        self.root = root
        above = os.path.join(root, instance)
        self.path = os.path.join(above, cluster)
        self.pods = os.path.join(self.path, "pods")
        self._dirty = os.path.join(self.path, "dirty")
        self._token = token
        for path in (root, above, self.path, self.pods, self._dirty):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def pod_path(self, uid: str) -> str:
        """The absolute path of a pod directory, for commands that run in it."""
        return os.path.join(self.pods, uid)

    # Epoch: a higher one always wins, so that a paused former leader cannot act.

    def lead(self, epoch: int) -> None:
        """Take the account over for `epoch`. Raises OpError(fenced) when a newer leader has spoken."""
        with files.directory(self.path) as fd:
            for _ in range(5):
                self._compare(fd, epoch)
                files.replace("epoch", fd, "{} {}\n".format(epoch, self._token).encode("ascii"), sync=True)
                if self._read_epoch(fd)[0] == epoch:
                    return
        raise OpError("retry", "another helper is writing the epoch")

    def check_epoch(self, epoch: int) -> None:
        """Before each change: raise OpError(fenced) when a newer leader has spoken."""
        with files.directory(self.path) as fd:
            self._compare(fd, epoch)

    def is_ours(self) -> bool:
        """Whether no later helper has taken the account over: only one may empty the dirty list."""
        with files.directory(self.path) as fd:
            return self._read_epoch(fd)[1] == self._token

    def _compare(self, fd: int, epoch: int) -> None:
        stored = self._read_epoch(fd)[0]
        if epoch < stored:
            raise OpError("fenced", "epoch {} is over: {} leads now".format(epoch, stored))

    def _read_epoch(self, fd: int) -> "tuple[int, str]":
        try:
            number, _, token = files.read_bounded("epoch", fd, 200).decode("ascii", "replace").strip().partition(" ")
            return int(number), token
        except (FileNotFoundError, ValueError):
            return -1, ""

    # The pod directories.

    def uids(self) -> List[str]:
        """All pod directories."""
        return [name for name in os.listdir(self.pods) if is_uid(name)]

    def take_dirty(self) -> List[str]:
        """UIDs whose status has changed; each is given once. Read the pod directory only afterwards."""
        names = [name for name in os.listdir(self._dirty) if is_uid(name)]
        with files.directory(self._dirty) as fd:
            for name in names:
                try:
                    os.unlink(name, dir_fd=fd)
                except FileNotFoundError:
                    pass
        return names

    def marks(self, uid: str) -> Optional[Marks]:
        """What the pod directory says now; None when there is none."""
        try:
            with self._pod(uid) as fd:
                names = set(os.listdir(fd))
                status, problem = read_status(fd, uid) if "status.json" in names else (None, "")
                stop = read_stop(fd) if "stop.json" in names else None
                return Marks(
                    job_id=read_job_id(fd) if "job.id" in names else None,
                    locked="submit.lock" in names,
                    claimed="claim" in names or status is not None,
                    stopping="stop.json" in names,
                    forced=bool(stop and stop.get("force")),
                    deleted="job.deleted" in names,
                    status=status,
                    problem=problem,
                )
        except FileNotFoundError:
            return None

    def stage(self, uid: str, items: List[File], volumes: List[Volume]) -> bool:
        """Make the pod directory with all its content at once; False when there is one already."""
        with files.directory(self.pods) as pods:
            if files.exists(uid, pods):
                return False
            name = ".new-{}-{}".format(uid, os.urandom(6).hex())
            os.mkdir(name, 0o700, dir_fd=pods)
            try:
                with files.directory(name, pods) as fd:
                    _write(fd, items, volumes)
                os.rename(name, uid, src_dir_fd=pods, dst_dir_fd=pods)
            except OSError as error:
                files.remove_tree(name, pods)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
            return True

    def write(self, uid: str, items: List[File], volumes: List[Volume]) -> None:
        """Replace files and volumes of an existing pod directory. Raises OpError(permanent) when there is none."""
        try:
            with self._pod(uid) as fd:
                _write(fd, items, volumes)
        except FileNotFoundError as error:
            raise OpError("permanent", "there is no pod directory of {}".format(uid)) from error

    def stop(self, uid: str, grace: int, force: bool) -> None:
        """Write stop.json; of two requests the earlier end and the stronger one hold.

        Where there is no pod directory one is made that holds nothing else: a submission still on its way is refused.
        """
        now = time.time()
        wish = {"version": 1, "grace": grace, "at": now, "force": force}
        if self.stage(uid, [File("stop.json", 0o600, _json(wish))], []):
            return
        with self._pod(uid) as fd:
            old = read_stop(fd)
            if old is not None:
                wish["force"] = force or bool(old.get("force"))
                if old["at"] + old["grace"] <= now + grace:
                    wish["grace"], wish["at"] = old["grace"], old["at"]
            if wish != old:
                files.replace("stop.json", fd, _json(wish), sync=True)

    def set_job_id(self, uid: str, job_id: str) -> None:
        """Write job.id so that it survives a crash of this host."""
        with self._pod(uid) as fd:
            files.replace("job.id", fd, job_id.encode("ascii") + b"\n", sync=True)

    def note_deleted(self, uid: str) -> None:
        """Leave word for a later helper that qdel has succeeded: else it would ask PBS twice for each such job."""
        with self._pod(uid) as fd:
            files.replace("job.deleted", fd, b"")

    def remove(self, uid: str) -> None:
        """Take the pod directory away at once; its content goes after it."""
        with files.directory(self.pods) as pods:
            name = ".gone-{}-{}".format(uid, os.urandom(6).hex())
            try:
                os.rename(uid, name, src_dir_fd=pods, dst_dir_fd=pods)
            except FileNotFoundError:
                return
            files.remove_tree(name, pods)

    def tidy(self) -> None:
        """Remove what an earlier helper left half made or half removed."""
        with files.directory(self.pods) as pods:
            for name in os.listdir(pods):
                if name.startswith(".gone-") or (name.startswith(".new-") and _age(name, pods) > _STALE_STAGING):
                    files.remove_tree(name, pods)

    def _pod(self, uid: str) -> Any:
        return _within(self.pods, uid)


@contextmanager
def _within(path: str, name: str) -> Iterator[int]:
    with files.directory(path) as parent, files.directory(name, parent) as fd:
        yield fd


def _write(fd: int, items: Iterable[File], volumes: Iterable[Volume]) -> None:
    write_tree(fd, list(items))
    for volume in volumes:
        write_volume(fd, volume)


def read_job_id(pod: int) -> Optional[str]:
    """The id in job.id; None when there is none or it is no id."""
    try:
        text = files.read_bounded("job.id", pod, 400).decode("ascii", "replace").strip()
    except OSError:
        return None
    return text if is_job_id(text) else None


def is_job_id(text: str) -> bool:
    """Whether the text is what qsub prints, and safe to give to a command."""
    return _JOB_ID.fullmatch(text) is not None


def read_json(name: str, pod: int) -> Optional[Dict[str, Any]]:
    """A small JSON object of ours; None when it is missing or spoilt."""
    try:
        value = json.loads(files.read_bounded(name, pod, _SMALL).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_stop(pod: int) -> Optional[Dict[str, Any]]:
    """stop.json as `Spool.stop` writes it, or None."""
    stop = read_json("stop.json", pod)
    if stop is None or not all(isinstance(stop.get(name), (int, float)) for name in ("grace", "at")):
        return None
    return stop


def _json(value: Dict[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def _age(name: str, parent: int) -> float:
    try:
        return time.time() - os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0
