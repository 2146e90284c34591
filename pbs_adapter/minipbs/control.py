"""Starting and stopping an embedded PBS from Python."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import fault

START_DEADLINE = 10.0


class Server:
    """The PBS installed at `prefix`, as a child process. Use it as a context manager, or `start` and `stop`.

    Leaving the context ends the jobs too; `stop()` alone leaves them running, to be adopted by the next `start`. When
    the process that holds this object dies, the server ends itself and all jobs.
    """

    def __init__(self, prefix: Path | str) -> None:
        self.prefix = Path(prefix)
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process else "stopped"
        return f"<minipbs {self.prefix} {state}>"

    @property
    def pid(self) -> int:
        """Of the server process. Raises RuntimeError when stopped."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def env(self) -> dict[str, str]:
        """What a shell on the login host needs: PATH with the commands first, PBS_EXEC."""
        path = os.environ.get("PATH", "/usr/bin:/bin")
        return {"PATH": f"{self.prefix / 'bin'}:{path}", "PBS_EXEC": str(self.prefix)}

    def start(self) -> Self:
        """Start the server and wait until it answers. Raises RuntimeError if it does not."""
        log_path = self.prefix / "var" / "private" / "server.log"
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [self.prefix / "sbin" / "minipbs-server"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    "PATH": "/usr/bin:/bin",
                    "LANG": "C.UTF-8",
                    **({"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}),
                },
            )
        deadline = time.monotonic() + START_DEADLINE
        while time.monotonic() < deadline:
            try:
                fault.ask(str(self.prefix), ["ping"])
                return self
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.01)
        tail = log_path.read_text(errors="replace")[-2000:]
        self.stop(kill_jobs=True)
        raise RuntimeError(f"minipbs did not start:\n{tail}")

    def stop(self, kill_jobs: bool = False) -> None:
        """Stop the server; with `kill_jobs` every process of every job is gone when this returns."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            fault.ask(str(self.prefix), ["stop", "kill" if kill_jobs else "keep"])
        except OSError:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def fault(self, name: str, value: str | int | float) -> None:
        """Turn a fault on or off, see `minipbs-fault`. Raises ValueError for an unknown one."""
        reply = fault.ask(str(self.prefix), [name, str(value)])
        if reply.startswith("error"):
            raise ValueError(reply.strip())

    def fill(self, user: str, count: int, *options: str) -> None:
        """Submit `count` jobs of `user` at once; options are qsub's, without any the jobs are held.

        Raises ValueError for what qsub would refuse.
        """
        reply = fault.ask(str(self.prefix), ["fill", user, str(count), *options], timeout=120.0)
        if reply.startswith("error"):
            raise ValueError(reply.strip())

    def stats(self) -> dict[str, Any]:
        """Connections to the server: `connections` in all, `last_minute` (epoch times), `refused`."""
        stats: dict[str, Any] = json.loads(fault.ask(str(self.prefix), ["stats"]))
        return stats

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(kill_jobs=True)
