"""A Docker engine for the container tests: the one that runs, else one of our own, which ends with us.

Ours keeps its data in the user's cache and listens on a socket in a temporary folder, so that it meddles with no engine
that the machine may start later, and a second run finds its images.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bridge.testbed.build import Progress, cache_home, quiet
from bridge.testbed.errors import TestbedError
from bridge.testbed.packages import SEARCH_PATH, ensure_packages, find_program
from bridge.testbed.processes import Process

PACKAGES = {"docker.io": "dockerd", "iptables": "iptables", "docker-compose": "docker-compose"}
PATIENCE = 900.0


class NoEngine(Exception):
    """There is no Docker engine here and none can be started; the text says why."""


@dataclass(frozen=True)
class Engine:
    """A running engine. host: as DOCKER_HOST wants it; empty for the command line's own default."""

    host: str = ""

    @property
    def env(self) -> dict[str, str]:
        """The environment in which docker, compose and testcontainers find it."""
        return os.environ | ({"DOCKER_HOST": self.host} if self.host else {}) | {"TESTCONTAINERS_RYUK_DISABLED": "true"}

    def docker(
        self, *args: str, input: bytes | None = None, check: bool = True, timeout: float = 900.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker`; with `check`, a failure raises TestbedError with what it said."""
        done = subprocess.run(
            ["docker", *args], input=input, capture_output=True, env=self.env, check=False, timeout=timeout
        )
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if check and done.returncode:
            said = "\n".join((out + err).splitlines()[-25:])
            raise TestbedError(f"docker {' '.join(args[:4])}: exit status {done.returncode}\n{said}")
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def has(self, image: str) -> bool:
        """Whether the engine has this image."""
        return self.docker("image", "inspect", image, check=False).returncode == 0


@contextlib.contextmanager
def engine(progress: Progress = quiet) -> Iterator[Engine]:
    """The engine for as long as the context lasts. Raises NoEngine."""
    existing = Engine(os.environ.get("DOCKER_HOST", ""))
    if shutil.which("docker") and existing.docker("version", check=False, timeout=60).returncode == 0:
        ensure_packages({"docker-compose": "docker-compose"}, progress)
        yield existing
        return
    if os.geteuid() != 0:
        raise NoEngine("no Docker engine answers, and only root can start one")
    missing = ensure_packages(PACKAGES, progress) - {"docker-compose"}
    if missing:
        raise NoEngine(f"no Docker engine answers, and {', '.join(sorted(missing))} cannot be installed here")
    work = Path(tempfile.mkdtemp(prefix="hpc-bridge-docker-"))
    try:
        with _alone(progress):
            process, own = _start(work, progress)
            try:
                yield own
            finally:
                process.stop()
    finally:
        _unmount(work)
        shutil.rmtree(work, ignore_errors=True)


def _unmount(folder: Path) -> None:
    """The engine leaves the mount of its network namespace behind, which would keep the folder."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in reversed([path for path in mounted if path.startswith(f"{folder}/")]):
        subprocess.run(["umount", path], capture_output=True, check=False)


@contextlib.contextmanager
def _alone(progress: Progress) -> Iterator[None]:
    """One engine at a time may have the data folder."""
    deadline = time.monotonic() + PATIENCE
    with (cache_home() / "docker.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NoEngine("another process keeps the test bed's Docker engine busy") from None
                progress("waiting for another process that uses the test bed's Docker engine")
                time.sleep(1)
        yield


def _start(work: Path, progress: Progress) -> tuple[Process, Engine]:
    progress("starting a Docker engine")
    program = find_program("dockerd")
    if program is None or shutil.which("docker") is None:
        raise NoEngine("dockerd, or docker on PATH, is missing (Debian: the package docker.io)")
    own = Engine(f"unix://{work}/docker.sock")
    argv = [program, "--host", own.host, "--data-root", str(cache_home() / "docker"), "--exec-root", str(work / "run")]
    argv += ["--pidfile", str(work / "docker.pid")]
    process = Process("dockerd", argv, log=work / "dockerd.log", env=os.environ | {"PATH": SEARCH_PATH}, grace=20.0)
    try:
        process.wait_until(lambda: own.docker("version", check=False).returncode == 0, "answering Docker engine")
    except TestbedError as error:
        process.stop()
        raise NoEngine(str(error)) from error
    return process, own
