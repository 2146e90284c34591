"""Gets what the demo and the tests need of the machine, before either starts: `python -m bridge.testbed.prepare`.

Debian packages where we may install them, the programs of a control plane, and what tests in containers are made from.
Done once, it takes some seconds afterwards, for the start of a Docker engine where none runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from bridge.testbed import build, images, k3s
from bridge.testbed.control_plane import NO_WAY
from bridge.testbed.demo_interrupts import EXIT_STATUS, Interrupts
from bridge.testbed.demo_screen import Screen
from bridge.testbed.errors import TestbedError
from bridge.testbed.packages import ensure_packages
from bridge.testbed.worker import prepare_worker

PACKAGES = {"openssh-server": "sshd", "openssh-client": "ssh", "bubblewrap": "bwrap"}
WITHOUT = {
    "openssh-server": "clusters are reached by the local transport, and tests over SSH are skipped",
    "openssh-client": "tests that use its ssh are skipped",
    "bubblewrap": "containers run without a root of their own, and tests of that are skipped",
}


def packages(progress: build.Progress) -> list[str]:
    """Install what is missing; return a sentence for each package that still is."""
    missing = ensure_packages(PACKAGES, progress)
    return [f"{package} is missing and cannot be installed here: {WITHOUT[package]}" for package in sorted(missing)]


def control_plane(progress: build.Progress) -> Path | None:
    """Return the folder of its programs, built if need be; None: it will be k3s. Raises TestbedError for neither."""
    folder = build.binaries(progress)
    if folder is None and not k3s.available(progress):
        raise TestbedError(NO_WAY)
    return folder


def main() -> int:
    """Do all of it; the exit status."""
    interrupts = Interrupts()
    screen = Screen(Console())
    try:
        for sentence in packages(screen.progress):
            screen.line(sentence)
        control_plane(screen.progress)
        for get in (images.prepare_containers, prepare_worker):
            if why := get(screen.progress):
                screen.line(why)
    except KeyboardInterrupt:
        return EXIT_STATUS
    except TestbedError as error:
        screen.rest()
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        interrupts.ignore()
        screen.rest()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
