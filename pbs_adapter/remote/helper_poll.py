"""The loops that keep the board true as to PBS: the bulk poll, and the qdels that are still owed.

Two clocks: status changes come from the dirty list every half second without any PBS command (helper_watch.py); PBS is
asked every `poll` seconds with two commands whatever the number of pods, and earlier when somebody asked for it and
the budget allows.
"""

import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Set

from .helper_board import Board, Entry
from .helper_dirs import Spool
from .helper_errors import OpError
from .helper_faults import reach
from .helper_pbs import Pbs
from .helper_views import ABSENT, PRESENT, Missing, after_check, check_due, from_job, from_row, is_over, needs_detail
from .helper_watch import Watcher, guarded
from .parse import Job, ParseError, TableRow, parse_job_table, parse_jobs, parse_jobs_text

_EARLIEST = 1.0
_NEVER = float("inf")
_CLOSING_FIRST = 1.5
_DETAILS = 100  # ids a `qstat -f`
_CHECKS = 20  # missing jobs asked for by id, a poll
_DELETE_AGAIN = 60.0
_DELETERS = 2


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
            guarded(lambda uid=uid: self._delete(uid))  # type: ignore[misc]
            with self._added:
                self._pending.discard(uid)

    def _delete(self, uid: str) -> bool:
        entry = self._board.get(uid)
        if entry is None or entry.marks.job_id is None or entry.view.seen == ABSENT or _deleted_lately(entry):
            return True
        if not self._proven(entry, entry.marks.job_id):
            return True
        reach("qdel.before", uid)
        if self._pbs.delete(entry.marks.job_id):
            reach("qdel.after", uid)
            self._board.put_deleted(uid)
            self.on_deleted()
            self._spool.note_deleted(uid)
        return True

    def _proven(self, entry: Entry, job_id: str) -> bool:
        """Whether PBS says that it is this pod's job: job.id alone, which any job may write, deletes nothing."""
        if entry.proven == job_id:
            return True
        if entry.trouble or self._pbs.elsewhere(job_id):
            return False  # the poll looks for it by its name
        job = self._pbs.job(job_id)
        wrong = "" if job is None else self._pbs.not_of(job, self._spool.name_end(entry.uid))
        if wrong:
            self._board.put_trouble(entry.uid, job_id, wrong)
        return not wrong


class Poller:
    """The bulk poll: `qstat -u` for the states, one `qstat -f` for what is new, single ids for what is missing."""

    def __init__(
        self, pbs: Pbs, board: Board, watcher: Watcher, deleter: Deleter, poll: float, lost_after: float
    ) -> None:
        self._pbs = pbs
        self._board = board
        self._watcher = watcher
        self._spool = watcher.spool
        self._deleter = deleter
        self._poll = poll
        self._lost_after = lost_after
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
            guarded(self.poll)
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
        if not self._watcher.ours:  # not asked for here: files may hang, and PBS goes on
            self._board.put_server(False, "another helper has taken this account over")
            return False
        started = time.monotonic()
        try:
            rows = self._table()
        except (OpError, ParseError) as error:
            self._board.put_server(False, str(error))
            return False
        known = [e for e in self._board.entries() if e.marks.job_id is not None and e.known_at < started]
        if known and not self._pbs.server:
            self._pbs.elsewhere(str(known[0].marks.job_id), ask=True)  # else a row might be taken for another's job
        odd = [e for e in known if e.trouble or self._pbs.elsewhere(str(e.marks.job_id))]
        entries = [e for e in known if e not in odd] if odd else known
        self._apply_rows(entries, rows)
        try:
            self._details(entries)
            unseen = [e for e in entries if _sequence(e.marks.job_id) not in rows]
            self._find_missing([e for e in unseen if e.view.seen != ABSENT])
            self._find_odd([e for e in odd if e.view.seen != ABSENT])
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
            if job_id in chosen and self._is_proven(chosen[job_id], job_id, job):
                self._board.put_view(chosen[job_id], from_job(job, now), detail_at=clock)

    def _is_proven(self, uid: str, job_id: str, job: Job) -> bool:
        entry = self._board.get(uid)
        if entry is not None and entry.proven == job_id:
            return True
        wrong = self._pbs.not_of(job, self._spool.name_end(uid))
        if wrong:
            self._board.put_trouble(uid, job_id, wrong)
        else:
            self._board.put_proven(uid, job_id)
        return not wrong

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
        self._watcher.read([old.uid for old in entries])
        for old in entries:
            entry = self._board.get(old.uid)
            if entry is None or entry.marks.job_id is None:
                continue
            clock = time.monotonic()
            if is_over(entry.marks, entry.marks.deleted or entry.deleted_at is not None):
                self._gone(entry)
            elif check_due(entry.missing, clock, self._lost_after) and checks < _CHECKS:
                checks += 1
                self._look_for(entry, entry.marks.job_id, clock)

    def _look_for(self, entry: Entry, job_id: str, clock: float) -> None:
        """Ask for one job by its id. What PBS has against that id is its pod's trouble, not the server's."""
        try:
            job = self._pbs.job(job_id)
        except OpError as error:
            if error.kind != "permanent":
                raise
            self._board.put_trouble(entry.uid, job_id, error.message)
            return
        if job is not None and not self._is_proven(entry.uid, job_id, job):
            return
        view, missing = after_check(entry.view, entry.missing, job, time.time(), clock, self._lost_after)
        self._board.put_view(entry.uid, view, missing)
        if view.seen == ABSENT:
            self._watcher.drop_secrets(entry.uid)

    def _gone(self, entry: Entry) -> None:
        self._board.put_view(entry.uid, entry.view._replace(seen=ABSENT, at=time.time()))
        self._watcher.drop_secrets(entry.uid)

    def _find_odd(self, entries: List[Entry]) -> None:
        """Jobs whose id says nothing here: of another server (a former name of ours?), or of another pod.

        They are looked for by their name. One that is not found may run elsewhere all the same: it is said to be
        unknown, and counts as gone only when its pod ends, or is to stop and does not show that it has started.
        """
        checks = 0
        self._watcher.read([old.uid for old in entries])
        for old in entries:
            entry, clock = self._board.get(old.uid), time.monotonic()
            if entry is None or entry.marks.job_id is None:
                continue
            if is_over(entry.marks, False):
                self._gone(entry)
            elif check_due(entry.missing, clock, self._lost_after) and checks < _CHECKS:
                checks += 1
                self._look_by_name(entry, entry.marks.job_id, clock)

    def _look_by_name(self, entry: Entry, job_id: str, clock: float) -> None:
        name = self._spool.job_name(entry.uid)
        found = self._pbs.find(name) if name else None
        if found is not None and found != job_id:
            self._spool.set_job_id(entry.uid, found)
            self._watcher.refresh(entry.uid)
            return
        text = entry.trouble or "PBS job {} is not of this cluster's server {}".format(job_id, self._pbs.server)
        self._board.put_trouble(entry.uid, job_id, text, Missing(clock, clock, False))
        if entry.marks.stopping and (entry.marks.forced or not entry.marks.claimed):
            self._gone(entry)

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
