"""qsub at most once for a pod, whatever is killed in between.

    pod directory whole → submit.lock/ (holds who and under which job name) → qsub → job.id

A lock without an id means that a qsub may have happened. It is resolved before anything else is done: wait until
whoever holds it is gone, look for the job by its name (it carries the pod's UID), for `claim` and for status.json. Only
when all say no, twice, may qsub run again. podrun itself refuses a second start, so that even then nothing runs twice.
"""

import json
import os
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import helper_files as files
from .helper_budget import boot_id
from .helper_dirs import Marks, Spool, read_json
from .helper_errors import OpError
from .helper_faults import reach
from .helper_pbs import QSUB_TIMEOUT, Pbs, Result
from .helper_volumes import File, Volume
from .parse import ErrorClass, is_job_id, job_id_in

_LOCK = "submit.lock"
#: The shell tells its process id before it runs job.qsub, so that a later helper can see whether it still does.
_RUN = ["/bin/sh", "-c", "echo $$ >submit.lock/pid && . ./job.qsub"]
_NO_QSUB = (126, 127)  # the shell found none: a mistake in the cluster's settings, not the pod's
_SETTLE = 2.0  # between the two look-ups that say "no such job", s
_CANCELLED = OpError("permanent", "cancelled before it was submitted")


class KeyedLock:
    """One mutex a pod UID, kept only while somebody has or wants it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: Dict[str, Tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Wait for the mutex of `key` and hold it."""
        with self._mutex:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)


class Submitter:
    """Thread-safe. `check_epoch` is called again right before qsub."""

    def __init__(self, spool: Spool, pbs: Pbs) -> None:
        self._spool = spool
        self._pbs = pbs
        self._first_seen: Dict[str, float] = {}  # uid → when its foreign lock was first met, monotonic
        self._critical = 0
        self._left_critical = threading.Condition()
        self.locks = KeyedLock()

    def submit(self, uid: str, name: str, items: List[File], volumes: List[Volume], epoch: int) -> "Tuple[str, bool]":
        """The job id of the pod, and whether qsub ran for it now. Raises OpError, and OSError for the file system."""
        with self.locks.hold(uid):
            reach("submit.begin", uid)
            if not self._spool.stage(uid, items, volumes):
                known = self._known(uid)
                if known is not None:
                    return known, False
                self._spool.write(uid, items, volumes)
            reach("submit.staged", uid)
            with self._in_critical():
                return self._qsub(uid, name, epoch), True

    def wait_idle(self, timeout: float) -> None:
        """Return when no qsub is between its lock and its job.id, or after `timeout` seconds."""
        with self._left_critical:
            self._left_critical.wait_for(lambda: self._critical == 0, timeout)

    @contextmanager
    def _in_critical(self) -> Iterator[None]:
        with self._left_critical:
            self._critical += 1
        try:
            yield
        finally:
            with self._left_critical:
                self._critical -= 1
                self._left_critical.notify_all()

    def resolve(self, uid: str, marks: Marks) -> Optional[str]:
        """The job id of a pod directory, found if need be; None: it certainly has no job. Hold its lock meanwhile.

        Raises OpError(retry, pbs) while that cannot be said.
        """
        if marks.job_id is not None or not (marks.locked or marks.claimed):
            return marks.job_id
        name, busy = self._lock_state(uid)
        if busy:
            raise OpError("retry", "the submission of {} is still under way".format(uid))
        name = name or self._spool.job_name(uid)
        job_id = self._look(uid, name)
        if job_id is None and marks.locked and not marks.claimed:
            time.sleep(_SETTLE)
            job_id = self._look(uid, name)
        if job_id is not None:
            self._spool.set_job_id(uid, job_id)
        elif not marks.claimed:
            self._unlock(uid)
        self._first_seen.pop(uid, None)
        return job_id

    def _known(self, uid: str) -> Optional[str]:
        """The job of a directory that exists already; None: qsub may run. Raises OpError where it must not."""
        marks = self._spool.marks(uid)
        if marks is None:
            raise OpError("retry", "the pod directory has just been removed")
        job_id = self.resolve(uid, marks)
        if job_id is not None:
            return job_id
        if marks.stopping:
            raise _CANCELLED
        if marks.claimed:
            raise OpError("permanent", "the pod has been started once, but its PBS job id is not known any more")
        return None

    def _look(self, uid: str, name: str) -> Optional[str]:
        job_id = self._pbs.find(name) if name else None
        if job_id is None:
            marks = self._spool.marks(uid)
            told = str((marks.status or {}).get("job_id") or "") if marks else ""
            job_id = told if is_job_id(told) else None
        return job_id

    def _qsub(self, uid: str, name: str, epoch: int) -> str:
        with files.directory(self._spool.pod_path(uid)) as pod:
            _lock(pod, name)
            try:
                self._spool.check_epoch(epoch)
                if files.exists("stop.json", pod):
                    raise _CANCELLED
            except OpError:
                files.remove_tree(_LOCK, pod)
                raise
            reach("submit.locked", uid)
            result = self._pbs.run(_RUN, QSUB_TIMEOUT, self._spool.pod_path(uid))
            reach("submit.queued", uid)
            job_id = job_id_in(result.stdout.decode("utf-8", "replace"))
            if result.status == 0 and job_id and not self._pbs.elsewhere(job_id, ask=True):
                files.replace("job.id", pod, job_id.encode("ascii") + b"\n", sync=True)
                reach("submit.known", uid)
                return job_id
            _release(pod, name)
        if result.status == 0 and job_id:
            raise self._refused(uid, job_id)
        return self._failed(uid, name, result)

    def _refused(self, uid: str, job_id: str) -> OpError:
        """The job went to a server that nobody here will ask about it: it must not stay there."""
        try:
            deleted = self._pbs.delete(job_id)
        except OpError:
            deleted = False
        if deleted:
            self._unlock(uid)
        end = "the job was deleted" if deleted else "the job could not be deleted there"
        text = "qsub made job {}, but the PBS server of this cluster is {}: {}; see hpc-bridge doctor"
        return OpError("rejected", text.format(job_id, self._pbs.server, end))

    def _failed(self, uid: str, name: str, result: Result) -> str:
        """qsub gave no id: raise what that means, or return the id where the job exists all the same."""
        kind = result.error_class("qsub") if result.status != 0 else ErrorClass.OUTCOME_UNKNOWN
        if result.status in _NO_QSUB:
            kind = ErrorClass.RETRY
        if kind == ErrorClass.OUTCOME_UNKNOWN:
            marks = self._spool.marks(uid) or Marks()
            try:
                job_id = self.resolve(uid, marks)
            except OpError as error:
                raise OpError("outcome", "qsub: {}; {}".format(result.text(), error.message)) from error
            if job_id is not None:
                return job_id
            raise OpError("retry", "qsub: {}; there is no such job".format(result.text()))
        self._unlock(uid)
        text = "qsub: {} (exit status {})".format(result.text(), result.status)
        kinds = {ErrorClass.LIMIT: "backlog", ErrorClass.PERMANENT: "rejected", ErrorClass.SITE: "site"}
        raise OpError(kinds.get(kind, "pbs"), text)

    def _lock_state(self, uid: str) -> "Tuple[str, bool]":
        """(job name, whether the submission may still be going on) of the lock of a pod directory."""
        path = self._spool.pod_path(uid)
        with files.directory(path) as pod:
            try:
                with files.directory(_LOCK, pod) as lock:
                    owner = read_json("owner", lock) or {}
                    pid = files.read_bounded("pid", lock, 40).strip() if files.exists("pid", lock) else b""
            except (FileNotFoundError, NotADirectoryError):
                return "", False
        busy = owner.get("state") != "released" and _may_live(owner)
        waited = time.monotonic() - self._first_seen.setdefault(uid, time.monotonic())
        busy = busy and waited < QSUB_TIMEOUT + 30
        return str(owner.get("name", "")), busy or _runs_in(pid, path)

    def _unlock(self, uid: str) -> None:
        with files.directory(self._spool.pod_path(uid)) as pod:
            files.remove_tree(_LOCK, pod)


