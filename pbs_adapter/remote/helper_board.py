"""What is known of every pod directory now, and who wants to hear of changes: the memory behind the long poll.

Each change gets the next version. A cursor is "TOKEN.VERSION" with a token of this helper process, so that a cursor of
an earlier one asks for everything. A report that is long comes in pages, in the order of versions: the cursor of a page
is the version of its last change, so that a page that is lost is asked for again, and what changes meanwhile comes with
a later page. While everything is being told the cursor is "TOKEN.VERSION.START": removals before START are no news.
Thread-safe; nothing here touches disk or PBS, so that it answers while files or PBS hang, and says for how long.
"""

import heapq
import json
import threading
import time
from collections import OrderedDict
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .helper_dirs import Marks
from .helper_views import ABSENT, UNKNOWN, Missing, View, observation, submitted, without_job

_GONE_KEPT = 10000
PAGE_BYTES = 384 * 1024  # of JSON; a single observation may have more
PAGE_CHANGES = 1000
_GONE_BYTES = 80


class Entry(NamedTuple):
    """One pod directory. Times are monotonic seconds."""

    uid: str
    marks: Marks
    view: View
    version: int
    known_at: float = 0.0  # when the job id became known: a table asked for earlier says nothing about it
    detail_at: Optional[float] = None  # when qstat -f last showed it
    deleted_at: Optional[float] = None  # when qdel last succeeded
    missing: Optional[Missing] = None
    proven: str = ""  # the job id that is certainly this pod's: qsub answered with it, or PBS showed the job's name
    trouble: str = ""  # why the job id in the directory says nothing of this pod
    size: int = 0  # bytes of its observation as JSON


class _From(NamedTuple):
    """What a cursor says: changes after `version` are news, of removals those after `start` too."""

    version: int
    start: int
    full: bool


