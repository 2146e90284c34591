"""A Kubernetes control plane on loopback for the demo and the end-to-end tests: no nodes, RBAC on, all of it verified.

It is the real one: what a kubelet may send, and what happens to it afterwards, is answered by kube-apiserver, the
scheduler and the controllers themselves, never by a double of ours.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bridge.testbed import build, k3s
from bridge.testbed.certs import KUBELET_CLIENT, CertificateAuthority
from bridge.testbed.components import LOOPBACK, START_TIMEOUT, Backend, Components, Layout, prepare
from bridge.testbed.errors import TestbedError
from bridge.testbed.kubectl import find_kubectl, write_kubeconfig
from bridge.testbed.processes import free_ports

NO_WAY = """no control plane can be had here; any one of these will do:
  - KUBEBUILDER_ASSETS set to a folder with etcd, kube-apiserver, kube-controller-manager and kube-scheduler
  - Go 1.26 on PATH (1.21 or later fetches it by itself): it is then built once, in about five minutes
  - a running Docker engine that can pull k3s"""


class ControlPlane:
    """A context manager; `start` returns when pods can be created (the default ServiceAccount exists).

    url, ca_file: how to reach the API server, and what its certificate is signed with (it also signs its client
    certificate towards kubelets). ca: the authority itself. admin_kubeconfig: system:masters. audit_log: JSON lines,
    see `components.audit_policy`. logs: a file for each program. workdir: all of it; removed at the end unless given.
    """

    def __init__(
        self,
        *,
        workdir: Path | None = None,
        node_monitor_grace: float | None = None,
        tolerations: int | None = None,
        address: str = LOOPBACK,
        progress: build.Progress = build.quiet,
    ) -> None:
        self._progress = progress
        self._own = workdir is None
        self.workdir = workdir or Path(tempfile.mkdtemp(prefix="hpc-bridge-control-plane-"))
        (port,) = free_ports(1, address)
        self.ca = CertificateAuthority(self.workdir / "pki")
        self.layout = Layout(self.workdir, self.ca, port, node_monitor_grace, tolerations, address)
        self.url, self.ca_file = self.layout.url, self.ca.cert_file
        self.audit_log, self.logs = self.layout.audit_log, self.layout.logs
        self.admin_kubeconfig = self.workdir / "admin.kubeconfig"
        self._admin = self.ca.write("admin", "testbed-admin", organizations=["system:masters"])
        self._backend: Backend | None = None

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it. Raises TestbedError when that cannot be done here; nothing is left running then."""
        try:
            prepare(self.layout)
            certificate, key = (path.read_bytes() for path in self._admin)
            write_kubeconfig(self.admin_kubeconfig, self.url, self.ca_file, certificate=(certificate, key))
            self._backend = self._choose()
            self._progress("starting the control plane")
            self._backend.start(self._ready)
            self._wait_controllers()
            # The least that lets the API server fetch logs and exec, instead of system:masters.
            binding = ["clusterrolebinding", "testbed-kubelet-api", "--clusterrole=system:kubelet-api-admin"]
            self.kubectl("create", *binding, f"--user={KUBELET_CLIENT}")
        except BaseException:
            self.stop()
            raise

    def _choose(self) -> Backend:
        folder = build.binaries(self._progress)
        if folder is not None:
            return Components(self.layout, folder)
        if k3s.available(self._progress):
            return k3s.K3sContainer(self.layout)
        raise TestbedError(NO_WAY)

    def stop(self) -> None:
        """Stop it and remove the working folder if it is ours."""
        if self._backend is not None:
            self._backend.stop()
        if self._own:
            shutil.rmtree(self.workdir, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """All of its processes; empty when stopped."""
        return self._backend.pids if self._backend is not None else []

    def restart_apiserver(self) -> None:
        """Stop the API server, start it at the same address with the same data, wait until it is ready."""
        if self._backend is None:
            raise TestbedError("the control plane is not running")
        self._backend.restart_apiserver(self._ready)
        self._wait_controllers()

    def _ready(self) -> bool:
        """Whether the API server serves, built-in roles included."""
        return self._get("/readyz") == 200

    def _wait_controllers(self) -> None:
        """Wait until the default ServiceAccount exists."""
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        deadline = time.monotonic() + START_TIMEOUT
        while (status := self._get(path)) != 200:
            if time.monotonic() > deadline:
                raise TestbedError(f"the control plane is not ready: {path} answers {status}; logs in {self.logs}")
            time.sleep(0.05)

    def _get(self, path: str) -> int | None:
        """The status of a GET as administrator; None when there is no answer."""
        try:
            return self.api("GET", path)[0]
        except (OSError, http.client.HTTPException):
            return None

    def api(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, kind: str = "application/json"
    ) -> tuple[int, dict[str, Any]]:
        """One request as administrator, without a process: the status, and the object if the answer is one.

        Raises OSError or HTTPException when there is no answer.
        """
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(*self._admin)
        connection = http.client.HTTPSConnection(self.layout.address, self.layout.port, context=context, timeout=5)
        with contextlib.closing(connection):
            headers = {"Content-Type": kind} if body is not None else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            try:
                found = json.loads(answer.read())
            except ValueError:  # /readyz answers with text
                found = None
            return answer.status, found if isinstance(found, dict) else {}

    def kubectl(
        self, *args: str, input: str | None = None, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator. With `check`, a failure raises TestbedError with what kubectl said."""
        argv = [find_kubectl(), f"--kubeconfig={self.admin_kubeconfig}", *args]
        done = subprocess.run(
            argv, input=input, capture_output=True, text=True, check=False, timeout=timeout, env=self._kubectl_env()
        )
        if check and done.returncode:
            raise TestbedError(f"kubectl {' '.join(args)}: exit status {done.returncode}\n{done.stderr.strip()}")
        return done

    def _kubectl_env(self) -> dict[str, str]:
        return os.environ | {"KUBECACHEDIR": str(self.workdir / "kubectl-cache")}

    def service_account_kubeconfig(self, namespace: str, name: str, path: Path, duration: str = "24h") -> Path:
        """Write a kubeconfig that is an existing ServiceAccount, by a token valid for `duration`."""
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", f"--duration={duration}").stdout
        return write_kubeconfig(path, self.url, self.ca_file, token=token.strip(), namespace=namespace)

    def audit_events(self, *, user: str | None = None, verbs: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The audit events so far, oldest first; only those of `user`, only these `verbs`, when given."""
        whole_lines = self.audit_log.read_bytes().split(b"\n")[:-1]
        events = [json.loads(line) for line in whole_lines]
        return [
            event
            for event in events
            if (user is None or event["user"]["username"] == user) and (not verbs or event["verb"] in verbs)
        ]
