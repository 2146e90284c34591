"""The spool on the cluster: one directory a pod, their marks, the dirty list, and the epoch of the agent that leads.

    <spool>/<instance>/<cluster>/epoch        "EPOCH TOKEN": who spoke last to this account
    <spool>/<instance>/<cluster>/dirty/<uid>  made by podrun when status.json has changed
    <spool>/<instance>/<cluster>/pods/<uid>/  everything of one pod; names with a dot first are being made or removed

Two PBS clusters may share a home directory: each has its own folder. A pod directory appears whole, by rename. What is
in it may have been changed by the pod itself and is read as such.
"""

import errno
import itertools
import json
import os
import queue
import re
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set

from . import helper_files as files
from .helper_errors import OpError, is_uid
from .helper_owner import check_owner
from .helper_status import read_status
from .helper_volumes import File, Volume, write_tree, write_volume
from .parse import is_job_id

_NAME_OPTION = re.compile(r" -N ([A-Za-z0-9._+-]{1,230}) ", re.ASCII)
_OURS = ("status.json", "stop.json", "job.id", "submit.lock", "claim", "job.deleted")
_MOST_NAMES = 1000
_SMALL = 64 * 1024
_STALE_STAGING = 3600.0
#: Most pod directories that are looked at. A spool with more is reported, and the rest of it left alone.
MOST_PODS = 50000
_MOST_MARKS = 5000  # a look at the dirty list
_MOST_JUNK = 1000  # entries of the dirty list that are no marks, before they are thrown away
#: The epoch is the number of times that the Lease has changed hands, which begins at the seconds since 2020 (see
#: bridge/kube/leader.py) and rises by one a change. Whatever lies beyond now, no leader has written.
_EPOCHS_BEGIN, _CLOCKS_APART = 1577836800, 86400
_NO_FILE = (errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.EFBIG, errno.ENXIO)


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
    """The directories of one instance. Methods raise OSError, and OpError where the request is at fault.

    Making one raises OpError(permanent) when others could change what is in the spool.
    """

    def __init__(self, root: str, instance: str, cluster: str, token: str) -> None:
        self.root = root
        self.instance = instance
        above = os.path.join(root, instance)
        self.path = os.path.join(above, cluster)
        self.pods = os.path.join(self.path, "pods")
        self._dirty = os.path.join(self.path, "dirty")
        self._token = token
        self._bin: "queue.Queue[str]" = queue.Queue()
        folders = (above, self.path, self.pods, self._dirty)
        for path in (root,) + folders:
            os.makedirs(path, mode=0o700, exist_ok=True)
        check_owner(root, folders)

    def pod_path(self, uid: str) -> str:
        """The absolute path of a pod directory, for commands that run in it."""
        return os.path.join(self.pods, uid)

    # Epoch: a higher one always wins, so that a paused former leader cannot act.

    def lead(self, epoch: int) -> None:
        """Take the account over for `epoch`. Raises OpError: fenced when a newer leader has spoken, permanent for an
        epoch that no leader can have.
        """
        with files.directory(self.path) as fd:
            for _ in range(5):
                self._compare(fd, epoch, "permanent")
                files.replace("epoch", fd, "{} {}\n".format(epoch, self._token).encode("ascii"), sync=True)
                if self._read_epoch(fd)[0] == epoch:
                    return
        raise OpError("retry", "another helper is writing the epoch")

    def check_epoch(self, epoch: int) -> None:
        """Before each change: raise OpError(fenced) when a newer leader has spoken."""
        with files.directory(self.path) as fd:
            self._compare(fd, epoch, "retry")  # nonsense is no verdict on the request: a pod must not fail by it

    def is_ours(self) -> bool:
        """Whether no later helper has taken the account over: only one may empty the dirty list."""
        with files.directory(self.path) as fd:
            return self._read_epoch(fd)[1] in ("", self._token)  # spoilt: nobody has

    def _compare(self, fd: int, epoch: int, nonsense: str) -> None:
        stored = self._read_epoch(fd)[0]
        if stored > max(epoch, int(time.time()) - _EPOCHS_BEGIN + _CLOCKS_APART):
            text = "{}/epoch on the login node says {}, which no leader can be: remove that file"
            raise OpError(nonsense, text.format(self.path, stored))
        if epoch < stored:
            text = "epoch {} is over: {} leads now, by {}/epoch"
            raise OpError("fenced", text.format(epoch, stored, self.path))

    def _read_epoch(self, fd: int) -> "tuple[int, str]":
        try:
            number, _, token = files.read_bounded("epoch", fd, 200).decode("ascii", "replace").strip().partition(" ")
            return int(number), token
        except (FileNotFoundError, ValueError):
            return -1, ""
        except OSError as error:
            if error.errno in _NO_FILE:
                return -1, ""  # the next leader puts a file in its place
            raise

    # The pod directories.

    def uids(self) -> List[str]:
        """The pod directories, and whatever else has such a name; at most MOST_PODS."""
        with files.directory(self.pods) as fd:
            return list(itertools.islice(filter(is_uid, files.names(fd)), MOST_PODS))

    def take_dirty(self) -> List[str]:
        """UIDs whose status has changed; each is given once. Read the pod directory only afterwards.

        Whoever is told must read them all, or keep them in mind: their marks are gone.
        """
        marks: List[str] = []
        junk: List[str] = []
        with files.directory(self._dirty) as fd:
            for name in files.names(fd):
                (marks if is_uid(name) else junk).append(name)
                if len(marks) >= _MOST_MARKS or len(junk) > 10 * _MOST_JUNK:
                    break
            for name in marks + (junk if len(junk) > _MOST_JUNK else []):
                self._unmark(name, fd)
        return marks

    def _unmark(self, name: str, dirty: int) -> None:
        try:
            os.unlink(name, dir_fd=dirty)
        except FileNotFoundError:
            pass
        except OSError:  # a directory in a mark's place
            try:
                self._discard(name, dirty)
            except OSError as error:
                print("dirty/{}: {}".format(name, error))

    def marks(self, uid: str) -> Optional[Marks]:
        """What the pod directory says now; None when there is none."""
        try:
            with self._pod(uid) as fd:
                names = _names_of_ours(fd)
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

    def refresh(self, uid: str, items: List[File], volumes: List[Volume]) -> None:
        """`write` for a pod that may be running. Raises OpError(permanent) once it ends: then nothing stays of it."""
        self._refuse_ended(uid)
        self.write(uid, items, volumes)
        self._refuse_ended(uid, stopping=False)

    def _refuse_ended(self, uid: str, stopping: bool = True) -> None:
        marks = self.marks(uid)
        if marks is not None and marks.ended:
            self.drop_secrets(uid)  # podrun has removed them, perhaps before they were made again
            raise OpError("permanent", "the pod {} has ended".format(uid))
        if marks is not None and marks.stopping and stopping:
            raise OpError("permanent", "the pod {} is to stop".format(uid))

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

    def job_name(self, uid: str) -> str:
        """The name under which the pod's job is submitted, by submit.lock or job.qsub; empty: not known."""
        try:
            with self._pod(uid) as fd:
                name = str((_of_lock(fd) or {}).get("name", ""))
                if not name.endswith(self.name_end(uid)):
                    script = files.read_bounded("job.qsub", fd, _SMALL).decode("utf-8", "replace")
                    name = (_NAME_OPTION.findall(script) or [""])[-1]
        except OSError:
            return ""
        return name if name.endswith(self.name_end(uid)) else ""

    def name_end(self, uid: str) -> str:
        """How the name of the pod's PBS job ends. Nothing in the pod directory can say whose job it is; this does."""
        return ".{}.{}".format(uid, self.instance)

    def note_deleted(self, uid: str) -> None:
        """Leave word for a later helper that qdel has succeeded: else it would ask PBS twice for each such job."""
        with self._pod(uid) as fd:
            files.replace("job.deleted", fd, b"")

    def drop_secrets(self, uid: str) -> None:
        """Remove the secrets of a pod that has ended: a refresh may have made them again after podrun's removal."""
        with self._pod(uid) as fd:
            files.remove_tree("secrets", fd)

    def remove(self, uid: str) -> None:
        """Take the pod directory away at once, whatever it is; its content goes after it, see `empty_bin`."""
        with files.directory(self.pods) as pods:
            try:
                self._discard(uid, pods)
            except FileNotFoundError:
                pass

    def _discard(self, name: str, parent: int) -> None:
        gone = ".gone-{}-{}".format(name[:100], os.urandom(6).hex())
        with files.directory(self.pods) as pods:
            os.rename(name, gone, src_dir_fd=parent, dst_dir_fd=pods)
        self._bin.put(gone)

    def tidy(self) -> None:
        """Put into the bin what an earlier helper left half made or half removed."""
        with files.directory(self.pods) as pods:
            for name in files.names(pods):
                if name.startswith(".gone-") or (name.startswith(".new-") and _age(name, pods) > _STALE_STAGING):
                    self._bin.put(name)

    def empty_bin(self) -> None:
        """Remove what was put into the bin, one after the other: for a thread. Never returns."""
        while True:
            name = self._bin.get()
            try:
                with files.directory(self.pods) as pods:
                    files.remove_tree(name, pods)
            except OSError as error:
                print("{}/{} cannot be removed: {}".format(self.pods, name, error))

    def _pod(self, uid: str) -> Any:
        return _within(self.pods, uid)


