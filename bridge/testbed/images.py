"""The images that the container tests run: Debian bases, and what docker/ builds on them.

A base comes from the engine, from the cache, from a registry where one is reachable, or is made with debootstrap, which
takes root and about a minute, once: it is then kept in `~/.cache/hpc-bridge/images/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

from bridge.testbed.build import Progress, cache_home, quiet
from bridge.testbed.docker import Engine, NoEngine, engine
from bridge.testbed.errors import TestbedError
from bridge.testbed.packages import ensure_packages, find_program
from bridge.testbed.processes import Process

BASES = {"debian:bookworm-slim": "bookworm", "debian:sid-slim": "sid"}
CLUSTER, AGENT = "hpc-bridge-cluster", "hpc-bridge:0.1.0"
_WITH_AUTHORITIES = "hpc-bridge-build-base"
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
# Debian's index of an old day is still good to install from; man pages and documentation are not needed.
_SETTINGS = {
    "etc/apt/apt.conf.d/90-hpc-bridge": 'Acquire::Check-Valid-Until "false";\nAPT::Install-Recommends "false";\n',
    "etc/dpkg/dpkg.cfg.d/90-hpc-bridge": "path-exclude /usr/share/doc/*\npath-exclude /usr/share/man/*\n"
    "path-exclude /usr/share/locale/*\n",
}


def prepare_containers(progress: Progress = quiet) -> str | None:
    """Get engine and base images; None when the container tests can run, else a sentence that says why not."""
    try:
        with engine(progress) as running:
            ensure_bases(running, progress)
    except (NoEngine, TestbedError) as error:
        return f"tests of containers are skipped: {error}"
    return None


def ensure_bases(running: Engine, progress: Progress = quiet) -> None:
    """Have all of BASES in the engine. Raises TestbedError."""
    for image, suite in BASES.items():
        if running.has(image):
            continue
        kept = cache_home() / "images" / f"{suite}.tar.gz"
        if not kept.is_file():
            progress(f"pulling {image}")
            if running.docker("pull", "--quiet", image, check=False, timeout=300).returncode == 0:
                continue
            _bootstrap(suite, kept, progress)
        progress(f"importing {image}")
        running.docker("import", str(kept), image)


def _bootstrap(suite: str, kept: Path, progress: Progress) -> None:
    if os.geteuid() != 0 or ensure_packages({"debootstrap": "debootstrap"}, progress):
        raise TestbedError(f"the base image {suite} can neither be pulled nor made (debootstrap, as root)")
    kept.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix=".debootstrap-", dir=kept.parent))
    root, part = work / "root", work / "root.tar.gz"
    argv = [str(find_program("debootstrap")), "--variant=minbase", suite, str(root)]
    # Its guard ends and removes everything, whatever becomes of us.
    process = Process("debootstrap", argv, log=work / "log", grace=5, afterwards=[["umount", "-q", f"{root}/proc"]])
    try:
        while process.running:
            progress(f"making the base image {suite} (once), {time.monotonic() - started:.0f} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        if process.returncode:
            raise TestbedError(f"debootstrap {suite} failed:\n{process.tail()}")
        _slim(root)
        subprocess.run(["tar", "-C", str(root), "--use-compress-program=gzip -1", "-cf", str(part), "."], check=True)
        part.rename(kept)
    finally:
        process.stop()
        shutil.rmtree(work, ignore_errors=True)


def _slim(root: Path) -> None:
    for name, text in _SETTINGS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for folder in ("var/lib/apt/lists", "var/cache/apt/archives", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir()


def build_cluster(running: Engine, checkout: Path, progress: Progress = quiet) -> str:
    """Build docker/cluster; the image's name."""
    progress("building the cluster image")
    running.docker("build", "--network", "host", "-f", "docker/cluster/Dockerfile", "-t", CLUSTER, str(checkout))
    return CLUSTER


def build_agent(running: Engine, checkout: Path, progress: Progress = quiet) -> str:
    """Build docker/agent from the wheel in build/dist; the image's name.

    pip trusts what this machine trusts: its authorities go into a base of the first stage, never into the result.
    """
    progress("building the agent image")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(_AUTHORITIES, Path(folder, "authorities.crt"))
        lines = ("FROM debian:bookworm-slim", "COPY authorities.crt /authorities.crt", "ENV PIP_CERT=/authorities.crt")
        Path(folder, "Dockerfile").write_text("\n".join(lines))
        running.docker("build", "-t", _WITH_AUTHORITIES, folder)
    base = f"BUILD_BASE={_WITH_AUTHORITIES}"
    where = ["--network", "host", "-f", "docker/agent/Dockerfile", "--build-arg", base]
    running.docker("build", *where, "-t", AGENT, str(checkout))
    return AGENT


def busybox_archive(name: str, command: list[str]) -> bytes:
    """An image of one static busybox, as `docker save` writes it; no registry has to be reached for it."""
    layer = io.BytesIO()
    program = Path(str(find_program("busybox"))).read_bytes()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "tmp", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
        for link in ("sh", "sleep", "wget", "nc", "cat"):
            entry = tarfile.TarInfo(f"bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {"architecture": "amd64", "os": "linux", "config": {"Cmd": command, "Env": ["PATH=/bin"]}}
    config |= {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
    text = json.dumps(config).encode()
    names = {"config": f"{hashlib.sha256(text).hexdigest()}.json", "layer": f"{digest}/layer.tar"}
    manifest = [{"Config": names["config"], "RepoTags": [name], "Layers": [names["layer"]]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        files = {
            names["config"]: text,
            names["layer"]: layer.getvalue(),
            "manifest.json": json.dumps(manifest).encode(),
        }
        for file, content in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
