"""The loops that keep the board true: the dirty list, the bulk poll of PBS, and the qdels that are still owed.

Two clocks: status changes come from the dirty list every half second without any PBS command; PBS is asked every `poll`
seconds with two commands whatever the number of pods, and earlier when somebody asked for it and the budget allows.
"""

import threading
import time
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set

from .helper_board import Board, Entry
from .helper_dirs import Spool
from .helper_errors import OpError
from .helper_faults import reach
from .helper_pbs import Pbs, Result
from .helper_views import ABSENT, PRESENT, after_check, check_due, from_job, from_row, is_over, needs_detail
from .parse import ErrorClass, Job, ParseError, TableRow, parse_job_table, parse_jobs, parse_jobs_text

DIRTY_BUSY, DIRTY_IDLE, BUSY_FOR = 0.5, 2.0, 60.0
_EARLIEST = 1.0
_NEVER = float("inf")
_CLOSING_FIRST = 1.5
_DETAILS = 100  # ids a `qstat -f`
_CHECKS = 20  # missing jobs asked for by id, a poll
_DELETE_AGAIN = 60.0
_DELETERS = 2


class Watcher:
    """Reads all pod directories once, then those on the dirty list."""

    def __init__(self, spool: Spool, board: Board, on_end: Callable[[], None]) -> None:
        self._spool = spool
        self._board = board
        self._on_end = on_end
        self._mutex = threading.Lock()  # what is read last is put on the board last
        self.scanned = threading.Event()

    def refresh(self, uid: str, fresh: bool = False) -> None:
        """Read one pod directory and put it on the board."""
        with self._mutex:
            self._board.put_marks(uid, self._spool.marks(uid), fresh)

    def is_ours(self) -> bool:
        """Whether no later helper has taken over: an old one would take its dirty marks and double the load on PBS."""
        return self._spool.is_ours()

    def run(self) -> None:
        """Never returns."""
        self._until_done(self._scan)
        changed_at = time.monotonic()
        while True:
            busy = time.monotonic() - changed_at < BUSY_FOR
            time.sleep(DIRTY_BUSY if busy else DIRTY_IDLE)
            if _guarded(self._take):
                changed_at = time.monotonic()

    def _until_done(self, step: Callable[[], bool]) -> None:
        while not _guarded(step):
            time.sleep(DIRTY_IDLE)

    def _scan(self) -> bool:
        self._spool.tidy()
        for uid in self._spool.uids():
            self.refresh(uid)
        self._board.put_scanned()
        self.scanned.set()
        return True

    def _take(self) -> bool:
        if not self.is_ours():
            return False
        uids = self._spool.take_dirty()
        for uid in uids:
            self.refresh(uid)
            entry = self._board.get(uid)
            if entry is not None and entry.marks.ended:
                self._on_end()
        return bool(uids)


class Deleter:
    """qdel, one id a command, by a few threads within the budget. What fails is asked for again by the next poll."""

    def __init__(self, pbs: Pbs, board: Board, spool: Spool) -> None:
        self._pbs = pbs
        self._board = board
        self._spool = spool
        self._queue: Deque[str] = deque()
        self._pending: Set[str] = set()
        self._added = threading.Condition()
        self.on_deleted: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the threads."""
        for _ in range(_DELETERS):
            threading.Thread(target=self._run, name="qdel", daemon=True).start()

    def add(self, uid: str) -> None:
        """Delete the pod's job soon; at once known as wanted, so that nobody needs to wait for the budget."""
        with self._added:
            if uid not in self._pending:
                self._pending.add(uid)
                self._queue.append(uid)
                self._added.notify()

    def _run(self) -> None:
        while True:
            with self._added:
                self._added.wait_for(lambda: bool(self._queue))
                uid = self._queue.popleft()
            _guarded(lambda uid=uid: self._delete(uid))  # type: ignore[misc]
            with self._added:
                self._pending.discard(uid)

    def _delete(self, uid: str) -> bool:
        entry = self._board.get(uid)
        if entry is None or entry.marks.job_id is None or entry.view.seen == ABSENT or _deleted_lately(entry):
            return True
        reach("qdel.before", uid)
        if self._pbs.delete(entry.marks.job_id):
            reach("qdel.after", uid)
            self._board.put_deleted(uid)
            self.on_deleted()
            self._spool.note_deleted(uid)
        return True