@contextmanager
def _within(path: str, name: str) -> Iterator[int]:
    with files.directory(path) as parent, files.opened_up(name, parent) as fd:
        yield fd


def _write(fd: int, items: Iterable[File], volumes: Iterable[Volume]) -> None:
    write_tree(fd, list(items))
    for volume in volumes:
        write_volume(fd, volume)


def _names_of_ours(pod: int) -> "Set[str]":
    """Which of the helper's and podrun's names are in a pod directory, which may hold millions of others."""
    names = set(itertools.islice(files.names(pod), _MOST_NAMES))
    if len(names) < _MOST_NAMES:
        return names
    return {name for name in _OURS if files.exists(name, pod)}


def read_job_id(pod: int) -> Optional[str]:
    """The id in job.id; None when there is none or it is no id."""
    try:
        text = files.read_bounded("job.id", pod, 400).decode("ascii", "replace").strip()
    except OSError:
        return None
    return text if is_job_id(text) else None


def read_json(name: str, pod: int) -> Optional[Dict[str, Any]]:
    """A small JSON object of ours; None when it is missing or spoilt."""
    try:
        value = json.loads(files.read_bounded(name, pod, _SMALL).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _of_lock(pod: int) -> Optional[Dict[str, Any]]:
    try:
        with files.directory("submit.lock", pod) as lock:
            return read_json("owner", lock)
    except OSError:
        return None


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
    except OSError:
        return 0.0