class Board:
    """Entries by UID, the server's state, and the condition that wakes the long polls."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._entries: "OrderedDict[str, Entry]" = OrderedDict()  # in the order of versions
        self._gone: Dict[str, int] = {}  # too
        self._gone_floor = 0
        self._version = 1
        self._read_at = self._polled_at = time.monotonic()
        self._meta: Tuple[bool, str, bool, bool] = (True, "", False, False)
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return "Board({} pods, version {}, {})".format(len(self._entries), self._version, self._meta)

    def entries(self) -> List[Entry]:
        """All entries, as they are now."""
        with self._changed:
            return list(self._entries.values())

    def get(self, uid: str) -> Optional[Entry]:
        """One entry."""
        with self._changed:
            return self._entries.get(uid)

    def put_marks(self, uid: str, marks: Optional[Marks], fresh: bool = False) -> None:
        """What the pod directory says now (None: it is gone). `fresh`: qsub has answered just now."""
        with self._changed:
            old = self._entries.get(uid)
            if marks is None:
                if old is not None:
                    self._forget(uid)
                return
            view = old.view if old is not None else View()
            known_at = old.known_at if old is not None else 0.0
            if marks.job_id is None:
                if old is None or (marks.locked, marks.claimed) != (old.marks.locked, old.marks.claimed):
                    view = without_job(marks, time.time())
            elif old is None or old.marks.job_id != marks.job_id:
                known_at = time.monotonic()
                view = submitted(time.time()) if fresh else View()
            entry = old or Entry(uid, marks, view, 0)
            if marks.job_id != entry.marks.job_id:
                entry = entry._replace(trouble="", missing=None)
            if fresh and marks.job_id is not None:
                entry = entry._replace(proven=marks.job_id)
            self._store(old, entry._replace(marks=marks, view=view, known_at=known_at))

    def put_problem(self, uid: str, problem: str) -> None:
        """The pod directory cannot be read now. What was known of it stays; of one never read nothing is concluded."""
        with self._changed:
            old = self._entries.get(uid)
            entry = old or Entry(uid, Marks(locked=True, claimed=True), View(), 0)
            self._store(old, entry._replace(marks=entry.marks._replace(problem=problem)))

    def put_proven(self, uid: str, job_id: str) -> None:
        """PBS has shown that the job of that id is this pod's."""
        with self._changed:
            if uid in self._entries:
                self._entries[uid] = self._entries[uid]._replace(proven=job_id)

    def put_trouble(self, uid: str, job_id: str, text: str, missing: Optional[Missing] = None) -> None:
        """The id in the pod directory says nothing of this pod: PBS's view of that job is not shown, the text is."""
        with self._changed:
            old = self._entries.get(uid)
            if old is not None and old.marks.job_id == job_id:
                view = old.view if old.view.seen == ABSENT else View(UNKNOWN, time.time())
                self._store(old, old._replace(view=view, trouble=text[:300], missing=missing or old.missing))

    def put_view(
        self, uid: str, view: View, missing: Optional[Missing] = None, detail_at: Optional[float] = None
    ) -> None:
        """What PBS says now; `missing` replaces what was noted before, `detail_at` only when given."""
        with self._changed:
            old = self._entries.get(uid)
            if old is not None:
                detail_at = old.detail_at if detail_at is None else detail_at
                self._store(old, old._replace(view=view, missing=missing, detail_at=detail_at))

    def put_deleted(self, uid: str) -> None:
        """qdel has succeeded just now."""
        with self._changed:
            if uid in self._entries:
                self._entries[uid] = self._entries[uid]._replace(deleted_at=time.monotonic())

    def put_scanned(self) -> None:
        """All pod directories have been read once."""
        self._put_meta(scanned=True)

    def put_alive(self) -> None:
        """The files of the account answer: the loop that reads them has come round."""
        self._read_at = time.monotonic()

    def put_server(self, up: bool, message: str = "") -> None:
        """How the bulk poll went."""
        self._polled_at = time.monotonic()
        self._put_meta(up=up, message=message[:4096])

    def _put_meta(self, up: Optional[bool] = None, message: str = "", scanned: bool = False) -> None:
        with self._changed:
            old = self._meta
            if scanned:
                self._meta = (old[0], old[1], True, old[3])
            elif up is not None:
                self._meta = (up, message, old[2], old[3] or up)
            if self._meta != old:
                self._version += 1
                self._changed.notify_all()

    def report(self, after: str, wait: float) -> Dict[str, Any]:
        """`models.JobsReport` as JSON: at once when there is anything newer than `after`, else after `wait` seconds."""
        deadline = time.monotonic() + wait
        with self._changed:
            self._changed.wait_for(lambda: self._meta[2], wait)
            since = self._since(after)
            while not since.full and since.version >= self._version and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
                since = self._since(after)  # in a long wait more may have been removed than is remembered
            return self._report(since)

    def _since(self, after: str) -> _From:
        """Where the next page begins; everything from the start for a cursor that means nothing (any more)."""
        token, _, rest = after.partition(".")
        version, _, start = rest.partition(".")
        if token == self._token and version.isdigit() and (not start or start.isdigit()):
            known = _From(int(version), int(start or version), False)
            if max(known.version, known.start) >= self._gone_floor:
                return known
        return _From(-1, self._version, True)

    def _report(self, since: _From) -> Dict[str, Any]:
        up, message, scanned, polled = self._meta
        observations: List[Dict[str, Any]] = []
        gone: List[str] = []
        size, last, more = 0, since.version, False
        for version, uid, entry in self._changes(since):
            added = entry.size if entry is not None else _GONE_BYTES
            if observations or gone:
                more = size + added > PAGE_BYTES or len(observations) + len(gone) >= PAGE_CHANGES
                if more:
                    break
            size, last = size + added, version
            if entry is None:
                gone.append(uid)
            else:
                observations.append(_observation(entry))
        unfinished = ".{}".format(since.start) if since.start > last else ""
        now = time.monotonic()
        return {
            "cursor": "{}.{}{}".format(self._token, last, unfinished) if more else self._cursor(),
            "full": since.full,
            "complete": scanned and polled,
            "more": more,
            "observations": observations,
            "gone": gone,
            "server_up": up,
            "server_message": message,
            "read_age": round(now - self._read_at, 1),
            "poll_age": round(now - self._polled_at, 1),
        }

    def _cursor(self) -> str:
        return "{}.{}".format(self._token, self._version)

    def _changes(self, since: _From) -> Iterator[Tuple[int, str, Optional[Entry]]]:
        """What is newer, in the order of versions, of which no two are equal."""
        found = ((e.version, e.uid, e) for e in self._entries.values() if e.version > since.version)
        known = max(since.version, since.start)
        lost = ((version, uid, None) for uid, version in self._gone.items() if version > known)
        return heapq.merge(found, lost)

    def _store(self, old: Optional[Entry], new: Entry) -> None:
        """Keep an entry; only what an observation shows, the time of asking aside, counts as a change."""
        same = old is not None and _shown(old) == _shown(new)
        if not same:
            self._version += 1
            size = len(json.dumps(_observation(new)))
            new = new._replace(version=self._version, size=size)
            self._gone.pop(new.uid, None)
            self._changed.notify_all()
        self._entries[new.uid] = new
        if not same:
            self._entries.move_to_end(new.uid)

    def _forget(self, uid: str) -> None:
        del self._entries[uid]
        self._version += 1
        self._gone[uid] = self._version
        while len(self._gone) > _GONE_KEPT:
            self._gone_floor = self._gone.pop(next(iter(self._gone)))
        self._changed.notify_all()


def _shown(entry: Entry) -> "Tuple[Marks, View, str]":
    return entry.marks, entry.view._replace(at=0.0), entry.trouble


def _observation(entry: Entry) -> Dict[str, Any]:
    marks = entry.marks._replace(problem=entry.marks.problem or entry.trouble)
    return observation(entry.uid, marks, entry.view)
