"""The operations of the helper, each one function from a request to an answer; the connection is elsewhere."""

import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import helper_host as host
from .helper_board import Board
from .helper_budget import Budget, Ledger, name_of
from .helper_dirs import Marks, Spool
from .helper_errors import OpError, field, is_uid, pod_uid
from .helper_faults import reach
from .helper_logs import read_log
from .helper_pbs import QSUB_TIMEOUT, Pbs
from .helper_poll import Deleter, Poller
from .helper_records import query_of
from .helper_submit import Submitter
from .helper_views import ABSENT, View
from .helper_volumes import File, Volume
from .helper_watch import Watcher, guarded

PROTOCOL = 1
_MAX_WAIT = 300.0
_BINS = 2  # threads that remove: a tree may have millions of entries
_FIRST_COMMENT = 5.0  # after qsub PBS is asked this soon why the job waits, s
Answer = Tuple[Dict[str, Any], bytes]
Reading = Callable[[Dict[str, Any], Callable[[float], None]], Iterator[bytes]]


class Operations:
    """Everything after `hello`: built from its head, and thread-safe."""

    def __init__(self, head: Dict[str, Any]) -> None:
        instance = str(field(head, "instance", str))
        if not instance.replace("-", "").isalnum():
            raise OpError("permanent", "not an instance: {!r}".format(instance[:80]))
        cluster = str(field(head, "cluster", str))
        if not is_uid(cluster):
            raise OpError("permanent", "not the name of a cluster: {!r}".format(cluster[:80]))
        epoch = int(field(head, "epoch", int))
        token = os.urandom(8).hex()
        root = os.path.abspath(os.path.expanduser(str(field(head, "spool", str))))
        self.spool = Spool(root, instance, cluster, token)
        self.spool.lead(epoch)
        poll, lost_after = float(field(head, "poll", float)), float(field(head, "lost_after", float))
        pbs_exec = host.pbs_exec(head.get("pbs_exec"))
        self._ledger = Ledger(name_of(pbs_exec), root)
        self._pbs = Pbs(pbs_exec, Budget(int(field(head, "connections_per_minute", int)), self._ledger))
        self._board = Board(token)
        self._deleter = Deleter(self._pbs, self._board, self.spool)
        self._watcher = Watcher(self.spool, self._board, self._early)
        self._poller = Poller(self._pbs, self._board, self._watcher, self._deleter, poll, lost_after)
        self._deleter.on_deleted = self._early
        self._submitter = Submitter(self.spool, self._pbs)
        self.mutating: Dict[str, Callable[[Dict[str, Any], bytes], Answer]] = {
            "submit": self.submit,
            "write": self.write,
            "cancel": self.cancel,
            "remove": self.remove,
        }
        #: Answered in pieces, by a thread of their own; the second argument waits, and raises when nobody listens.
        self.streaming: Dict[str, Reading] = {"logs": self.logs, "census": self.census}

    def start(self) -> None:
        """Start the loops."""
        self._deleter.start()
        loops = [("watch", self._watcher.run), ("poll", self._poller.run), ("tidy", self._tidy)]
        for name, run in loops + [("bin", self.spool.empty_bin)] * _BINS:
            threading.Thread(target=run, name=name, daemon=True).start()

    def _tidy(self) -> None:

        def step() -> bool:
            self.spool.tidy()
            return True

        guarded(step)

    def greeting(self) -> Dict[str, Any]:
        """The answer to hello."""
        answer: Dict[str, Any] = dict(host.facts(), protocol=PROTOCOL, spool=self.spool.root, time=time.time())
        answer.update(pbs_exec=self._pbs.pbs_exec, runtimes=host.runtimes())
        answer["budget"] = "host" if self._ledger.common else "account"  # who shares the connections
        return answer

    def wait_for_submissions(self) -> None:
        """Return when every qsub that has begun has left its job.id."""
        self._submitter.wait_idle(QSUB_TIMEOUT + 60)

    def submit(self, head: Dict[str, Any], body: bytes) -> Answer:
        """qsub once for this pod → {job_id}."""
        uid, epoch = pod_uid(head), self._checked_epoch(head)
        items, volumes = contents_of(head, body)
        items.append(File("job.qsub", 0o600, str(field(head, "script", str)).encode("utf-8")))
        fresh = False
        try:
            job_id, fresh = self._submitter.submit(uid, str(field(head, "name", str)), items, volumes, epoch)
        finally:
            self._watcher.refresh(uid, fresh)
        self._poller.early(_FIRST_COMMENT)
        return {"job_id": job_id}, b""

    def write(self, head: Dict[str, Any], body: bytes) -> Answer:
        """Replace files and volumes of a pod."""
        uid = pod_uid(head)
        self._checked_epoch(head)
        self.spool.refresh(uid, *contents_of(head, body))
        return {}, b""

    def cancel(self, head: Dict[str, Any], body: bytes) -> Answer:
        """stop.json at once; qdel, soon, of a job that never claimed its directory or that must go by force."""
        uid, grace = pod_uid(head), int(field(head, "grace", int))
        force = bool(field(head, "force", bool, False))
        self._checked_epoch(head)
        reach("cancel.begin", uid)
        try:
            self.spool.stop(uid, grace, force)
        except OSError:
            if not force:
                raise  # without stop.json qdel alone must do: podrun understands its SIGTERM
        reach("cancel.asked", uid)
        try:
            with self._submitter.locks.hold(uid):
                marks = self._marks(uid, force)
                job_id = self._submitter.resolve(uid, marks) if marks is not None else None
        finally:
            self._watcher.refresh(uid)
        if job_id is None:
            self._board.put_view(uid, View(ABSENT, time.time()))  # resolved: there is no job
        elif marks is not None and (force or not marks.claimed) and not marks.ended:
            self._deleter.add(uid)
        self._early()
        return {}, b""

    def _marks(self, uid: str, force: bool) -> Optional[Marks]:
        """What the pod directory says; by force what was known of one that cannot be read: a job id, or nothing."""
        try:
            return self.spool.marks(uid)
        except OSError:
            entry = self._board.get(uid)
            if not force:
                raise
            return entry.marks if entry is not None and entry.marks.job_id is not None else None

    def remove(self, head: Dict[str, Any], body: bytes) -> Answer:
        """Remove the directory of a pod whose job is over."""
        uid = pod_uid(head)
        self._checked_epoch(head)
        with self._submitter.locks.hold(uid):
            self._watcher.refresh(uid)
            entry = self._board.get(uid)
            if entry is None:
                return {}, b""
            if not entry.marks.ended and entry.view.seen != ABSENT:
                self._early()
                raise OpError("permanent", "the PBS job of {} may still exist".format(uid))
            self.spool.remove(uid)
            self._watcher.refresh(uid)
        return {}, b""

    def jobs(self, head: Dict[str, Any], body: bytes) -> Answer:
        """The long poll."""
        wait = max(0.0, min(_MAX_WAIT, float(field(head, "wait", float))))
        return self._board.report(str(field(head, "after", str)), wait), b""

    def census(self, head: Dict[str, Any], pause: Callable[[float], None]) -> Iterator[bytes]:
        """PBS's server, queues, vnodes and everyone's jobs, as far as `parts` asks for them; `patience`: seconds."""
        parts = [str(part) for part in field(head, "parts", list)]
        return host.census(self._pbs, parts, max(1.0, min(60.0, float(field(head, "patience", float, 60.0)))))

    def logs(self, head: Dict[str, Any], pause: Callable[[float], None]) -> Iterator[bytes]:
        """The log of one container in pieces."""
        return read_log(self.spool, pod_uid(head), query_of(head), pause)

    def _early(self) -> None:
        self._poller.early()

    def _checked_epoch(self, head: Dict[str, Any]) -> int:
        epoch = int(field(head, "epoch", int))
        self.spool.check_epoch(epoch)
        return epoch


def contents_of(head: Dict[str, Any], body: bytes) -> Tuple[List[File], List[Volume]]:
    """The files and volumes of a request; `body` holds all contents in the order of the head. Raises OpError."""
    rest = memoryview(body)
    volumes: List[Volume] = []
    try:
        items, rest = _take(head.get("files") or [], rest)
        for volume in head.get("volumes") or []:
            inner, rest = _take(volume["files"], rest)
            volumes.append(Volume(str(volume["root"]), inner, volume.get("managed") is True))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OpError("permanent", "files or volumes of the request are malformed: {}".format(error)) from error
    if rest:
        raise OpError("permanent", "the body is {} bytes longer than its files".format(len(rest)))
    return items, volumes


def _take(entries: List[Dict[str, Any]], rest: memoryview) -> "Tuple[List[File], memoryview]":
    found = []
    for entry in entries:
        size = entry["size"]
        if not isinstance(size, int) or not 0 <= size <= len(rest):
            raise ValueError("size {!r}".format(size))
        found.append(File(str(entry["path"]), int(entry["mode"]), bytes(rest[:size])))
        rest = rest[size:]
    return found, rest