class Poller:
    """The bulk poll: `qstat -u` for the states, one `qstat -f` for what is new, single ids for what is missing."""

    def __init__(
        self, pbs: Pbs, board: Board, watcher: Watcher, deleter: Deleter, poll: float, lost_after: float
    ) -> None:
        self._pbs = pbs
        self._board = board
        self._watcher = watcher
        self._deleter = deleter
        self._poll = poll
        self._lost_after = lost_after
        self._history = True
        self._closing: Set[str] = set()
        self._closing_wait = _CLOSING_FIRST
        self._wanted = _NEVER
        self._asked = threading.Condition()

    def early(self, within: float = 0.0) -> None:
        """Poll in `within` seconds rather than when it is due: something has probably changed in PBS."""
        with self._asked:
            self._wanted = min(self._wanted, time.monotonic() + within)
            self._asked.notify()

    def run(self) -> None:
        """Never returns. The pod directories come first: a poll is complete only for ids that are known."""
        self._watcher.scanned.wait()
        while True:
            started = time.monotonic()
            _guarded(self.poll)
            self._wait(started)

    def _wait(self, started: float) -> None:
        """Until the next poll is due, or one is wanted earlier and half of the budget is left.

        During a mass deletion it is not: the qdels come first, and their jobs are seen gone at the next poll.
        """
        latest = started + self._poll
        with self._asked:
            if self._closing:
                self._wanted = min(self._wanted, started + self._closing_wait)
            while time.monotonic() < latest:
                left = max(self._wanted, started + _EARLIEST) - time.monotonic()
                if left <= 0 and self._pbs.budget.idle():
                    break
                self._asked.wait(min(left if left > 0 else _EARLIEST, latest - time.monotonic()))
            self._wanted = _NEVER

    def poll(self) -> bool:
        """One bulk poll. True when PBS answered."""
        if not self._watcher.is_ours():
            self._board.put_server(False, "another helper has taken this account over")
            return False
        started = time.monotonic()
        try:
            rows = self._table()
        except (OpError, ParseError) as error:
            self._board.put_server(False, str(error))
            return False
        entries = [e for e in self._board.entries() if e.marks.job_id is not None and e.known_at < started]
        self._apply_rows(entries, rows)
        try:
            self._details(entries)
            unseen = [e for e in entries if _sequence(e.marks.job_id) not in rows]
            self._find_missing([e for e in unseen if e.view.seen != ABSENT])
        except OpError as error:
            self._board.put_server(False, error.message)
            return False
        self._board.put_server(True)
        self._delete_again()
        self._note_closing()
        return True

    def _table(self) -> Dict[str, TableRow]:
        result = self._pbs.query(["qstat", "-u", self._pbs.user, "-w"])
        if result.status != 0:
            raise OpError("pbs", "qstat: {}".format(result.text()))
        return {_sequence(row.job_id): row for row in parse_job_table(result.stdout)}

    def _apply_rows(self, entries: List[Entry], rows: Dict[str, TableRow]) -> None:
        now = time.time()
        for entry in entries:
            row = rows.get(_sequence(entry.marks.job_id))
            if row is not None:
                self._board.put_view(entry.uid, from_row(entry.view, row, now))

    def _details(self, entries: List[Entry]) -> None:
        """One `qstat -f` for the jobs that need it most: those never shown in their state, then the oldest comments."""
        clock, now = time.monotonic(), time.time()
        current = [e for e in map(self._board.get, [e.uid for e in entries]) if e is not None]
        wanted = [e for e in current if needs_detail(e.view, e.detail_at, clock)]
        wanted.sort(key=lambda e: (e.view.substate is not None, e.detail_at or 0.0))
        chosen = {str(e.marks.job_id): e.uid for e in wanted[:_DETAILS]}
        for job_id, job in (self._describe(list(chosen)) if chosen else {}).items():
            if job_id in chosen:
                self._board.put_view(chosen[job_id], from_job(job, now), detail_at=clock)

    def _describe(self, ids: List[str]) -> Dict[str, Job]:
        result = self._pbs.query(["qstat", "-E", "-f", "-F", "json"] + ids)
        parsed = parse_jobs(result.stdout)
        if parsed.valid_json:
            return parsed.jobs
        if result.status is None or not result.stdout.strip():
            raise OpError("pbs", "qstat -f: {}".format(result.text()))
        print("qstat -f -F json: {}; asking for text".format(parsed.problem))
        return parse_jobs_text(self._pbs.query(["qstat", "-E", "-f", "-w"] + ids).stdout).jobs

    def _find_missing(self, entries: List[Entry]) -> None:
        checks = 0
        for old in entries:
            self._watcher.refresh(old.uid)
            entry = self._board.get(old.uid)
            if entry is None or entry.marks.job_id is None:
                continue
            clock = time.monotonic()
            if is_over(entry.marks, entry.marks.deleted or entry.deleted_at is not None):
                self._board.put_view(entry.uid, entry.view._replace(seen=ABSENT, at=time.time()))
            elif check_due(entry.missing, clock, self._lost_after) and checks < _CHECKS:
                checks += 1
                job = self._ask(entry.marks.job_id)
                view, missing = after_check(entry.view, entry.missing, job, time.time(), clock, self._lost_after)
                self._board.put_view(entry.uid, view, missing)

    def _ask(self, job_id: str) -> Optional[Job]:
        """One job by its id, from the history where there is one; None: PBS knows no such job. Else OpError(pbs)."""
        if self._history:
            result = self._pbs.query(["qstat", "-x", "-f", "-F", "json", job_id], keep=1)
            job = self._job_of(result, job_id)
            if job is not None or result.error_class("qstat") == ErrorClass.UNKNOWN_JOB:
                return job
            self._history = "history" not in result.stderr.lower()
        result = self._pbs.query(["qstat", "-f", "-F", "json", job_id], keep=1)
        job = self._job_of(result, job_id)
        if job is None and result.error_class("qstat") not in (ErrorClass.UNKNOWN_JOB, ErrorClass.FINISHED):
            raise OpError("pbs", "qstat {}: {}".format(job_id, result.text()))
        return job

    def _job_of(self, result: Result, job_id: str) -> Optional[Job]:
        parsed = parse_jobs(result.stdout)
        return parsed.jobs.get(job_id)

    def _delete_again(self) -> None:
        """qdel is owed for every job that is to stop and has not started, also after a restart of the helper."""
        for entry in self._board.entries():
            wanted = entry.marks.stopping and (entry.marks.forced or not entry.marks.claimed)
            alive = entry.view.seen == PRESENT and entry.view.state not in ("E", "F")
            if wanted and alive and not _deleted_lately(entry):
                self._deleter.add(entry.uid)

    def _note_closing(self) -> None:
        """While jobs are about to leave PBS, poll sooner: 1.5 s, 3 s, 6 s … as long as it is the same jobs."""
        closing = {e.uid for e in self._board.entries() if e.view.seen == PRESENT and (e.marks.ended or e.deleted_at)}
        self._closing_wait = self._closing_wait * 2 if closing and closing == self._closing else _CLOSING_FIRST
        self._closing = closing


def _deleted_lately(entry: Entry) -> bool:
    """PBS has taken a qdel, and may have had no time yet to end the job."""
    return entry.deleted_at is not None and time.monotonic() - entry.deleted_at < _DELETE_AGAIN


def _sequence(job_id: Any) -> str:
    """The part of a job id that the table never cuts."""
    return str(job_id).split(".", 1)[0]


def _guarded(step: Callable[[], bool]) -> bool:
    """Run one step of a loop that must outlive it: a full disk or an odd answer of PBS ends the step, not the loop."""
    try:
        return step()
    except Exception:  # noqa: BLE001 - logged; the next round tries again
        traceback.print_exc()
        return False