def _identity() -> Dict[str, Any]:
    """Names this process so that a helper on the same host can tell whether it still runs."""
    return {"host": os.uname().nodename, "boot": boot_id(), "pid": os.getpid(), "start": _start_time(os.getpid())}


def _may_live(owner: Dict[str, Any]) -> bool:
    """Whether the helper that took a lock may still be at it. On another host nobody can say: then yes."""
    here = _identity()
    if owner.get("boot") != here["boot"]:
        return bool(owner.get("host") != here["host"])
    if owner.get("pid") == here["pid"]:
        return False  # our own earlier attempt: the caller holds this pod's mutex, so it is over
    pid = owner.get("pid")
    return isinstance(pid, int) and _start_time(pid) == owner.get("start")


def _start_time(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is none, or one that has ended (a zombie)."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
    except (OSError, IndexError):
        return ""


def _runs_in(pid: bytes, path: str) -> bool:
    """Whether that process is the submission of this pod: it runs in its directory."""
    if not pid.isdigit():
        return False
    try:
        return os.path.samefile("/proc/{}/cwd".format(int(pid)), path)
    except OSError:
        return False


def _lock(pod: int, name: str) -> None:
    """Take the lock with its owner in it, by one rename. Raises OpError(retry) when it is taken."""
    temporary = ".lock-{}".format(os.urandom(6).hex())
    os.mkdir(temporary, 0o700, dir_fd=pod)
    with files.directory(temporary, pod) as fd:
        files.replace("owner", fd, _owner(name, "running"), sync=True)
    try:
        os.rename(temporary, _LOCK, src_dir_fd=pod, dst_dir_fd=pod)
    except OSError as error:
        files.remove_tree(temporary, pod)
        raise OpError("retry", "the submission is under way") from error


def _release(pod: int, name: str) -> None:
    """Say that this attempt is over although its outcome is not known: others need not wait for us."""
    with files.directory(_LOCK, pod) as fd:
        files.replace("owner", fd, _owner(name, "released"))


def _owner(name: str, state: str) -> bytes:
    return json.dumps(dict(_identity(), name=name, state=state)).encode("ascii")
