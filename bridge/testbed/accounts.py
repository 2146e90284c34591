"""The user whose jobs a test cluster runs: a throw-away one when we are root, since jobs must not run as root."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
import time
from pathlib import Path

from bridge.testbed.errors import TestbedError
from bridge.testbed.packages import find_program
from bridge.testbed.processes import Process, processes_of

BUSY = 1
"""useradd's status when another process holds the lock on /etc/passwd."""


class Account:
    """An ordinary user. As root a new one, whose home is `home`, removed by `close`; otherwise the invoking user.

    name, uid, gid: as in the user database. home: the home directory; of the invoking user that is the real one, in
    which the test bed must write nothing. temporary: whether the user is ours alone.
    """

    def __init__(self, cluster: str, home: Path, log: Path) -> None:
        self.temporary = os.geteuid() == 0
        self._holder: Process | None = None
        if self.temporary:
            name = f"hpcb-{cluster}-{secrets.token_hex(2)}"
            _check_reachable(home.parent)
            self._holder = _create(name, home, log)
            entry = pwd.getpwnam(name)
            home.chmod(0o700)
        else:
            entry = pwd.getpwuid(os.geteuid())
        self.name, self.uid, self.gid, self.home = entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir)

    def own(self, *paths: Path) -> None:
        """Give files to the user."""
        if self.temporary:
            for path in paths:
                os.chown(path, self.uid, self.gid)

    def close(self) -> None:
        """End the throw-away user's processes, and remove the user; the home directory stays."""
        if self._holder is None:
            return
        deadline = time.monotonic() + 10
        while (left := processes_of(self.uid)) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        self._holder.stop()


def _check_reachable(folder: Path) -> None:
    for each in (folder, *folder.parents):
        if not each.stat().st_mode & 0o001:
            raise TestbedError(f"{each} cannot be entered by other users: a home directory there would be of no use")


def _create(name: str, home: Path, log: Path) -> Process:
    """Create the user; the process returned removes it when it is stopped, or when we die before that."""
    useradd, userdel = find_program("useradd"), find_program("userdel")
    if useradd is None or userdel is None:
        raise TestbedError("useradd and userdel are missing (Debian: the package passwd)")
    # "*" is no password but, unlike useradd's default, no lock either: sshd without PAM refuses locked accounts.
    options = ["--create-home", "--home-dir", str(home), "--shell", "/bin/bash", "--password", "*", "--no-log-init"]
    remove = [userdel, "--force", name]
    holder = Process(f"user {name}", ["sleep", "infinity"], log=log, grace=1, afterwards=[remove])
    deadline = time.monotonic() + 20
    while True:
        done = subprocess.run([useradd, *options, name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return holder
        if done.returncode != BUSY or time.monotonic() > deadline:
            holder.stop()
            raise TestbedError(f"user {name} cannot be created: {done.stderr.strip()}")
        time.sleep(0.1)
