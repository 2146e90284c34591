"""Install the system packages that the test bed wants, where that is allowed: as root, on Debian and its relatives."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bridge.testbed.build import Progress, quiet

SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
"""Ordinary users have no sbin on PATH, where sshd lies."""

POLICY = Path("/usr/sbin/policy-rc.d")


def find_program(name: str) -> str | None:
    """Where a program is, the system administrator's folders included."""
    return shutil.which(name, path=SEARCH_PATH)


def ensure_packages(wanted: Mapping[str, str], progress: Progress = quiet) -> set[str]:
    """Install what is missing of `wanted` (package → a program in it); returns the packages that are still missing."""
    missing = {package for package, program in wanted.items() if find_program(program) is None}
    apt = find_program("apt-get")
    if not missing or apt is None or os.geteuid() != 0:
        return missing
    names = sorted(missing)
    install = [apt, "install", "--yes", "--no-install-recommends", *names]
    with _no_services_started():
        # The lists of packages may be empty or old: a second attempt after fetching them.
        done = _run(install, names, progress)
        done = done or (_run([apt, "update"], names, progress) and _run(install, names, progress))
    if done and "openssh-server" in missing and (systemctl := find_program("systemctl")):
        # The test bed runs servers of its own on loopback; it must not open the machine's port 22 at the next boot.
        subprocess.run([systemctl, "disable", "ssh.service"], capture_output=True, check=False)
    return {package for package in missing if find_program(wanted[package]) is None}


@contextlib.contextmanager
def _no_services_started() -> Iterator[None]:
    """Debian starts a server when it is installed, unless this file says no (101). An existing file is left alone."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _run(argv: list[str], names: list[str], progress: Progress) -> bool:
    started = time.monotonic()
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
        try:
            while True:
                progress(f"installing {', '.join(names)}, {time.monotonic() - started:.0f} s")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(1) == 0
        finally:
            process.terminate()  # dpkg finishes the package at hand
            process.wait()
