"""The control plane in a k3s container, for machines that have a Docker engine and neither binaries nor Go.

The container runs k3s as the invoking user, without its agent (no real node: the virtual nodes are the only ones), on
the host's network, so that the API server reaches kubelet ports on loopback, and below our own certificate authority,
so that it verifies the agent's certificate as the other way does.

Limits, compared with the four programs: Linux only; the API server calls kubelets as system:masters; restarting the
API server restarts the whole control plane; the datastore is SQLite, which is slower than etcd under many writes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable

from bridge.testbed.build import VERSION, Progress
from bridge.testbed.certs import CertificateAuthority, write_private
from bridge.testbed.components import START_TIMEOUT, Layout, apiserver_flags, controller_manager_flags
from bridge.testbed.errors import TestbedError
from bridge.testbed.processes import Process, free_ports

IMAGE = f"rancher/k3s:v{VERSION}-k3s1"


def available(progress: Progress) -> bool:
    """Whether a Docker engine runs here and has the image or can pull it; pulling is reported every second."""
    docker = shutil.which("docker")
    if docker is None or not _succeeds([docker, "version", "--format", "{{.Server.Version}}"]):
        return False
    if _succeeds([docker, "image", "inspect", IMAGE]):
        return True
    started = time.monotonic()

    def waiting() -> None:
        progress(f"pulling {IMAGE}, {time.monotonic() - started:.0f} s")

    return _succeeds([docker, "pull", "--quiet", IMAGE], waiting)


def _succeeds(argv: list[str], waiting: Callable[[], None] = lambda: None, timeout: float = 600) -> bool:
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + timeout
    try:
        while time.monotonic() < deadline:
            try:
                return process.wait(1) == 0
            except subprocess.TimeoutExpired:
                waiting()
        return False
    finally:
        process.kill()
        process.wait()


class K3sContainer:
    """The Backend in a container. Data and certificates lie in the layout's folder, at the same path inside."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._name = f"hpc-bridge-testbed-{uuid.uuid4().hex[:8]}"
        self._data = layout.workdir / "k3s"
        self._ports = free_ports(2)
        self._process: Process | None = None
        tls = self._data / "server" / "tls"
        tls.mkdir(parents=True)
        # k3s takes authorities that it finds. The one of the aggregation layer must differ: who holds a certificate
        # of it may act as anybody.
        front = CertificateAuthority(layout.workdir / "pki" / "front-proxy", "hpc-bridge testbed front proxy")
        for stem, ca in (("server-ca", layout.ca), ("client-ca", layout.ca), ("request-header-ca", front)):
            (tls / f"{stem}.crt").write_bytes(ca.cert_file.read_bytes())
            write_private(tls / f"{stem}.key", ca.key_file.read_bytes())

    def start(self, ready: Callable[[], bool]) -> None:
        """Run the container. See `Backend.start`."""
        docker = shutil.which("docker")
        if docker is None:
            raise TestbedError("the docker command has gone")
        layout = self._layout
        argv = [
            *(
                docker,
                "run",
                "--rm",
                "--name",
                self._name,
                "--network",
                "host",
                "--user",
                f"{os.getuid()}:{os.getgid()}",
            ),
            *("--volume", f"{layout.workdir}:{layout.workdir}", "--env", f"HOME={self._data}", IMAGE),
            *self._k3s_argv(),
        ]
        remove = [docker, "rm", "--force", self._name]
        self._process = Process("k3s", argv, log=layout.logs / "k3s.log", grace=10, afterwards=[remove])
        self._process.wait_until(ready, "answer to /readyz", START_TIMEOUT)

    def restart_apiserver(self, ready: Callable[[], bool]) -> None:
        """Stop and start the container; the data stays."""
        self.stop()
        self.start(ready)

    def stop(self) -> None:
        """Stop and remove the container."""
        if self._process is not None:
            self._process.stop()

    @property
    def pids(self) -> list[int]:
        """The docker client and its guard; the container's own processes belong to the engine."""
        return self._process.pids if self._process is not None else []

    def _k3s_argv(self) -> list[str]:
        layout = self._layout
        controller_port, scheduler_port = self._ports
        controller = [*controller_manager_flags(layout), f"--secure-port={controller_port}"]
        return [
            *("server", "--disable-agent", "--data-dir", str(self._data), "--bind-address", "127.0.0.1"),
            *("--https-listen-port", str(layout.port), "--egress-selector-mode", "disabled"),
            *("--disable", "coredns,servicelb,traefik,local-storage,metrics-server"),
            *("--disable-cloud-controller", "--disable-network-policy", "--disable-kube-proxy"),
            *("--flannel-backend", "none", "--write-kubeconfig", str(layout.workdir / "k3s.kubeconfig")),
            *(f"--kube-apiserver-arg={flag[2:]}" for flag in apiserver_flags(layout)),
            *(f"--kube-controller-manager-arg={flag[2:]}" for flag in controller),
            f"--kube-scheduler-arg=secure-port={scheduler_port}",
        ]
