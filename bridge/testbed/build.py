"""Find or build the programs of a Kubernetes control plane, etcd and three others, and of a worker node.

No container and no root is needed for it.

In this order: the folder named by KUBEBUILDER_ASSETS, the cache, a Go build into the cache. The build takes about five
minutes on two cores, once; its own caches (3.5 GB) are removed at its end, only one binary of 125 MB stays. Go checks
every module against the hashes in go/go.sum.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bridge.testbed.errors import TestbedError
from bridge.testbed.processes import Process

VERSION = "1.36.3"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
WORKER_PROGRAMS = ("kubelet", "kube-proxy")
SOURCES = Path(__file__).parent / "go"
WORKER_SOURCES = Path(__file__).parent / "go_worker"
OLDEST_GO = (1, 21)
"""From here on Go fetches the toolchain that go.mod asks for by itself (unless GOTOOLCHAIN forbids it)."""

Progress = Callable[[str], None]


def quiet(_: str) -> None:
    """A progress callback that says nothing."""


def cache_home() -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/hpc-bridge`, made when missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(base) / "hpc-bridge"
    home.mkdir(parents=True, exist_ok=True)
    return home


def binaries(progress: Progress = quiet) -> Path | None:
    """The folder with all PROGRAMS, built when there is none yet; None when there is no Go to build it with.

    Raises TestbedError when the build fails. `progress` is called every second while it runs.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and complete(Path(assets)):
        return Path(assets)
    return _cached("control-plane", SOURCES, PROGRAMS, progress)


def worker_binaries(progress: Progress = quiet) -> Path | None:
    """The same for WORKER_PROGRAMS: three more minutes, once, for the tests that want a real node."""
    return _cached("worker", WORKER_SOURCES, WORKER_PROGRAMS, progress)


def _cached(kind: str, sources: Path, programs: Sequence[str], progress: Progress) -> Path | None:
    target = cache_home() / f"{kind}-{VERSION}-{sources_hash(sources)}"
    if complete(target, programs):
        return target
    go = find_go()
    if go is None:
        return None
    with _locked(target.parent / "control-plane.lock", progress):
        if not complete(target, programs):  # another process may have built it while we waited for the lock
            _build(go, sources, programs, target, progress)
    return target


def complete(folder: Path, programs: Sequence[str] = PROGRAMS) -> bool:
    """Whether all programs are there and may be executed."""
    return all(os.access(folder / name, os.X_OK) for name in programs)


def sources_hash(sources: Path = SOURCES) -> str:
    """Names a build: twelve digits over the Go files."""
    digest = hashlib.sha256()
    for name in ("main.go", "go.mod", "go.sum"):
        digest.update((sources / name).read_bytes())
    return digest.hexdigest()[:12]


def find_go() -> str | None:
    """The go command on PATH if it is recent enough."""
    go = shutil.which("go")
    if go is None:
        return None
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/").stdout
    match = re.match(r"go(\d+)\.(\d+)", version)
    return go if match and (int(match[1]), int(match[2])) >= OLDEST_GO else None


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    started = time.monotonic()
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(f"waiting for another process that builds Kubernetes, {_elapsed(started)}")
                time.sleep(1)
        yield


def _build(go: str, sources: Path, programs: Sequence[str], target: Path, progress: Progress) -> None:
    """Build into a folder beside `target` and rename it into place. The lock is held: what else lies there is stale."""
    for stale in target.parent.glob(".build-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=target.parent))
    try:
        result = work / "result"
        for folder in ("result", "tmp"):
            (work / folder).mkdir()
        _compile(go, sources, work, result / "programs", progress)
        for name in programs:
            (result / name).symlink_to("programs")
        shutil.rmtree(target, ignore_errors=True)
        result.rename(target)
        progress("removing the caches of the build")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(go: str, sources: Path, work: Path, output: Path, progress: Progress) -> None:
    env = dict(os.environ)
    env |= {"GOCACHE": str(work / "cache"), "GOMODCACHE": str(work / "modules"), "GOTMPDIR": str(work / "tmp")}
    env |= {"GOFLAGS": "-modcacherw -buildvcs=false -mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
    started = time.monotonic()
    what = "the control plane's" if sources == SOURCES else "the worker node's"

    def fetched(log: str) -> str:
        return f"fetching {what} sources: {log.count('go: downloading')} modules"

    def run(argv: list[str], log: Path, describe: Callable[[str], str]) -> str:
        return _run(argv, sources, env, log, started, describe, progress)

    listing = run([go, "list", "-deps", "."], work / "list.log", fetched)
    total = sum(not line.startswith("go: ") for line in listing.splitlines())

    def compiled(log: str) -> str:
        return f"building {what} programs (once): {log.count(chr(10))} of {total} packages"

    package = "k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    stamps = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s -w", *(f"-X {package}.{name}={value}" for name, value in stamps.items())])
    command = [go, "build", "-v", "-trimpath", "-ldflags", flags, "-o", str(output), "."]
    run(command, work / "build.log", compiled)


def _run(
    argv: list[str],
    sources: Path,
    env: Mapping[str, str],
    log: Path,
    started: float,
    describe: Callable[[str], str],
    progress: Progress,
) -> str:
    """Run to the end, reporting once a second; returns the output. Raises TestbedError with its end on failure."""
    process = Process("the Go build", argv, log=log, env=env, cwd=sources, grace=2)
    try:
        while process.running:
            progress(f"{describe(log.read_text(errors='replace'))}, {_elapsed(started)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
    finally:
        process.stop()
    if process.returncode:
        raise TestbedError(f"Kubernetes cannot be built ({' '.join(argv[:2])}):\n{process.tail()}")
    return log.read_text(errors="replace")


def _elapsed(started: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
