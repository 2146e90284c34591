"""The budget of PBS connections, one for a login host: whatever accounts, Kubernetes clusters and helpers share it.

Every PBS connection takes one of the host's reserved ports for a minute. So each helper writes down when it took one,
in a file of its own in a directory that all users of the host can write to, and reads everybody's: all of them together
are one token bucket. Nobody writes into another's file, and there is no lock: a user who lies can make the others slow,
down to the share that each helper has for itself alone, and can stop nobody. Two helpers that take at the same moment
do not see each other: then a burst is a little larger. Where no such directory is, the account's helpers share one in
the spool.
"""

import hashlib
import itertools
import os
import stat
import threading
import time
from typing import Dict, List, Optional

from . import helper_files as files

#: Directories of one host, for all its users: the first that root made, with the sticky bit, is taken.
SHARED = ("/dev/shm", "/var/tmp", "/tmp")
_PREFIX = "hpc-bridge-pbs."
_WINDOW = 600.0  # s of the past that decide; before it the bucket counts as full
_SHARE = 8  # a helper has this part of the budget whatever others write
_LOOK_AGAIN = 0.1  # s that the others' files are taken to be the same
_MOST_NAMES, _MOST_FILES, _FILES_OF_ONE = 20000, 64, 8
_LARGEST, _MOST_TIMES = 32 * 1024, 2000
#: For tests: other directories instead of SHARED, each a path; nobody else's helpers are there.
_INSTEAD = os.environ.get("HPC_BRIDGE_TEST_SHARED")


