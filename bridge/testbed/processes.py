"""Start and stop the programs of the test bed so that no process is left, whatever happens to us.

Each program runs below a guard (see guard.py) in a session of its own: Ctrl-C in the terminal reaches only this
process, which takes its programs down in order; when this process dies without a chance to, the guards do it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from bridge.testbed import guard
from bridge.testbed.errors import TestbedError

Check = Callable[[], bool]


class Process:
    """One supervised program. Its output, both streams, is appended to `log`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace: float = 5.0,
        afterwards: Sequence[Sequence[str]] = (),
    ) -> None:
        """Start `argv`.

        grace: seconds between SIGTERM and SIGKILL when it is stopped. env: the whole environment, ours if None.
        afterwards: commands that the guard runs once everything is gone, even when this process was killed.
        """
        self.name = name
        self.log = log
        self._grace = grace
        last = ["--finally", json.dumps([list(command) for command in afterwards])] if afterwards else []
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *last, str(grace), *map(str, argv)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )

    def __repr__(self) -> str:
        state = "running" if self.running else f"exit {self._guard.returncode}"
        return f"<Process {self.name} guard={self._guard.pid} {state}>"

    @property
    def running(self) -> bool:
        """Whether the guard, and therefore perhaps the program, still runs."""
        return self._guard.poll() is None

    @property
    def returncode(self) -> int | None:
        """The program's exit status (128 + n for signal n); None while it runs."""
        return self._guard.poll()

    @property
    def pids(self) -> list[int]:
        """The guard and all that runs below it, the program first after the guard; empty when stopped."""
        return [self._guard.pid, *guard.descendants(self._guard.pid)] if self.running else []

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM, SIGKILL after the grace, then everything that descends from it); do not wait."""
        if self.running:
            self._guard.send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> int:
        """Wait for its end; the exit status. Raises subprocess.TimeoutExpired."""
        return self._guard.wait(timeout)

    def stop(self) -> None:
        """Stop it and wait until nothing of it is left. Harmless when it has stopped already."""
        self.terminate()
        try:
            self._guard.wait(self._grace + 15)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{self.name} (process {self._guard.pid}) cannot be stopped") from None
        finally:
            if self._guard.stdin is not None:
                self._guard.stdin.close()

    def wait_until(self, check: Check, what: str, timeout: float = 60.0) -> None:
        """Poll `check` until it holds. Raises TestbedError when the program ends first, or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not check():
            if not self.running:
                raise TestbedError(f"{self.name} ended with status {self.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TestbedError(f"{self.name}: no {what} after {timeout:.0f} s:\n{self.tail()}")
            time.sleep(0.02)


class ProcessGroup:
    """Programs that are stopped together, the last one started first. A context manager."""

    def __init__(self) -> None:
        self._processes: list[Process] = []

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, process: Process) -> Process:
        """Take charge of a program."""
        self._processes.append(process)
        return process

    def remove(self, process: Process) -> None:
        """Give up a program that has been stopped."""
        self._processes.remove(process)

    @property
    def pids(self) -> list[int]:
        """Every process of every program."""
        return [pid for process in self._processes for pid in process.pids]

    def stop(self) -> None:
        """Stop all, newest first. An interruption does not skip the rest: their guards see our end."""
        while self._processes:
            self._processes[-1].stop()
            self._processes.pop()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """TCP ports of `host` that nobody uses now. All are held open until the last is found, so that they differ."""
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something listens on the port."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def processes_of(uid: int) -> list[int]:
    """The ids of all living processes whose real user is `uid` (by their status: the owner of /proc/N may differ)."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            lines = Path("/proc", entry, "status").read_text(errors="replace").splitlines()
        except OSError:  # it ended while we were looking
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields["Uid"].split()[0] == str(uid) and not fields["State"].startswith("Z"):
            found.append(int(entry))
    return found
