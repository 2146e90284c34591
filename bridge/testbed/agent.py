"""Runs the agent of the test bed as an admin would: manifests applied, settings written, its own ServiceAccount.

The Deployment in deploy/ is scaled to nothing, since there is no node to run it; the same program runs beside it under
the same RBAC. Each start has another address, as each pod of the Deployment has.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from bridge.testbed.build import Progress, quiet
from bridge.testbed.certs import write_private
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.files import shipped
from bridge.testbed.processes import Process, free_ports

NAMESPACE = "hpc-bridge"
SERVICE_ACCOUNT = "hpc-bridge"
Json = dict[str, Any]
_starts = itertools.count(2)


def next_address() -> str:
    """A loopback address that no agent of this process has had: 127.0.0.2, 127.0.0.3, …

    One address for every start would hide whatever a product writes down of it and never changes.
    """
    high, low = divmod(next(_starts), 256)
    return f"127.0.{high}.{low}"


class Reachable(Protocol):
    """What bridge.yaml says of a cluster."""

    name: str

    def settings(self) -> Json:
        """The cluster's entry in bridge.yaml."""


def apply_manifests(control_plane: ControlPlane, *, routing: bool = True) -> None:
    """`kubectl apply -k` of all folders of deploy/ but the example's node, with no replica of the Deployment."""
    for folder in ("base", "admission", *(["routing"] if routing else [])):
        control_plane.kubectl("apply", "-k", str(shipped("deploy") / folder))
    control_plane.kubectl("scale", "deployment", "hpc-bridge", f"--namespace={NAMESPACE}", "--replicas=0")


class Agent:
    """The agent as a process; `address` is where its kubelet ports are, another one after each `start`.

    `changes` overrides keys of clusters' entries by name, and `agent` those of the agent; `environment` adds to ours.
    routing: whether the agent routes, and may.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        clusters: Sequence[Reachable],
        workdir: Path,
        *,
        agent: Mapping[str, Any] | None = None,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
        routing: bool = True,
        progress: Progress = quiet,
    ) -> None:
        self._control_plane = control_plane
        self._progress = progress
        self._environment = os.environ | dict(environment or {})
        self.workdir = workdir
        self.log = workdir / "agent.log"
        self.config = workdir / "bridge.yaml"
        workdir.mkdir(parents=True, exist_ok=True)
        apply_manifests(control_plane, routing=routing)
        self.kubeconfig = control_plane.service_account_kubeconfig(
            NAMESPACE, SERVICE_ACCOUNT, workdir / "agent.kubeconfig"
        )
        self.status_port, *ports = free_ports(1 + len(clusters))
        settings: Json = {
            "agent": {"statusListen": f"127.0.0.1:{self.status_port}"} | dict(agent or {}),
            "routing": {"enabled": routing},
            "kubelet": {"certFile": "kubelet.crt", "keyFile": "kubelet.key"},
            "clusters": [
                cluster.settings() | {"kubeletPort": port} | dict((changes or {}).get(cluster.name, {}))
                for cluster, port in zip(clusters, ports, strict=True)
            ],
        }
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False))
        self._applied = ""
        self._apply_settings()
        self.process: Process | None = None
        self.address = ""

    def _apply_settings(self) -> None:
        """`hpc-bridge manifests | kubectl apply`, as an admin does after each change: the rights for these nodes."""
        text = self.config.read_text()
        if text == self._applied:
            return
        self._applied = text
        argv = [sys.executable, "-m", "bridge.cli", "manifests", "-c", str(self.config)]
        made = subprocess.run(argv, check=True, capture_output=True, text=True, env=self._environment).stdout
        self._control_plane.kubectl("apply", "-f", "-", input=made)

    def __repr__(self) -> str:
        return f"<Agent {self.process}>"

    def start(self) -> Process:
        """Start it (again), at an address of its own with a certificate for it; return at once."""
        self._apply_settings()
        self.address = next_address()
        certificate, key = self._control_plane.ca.issue_kubelet_serving([self.address])
        (self.workdir / "kubelet.crt").write_bytes(certificate)
        write_private(self.workdir / "kubelet.key", key)
        argv = [sys.executable, "-m", "bridge.cli", "run", "-c", str(self.config), "--kubeconfig", str(self.kubeconfig)]
        argv += ["--address", self.address]
        self.process = Process("agent", argv, log=self.log, env=self._environment, grace=15.0)
        return self.process

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until every cluster has answered and its node is Ready."""
        if self.process is None:
            raise RuntimeError("the agent has not been started")
        self.process.wait_until(self._ready, "Ready nodes", timeout)

    def _ready(self) -> bool:
        report = self.report()
        if report is None or not report["leading"] or not report["clusters"]:
            return False
        self._progress("waiting for the virtual nodes")
        nodes = [c["node"] for c in report["clusters"] if c["reachable"]]
        if len(nodes) < len(report["clusters"]):
            return False
        found = self._control_plane.kubectl("get", "nodes", *nodes, "-o", "json", check=False)
        if found.returncode:
            return False
        return all(_is_ready(node) for node in json.loads(found.stdout).get("items", []) or [json.loads(found.stdout)])

    def report(self) -> Json | None:
        """What /status answers; None when there is no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/status", timeout=5) as answer:
                report: Json = json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return None
        return report

    def kill(self) -> None:
        """SIGKILL: no last words, no release of the Lease."""
        if self.process is not None:
            for pid in reversed(self.process.pids):
                os.kill(pid, signal.SIGKILL)
            self.process.stop()

    def stop(self) -> None:
        """Stop it gracefully and wait."""
        if self.process is not None:
            self.process.stop()


def _is_ready(node: Json) -> bool:
    """Ready, and the control plane has seen it: the taints that it gives to new nodes are gone."""
    conditions = node.get("status", {}).get("conditions", [])
    taints = [taint["key"] for taint in node["spec"].get("taints", [])]
    fresh = any(key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable") for key in taints)
    return not fresh and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
