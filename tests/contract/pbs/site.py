"""A small language for tests of one embedded PBS: submit, look, wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .runner import MiniRunner, Result

DEADLINE = 30.0


class Site:
    """One embedded PBS, seen from the shell of its ordinary user."""

    def __init__(self, runner: MiniRunner) -> None:
        self.runner = runner
        self.server = runner.server
        self.home: Path = runner.who.home

    def sh(self, command: str, user: str = "alice") -> Result:
        """Any command, whatever its exit status."""
        return self.runner.run(command, user)

    def ok(self, command: str, user: str = "alice") -> str:
        """The stdout of a command that has to succeed."""
        result = self.runner.run(command, user)
        assert result.exit_status == 0, result
        return result.text.strip()

    def script(self, name: str, text: str) -> str:
        """Write a script into the user's home, executable."""
        path = self.home / name
        path.write_text(text)
        path.chmod(0o755)
        return name

    def job(self, job_id: str) -> dict[str, Any]:
        """A job's attributes, finished or not; {} when PBS does not know it."""
        text = self.sh(f"qstat -x -t -f -F json '{job_id}'").text
        jobs: dict[str, Any] = json.loads(text).get("Jobs", {})
        found: dict[str, Any] = jobs.get(job_id, {})
        return found

    def until(self, job_id: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """A job's attributes as soon as the condition holds."""
        seen: dict[str, Any] = {}

        def look() -> bool:
            seen.clear()
            seen.update(self.job(job_id))
            return done(seen)

        eventually(look, lambda: f"{job_id}: {seen}")
        return seen

    def state(self, job_id: str, state: str, substate: int | None = None) -> dict[str, Any]:
        """A job's attributes as soon as it is in that state."""
        return self.until(
            job_id,
            lambda job: job.get("job_state") == state and substate in (None, job.get("substate")),
        )

    def running(self, job_id: str) -> dict[str, Any]:
        """A job that has really started (substate 42)."""
        return self.state(job_id, "R", 42)


def eventually(done: Callable[[], bool], told: Callable[[], str] = lambda: "") -> None:
    """Return as soon as the condition holds; fail when it does not within the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