class Budget:
    """A token bucket of PBS connections: a third of `per_minute` at once, the rest evenly.

    So no minute ever has more than `per_minute` (a bucket that also refilled at that rate would let half as many again
    through in its first minute). `ledger` is what other helpers of this host took; without one they are not known.
    """

    def __init__(self, per_minute: int, ledger: "Optional[Ledger]" = None) -> None:
        self.capacity = max(4.0, per_minute / 3.0)
        self._rate = max(1.0, per_minute - self.capacity) / 60.0
        self._floor = max(3.0, self.capacity / _SHARE)
        self._ledger = ledger
        self._taken: List[float] = []
        self._changed = threading.Condition()

    def take(self, timeout: float, keep: int = 0) -> bool:
        """Wait for a token, leaving `keep` for those who matter more; False when `timeout` seconds did not suffice."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                now = time.monotonic()
                wait = self._wait(now, 1 + keep)
                if wait <= 0:
                    self._take(now)
                    return True
                if now >= deadline:
                    return False
                self._changed.wait(max(0.01, min(deadline - now, wait, 1.0)))

    def idle(self) -> bool:
        """Whether more than half is left, so that something optional may be done."""
        with self._changed:
            return self._left(time.monotonic()) > self.capacity / 2

    def _wait(self, now: float, wanted: float) -> float:
        """Seconds until so many tokens are there: in the common bucket, or in the one that nobody else draws from."""
        common = (wanted - self._left(now)) / self._rate
        rate = max(self._rate / _SHARE, 1 / 60.0)
        return min(common, (wanted - tokens(self._taken, now, self._floor, rate)) / rate)

    def _left(self, now: float) -> float:
        others = self._ledger.others(now) if self._ledger is not None else []
        return tokens(sorted(self._taken + others), now, self.capacity, self._rate, -self.capacity)

    def _take(self, now: float) -> None:
        self._taken = [at for at in self._taken if now - at < _WINDOW] + [now]
        if self._ledger is not None:
            self._ledger.write(self._taken)


def tokens(taken: List[float], now: float, capacity: float, rate: float, least: float = 0.0) -> float:
    """What a bucket holds from which one token was taken at each of these times, in order; never less than `least`.

    Below zero are those that were taken although there were none, and have to be made up for.

    >>> tokens([0.0, 0.0, 1.0], 2.0, 4.0, 0.5)
    2.0
    """
    left, before = capacity, None  # type: float, Optional[float]
    for at in taken:
        if before is not None:
            left = min(capacity, left + (at - before) * rate)
        left, before = max(least, left - 1), at
    return left if before is None else min(capacity, left + (now - before) * rate)


class Ledger:
    """The files in which the helpers of this host write down when each took a connection.

    `name` tells PBS installations apart; `spool` is the account's directory, for where there is none for all users.
    """

    def __init__(self, name: str, spool: str) -> None:
        found = [path for path in ([_INSTEAD] if _INSTEAD else SHARED) if _for_all(path)]
        self.common = bool(found)
        self._folder = found[0] if found else os.path.join(spool, "budget")
        if not found:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._prefix = "{}{}.".format(_PREFIX, name)
        self._own = "{}{}.{}".format(self._prefix, os.getuid(), os.urandom(8).hex())
        self._boot = boot_id()
        self._problem = ""
        self._tidy()
        self._others: List[float] = []
        self._read_again = 0.0

    def _tidy(self) -> None:
        """Remove what this user's helpers of long ago left, whatever PBS they used."""
        try:
            with files.directory(self._folder) as folder:
                for name in itertools.islice(files.names(folder), _MOST_NAMES):
                    if name.startswith(_PREFIX):
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if status.st_uid == os.getuid() and time.time() - status.st_mtime > _WINDOW:
                            os.unlink(name, dir_fd=folder)
        except OSError as error:
            self._say("cannot be tidied: {}".format(error))

    def others(self, now: float) -> List[float]:
        """When others took connections lately. What cannot be read, or cannot be, counts for nothing."""
        if now >= self._read_again:
            try:
                with files.directory(self._folder) as folder:
                    self._others = self._read(folder, now)
            except OSError as error:
                self._say("cannot be read: {}".format(error))
                self._others = []
            spent = time.monotonic() - now
            self._read_again = now + max(_LOOK_AGAIN, 20 * spent)  # somebody may have put thousands of files there
        return [at for at in self._others if at <= now]

    def write(self, taken: List[float]) -> None:
        """Tell the others. Where that fails they do not know of us."""
        text = "{}\n{}\n".format(self._boot, " ".join("{:.3f}".format(at - 0.001) for at in taken[-_MOST_TIMES:]))
        try:
            with files.directory(self._folder) as folder:
                files.replace(self._own, folder, text.encode("ascii"), 0o644)
        except OSError as error:
            self._say("cannot be written: {}".format(error))

    def _read(self, folder: int, now: float) -> List[float]:
        found: List[float] = []
        left: Dict[int, int] = {}  # owner → files of him that are still read
        for count, name in enumerate(files.names(folder)):
            if count >= _MOST_NAMES or len(found) >= _MOST_FILES * _MOST_TIMES or len(left) >= _MOST_FILES:
                break
            if name.startswith(self._prefix) and name != self._own:
                found += self._of_one(name, folder, now, left)
        return found

    def _of_one(self, name: str, folder: int, now: float, left: Dict[int, int]) -> List[float]:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            left[status.st_uid] = left.get(status.st_uid, _FILES_OF_ONE) - 1
            if left[status.st_uid] < 0:
                return []
            boot, _, times = files.read_bounded(name, folder, _LARGEST).decode("ascii").partition("\n")
            taken = [float(word) for word in times.split()[-_MOST_TIMES:]]
        except (OSError, ValueError):
            return []
        return [at for at in taken if 0 <= now - at < _WINDOW] if boot == self._boot else []

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            print("the budget in {} {}".format(self._folder, problem))


def name_of(pbs_exec: Optional[str]) -> str:
    """A word for a PBS installation: hosts that serve several have a budget for each."""
    return hashlib.sha256(os.path.realpath(pbs_exec or "/").encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _for_all(path: str) -> bool:
    """Whether every user of the host may make files there, and none may touch another's."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and status.st_mode & 0o1777 == 0o1777


def boot_id() -> str:
    """Names this start of this host."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
