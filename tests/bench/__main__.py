"""`make bench`: measure, print the table, write build/bench.json.

ONLY="submit latency" selects modules; PBS=user@host:port measures against any cluster (as OpenSSH reaches it), with
PBS_QUEUE a queue there that starts no jobs; figures that only the embedded PBS can give are then left out.
TRACE=file.swf[.gz] takes the figures of the wait estimate from another trace.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
from pathlib import Path

from rich.console import Console

from bridge.telemetry import VERSION
from tests.bench import figures
from tests.bench.figures import Figure
from tests.bench.stage import BenchError, Theatre

MODULES = (
    *("submit", "latency", "api", "load", "logs", "overhead"),
    *("fuzz", "census", "waits", "routing", "trust", "identity"),
)
REPORT = Path("build/bench.json")
REMOTE = Path("build/bench-remote.json")  # so that figures of two clusters do not mix


def main() -> int:
    """The exit status: 1 when a goal is missed or a measurement failed."""
    console = Console(stderr=True, soft_wrap=True)
    about = figures.machine()
    versions = {"hpc-bridge": VERSION, "python": platform.python_version(), "linux": platform.release()}
    chosen = os.environ.get("ONLY", "").replace(",", " ").split() or list(MODULES)
    found: list[Figure] = []
    failed: list[str] = []
    started = time.monotonic()

    def progress(message: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s  {message}[/]", highlight=False)

    with Theatre(os.environ.get("PBS"), os.environ.get("PBS_QUEUE"), progress) as theatre:
        versions |= theatre.versions()
        for name in chosen:
            progress(f"measuring {name}")
            try:
                for figure in importlib.import_module(f"tests.bench.{name}").measure(theatre):
                    progress(f"{figure.key} = {figure.value:.4g} {figure.unit} (goal {figure.goal or '-'})")
                    found.append(figure)
            except BenchError as error:
                failed.append(name)
                progress(f"[red]{name}: {error}[/]")
    figures.write(REMOTE if os.environ.get("PBS") else REPORT, figures.document(found, versions, about))
    figures.show(Console(), found, versions, about)
    return int(bool(failed) or any(figure.met is False for figure in found))


if __name__ == "__main__":
    sys.exit(main())
