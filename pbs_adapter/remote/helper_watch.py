"""Reads pod directories into the board: all of them once, then those on the dirty list, each for itself.

A directory that is spoilt, or whose files do not answer, costs its own pod its news: it becomes an observation that
says so, is looked at again later, and keeps nobody waiting. So every read has a thread that may be given up.
"""

import threading
import time
import traceback
from collections import OrderedDict
from typing import Callable, Dict, Iterable, Set

from .helper_board import Board
from .helper_dirs import MOST_PODS, Spool
from .helper_submit import KeyedLock

DIRTY_BUSY, DIRTY_IDLE, BUSY_FOR = 0.5, 2.0, 60.0
#: So long a pod directory may take to be read before the others no longer wait for it, s.
PATIENCE = 10.0
_AGAIN = 5.0  # until a spoilt or slow directory is read again, s
_CROWDED = 60.0  # between two scans of a spool with more directories than can be
_STEP = 200  # directories read before the next are thought of
_READERS = 4
_MOST_HUNG = 64


class Readers:
    """Threads that read one directory each. One that hangs is replaced, up to a limit."""

    def __init__(self, read: Callable[[str], None]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._waiting: "OrderedDict[str, None]" = OrderedDict()
        self._running: Dict[str, float] = {}  # uid → since when, monotonic
        self._again: Set[str] = set()  # asked for while it is being read
        self._threads = 0

    def start(self, uids: Iterable[str]) -> None:
        """Have these directories read soon."""
        with self._changed:
            for uid in uids:
                if uid in self._running:
                    self._again.add(uid)
                else:
                    self._waiting[uid] = None
            self._staff()

    def finish(self, uids: Iterable[str]) -> None:
        """`start`, and wait until they are read, all but those that hang."""
        wanted = set(uids)
        self.start(wanted)
        with self._changed:
            while True:
                hung = self.hung()
                left = wanted.intersection(self._waiting).union(wanted.intersection(self._running))
                if left <= hung or len(hung) >= _READERS + _MOST_HUNG:
                    return
                self._staff()
                self._changed.wait(1.0)

    def hung(self) -> Set[str]:
        """Those whose files have not answered for PATIENCE seconds."""
        with self._changed:
            now = time.monotonic()
            return {uid for uid, since in self._running.items() if now - since >= PATIENCE}

    def _staff(self) -> None:
        wanted = min(len(self._waiting) + len(self._running), _READERS + min(_MOST_HUNG, len(self.hung())))
        while self._threads < wanted:
            self._threads += 1
            threading.Thread(target=self._run, name="reader", daemon=True).start()

    def _run(self) -> None:
        with self._changed:
            while self._waiting:
                uid, _ = self._waiting.popitem(last=False)
                self._running[uid] = time.monotonic()
                self._changed.release()
                try:
                    self._read(uid)
                except Exception:  # noqa: BLE001 - it is one directory's trouble
                    traceback.print_exc()
                finally:
                    self._changed.acquire()
                    del self._running[uid]
                    if uid in self._again:
                        self._again.discard(uid)
                        self._waiting[uid] = None
                    self._changed.notify_all()
            self._threads -= 1


class Watcher:
    """Reads all pod directories once, then those on the dirty list."""

    def __init__(self, spool: Spool, board: Board, on_end: Callable[[], None]) -> None:
        self.spool = spool
        self._board = board
        self._on_end = on_end
        self._locks = KeyedLock()  # what is read last of a directory is put on the board last
        self._readers = Readers(self._look)
        self._marked: Set[str] = set()  # taken from the dirty list, not read yet
        self._bad: Set[str] = set()  # to be read again without a mark
        self._bad_at = 0.0
        self.scanned = threading.Event()
        self.ours = True  # as it was last seen: for those who may not wait for files

    def refresh(self, uid: str, fresh: bool = False) -> None:
        """Read one pod directory and put it on the board. One that cannot be read is put there as such."""
        with self._locks.hold(uid):
            try:
                marks = self.spool.marks(uid)
            except Exception as error:  # noqa: BLE001 - whatever lies there, it is this pod's trouble alone
                self._spoilt(uid, "the pod directory cannot be read: {}".format(error))
                return
            self._bad.discard(uid)
            self._board.put_marks(uid, marks, fresh)
            if marks is not None and marks.ended:
                self.drop_secrets(uid)

    def read(self, uids: Iterable[str]) -> None:
        """`refresh` each, several at once; those whose files do not answer are put on the board as such."""
        self._readers.finish(uids)
        self._tell_hung()

    def is_ours(self) -> bool:
        """Whether no later helper has taken over: an old one would take its dirty marks and double the load on PBS."""
        return self.spool.is_ours()

    def run(self) -> None:
        """Never returns."""
        while not guarded(self._scan):
            time.sleep(DIRTY_IDLE)
        changed_at = time.monotonic()
        while True:
            busy = time.monotonic() - changed_at < BUSY_FOR
            time.sleep(DIRTY_BUSY if busy else DIRTY_IDLE)
            if guarded(self._take):
                changed_at = time.monotonic()

    def _look(self, uid: str) -> None:
        self.refresh(uid)
        entry = self._board.get(uid)
        if uid in self._marked and entry is not None and entry.marks.ended:
            self._on_end()
        self._marked.discard(uid)

    def _tell_hung(self) -> None:
        for uid in self._readers.hung():
            self._spoilt(uid, "the files of the pod directory have not answered for {:.0f} s".format(PATIENCE))

    def _spoilt(self, uid: str, text: str) -> None:
        self._bad.add(uid)
        self._board.put_problem(uid, text[:300])

    def drop_secrets(self, uid: str) -> None:
        """No job is there to need them any more."""
        try:
            self.spool.drop_secrets(uid)
        except FileNotFoundError:
            pass
        except OSError as error:
            print("the secrets of {} cannot be removed: {}".format(uid, error))

    def _scan(self) -> bool:
        uids = self.spool.uids()
        for start in range(0, len(uids), _STEP):
            self.read(uids[start : start + _STEP])
            self._board.put_alive()
        if len(uids) >= MOST_PODS:  # then nobody can say that a pod has no directory
            text = "{} holds more than {} entries: remove what hpc-bridge has not made"
            self._board.put_server(False, text.format(self.spool.pods, MOST_PODS))
            time.sleep(_CROWDED)
            return False
        self._board.put_scanned()
        self.scanned.set()
        return True

    def _take(self) -> bool:
        self.ours = self.is_ours()
        self._board.put_alive()
        if not self.ours:
            return False
        uids = self.spool.take_dirty()
        self._marked.update(uids)
        self._readers.start(uids)
        self._tell_hung()
        if self._bad and time.monotonic() - self._bad_at >= _AGAIN:
            self._bad_at = time.monotonic()
            self._readers.start(list(self._bad)[:_STEP])
        return bool(uids)


def guarded(step: Callable[[], bool]) -> bool:
    """Run one step of a loop that must outlive it: a full disk or an odd answer of PBS ends the step, not the loop."""
    try:
        return step()
    except Exception:  # noqa: BLE001 - logged; the next round tries again
        traceback.print_exc()
        return False
