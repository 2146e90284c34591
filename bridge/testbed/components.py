"""The control plane as four processes on loopback: how each is called, and in which order they start.

Everything that a component needs is a flag: no file outside the working folder is read. What costs time and protects
nothing here is off (fsync, leader election, profiling, the components' own HTTP ports).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bridge.testbed.certs import KUBELET_CLIENT, CertificateAuthority
from bridge.testbed.kubectl import write_kubeconfig
from bridge.testbed.processes import Process, ProcessGroup, free_ports

LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
START_TIMEOUT = 180.0  # s until the API server is ready
API_SERVER_NAMES = (
    *("127.0.0.1", "10.96.0.1", "localhost"),
    *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
)


@dataclass(frozen=True)
class Layout:
    """Where one control plane lives.

    node_monitor_grace: seconds without a lease until a node is Unknown. tolerations: seconds that pods tolerate such a
    node, unless they say otherwise. None: Kubernetes' defaults.
    """

    workdir: Path
    ca: CertificateAuthority
    port: int
    node_monitor_grace: float | None = None
    tolerations: int | None = None
    address: str = LOOPBACK
    """Where the API server listens. Any other is also the endpoint of the Service `kubernetes`, for real nodes."""

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://{self.address}:{self.port}"

    @property
    def logs(self) -> Path:
        """Folder of the programs' logs."""
        return self.workdir / "logs"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log: a JSON object a line (audit.k8s.io/v1)."""
        return self.workdir / "audit.log"

    @property
    def audit_policy(self) -> Path:
        """What the audit log records; see `audit_policy`."""
        return self.workdir / "audit-policy.json"


class Backend(Protocol):
    """A way to run a control plane."""

    def start(self, ready: Callable[[], bool]) -> None:
        """Start everything; returns when the API server is `ready`. Raises TestbedError when it ends before."""

    def restart_apiserver(self, ready: Callable[[], bool]) -> None:
        """Stop the API server and start it at the same address with the same data; otherwise as `start`."""

    def stop(self) -> None:
        """Stop everything; harmless when stopped."""

    @property
    def pids(self) -> list[int]:
        """All processes."""


def audit_policy() -> dict[str, object]:
    """Records every write; pods and nodes with what was sent, pod status also with what came back.

    Of reads only those of ConfigMaps, Secrets and tokens, to show who fetched or listed them. The components' own
    leases and events would drown the rest and are left out.
    """
    reads, writes = ["get", "list", "watch"], ["create", "update", "patch", "delete", "deletecollection"]
    noisy = ["system:apiserver", "system:kube-scheduler", "system:kube-controller-manager"]
    chatter = [{"group": "coordination.k8s.io"}, {"group": "events.k8s.io"}, {"group": "", "resources": ["events"]}]
    sensitive = [{"group": "", "resources": ["configmaps", "secrets"]}]
    status = [{"group": "", "resources": ["pods/status", "nodes/status"]}]
    bodies = [{"group": "", "resources": ["pods", "pods/binding", "pods/eviction", "nodes"]}]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": noisy, "resources": chatter},
            {"level": "Metadata", "verbs": reads, "resources": sensitive},
            {"level": "None", "verbs": reads},
            {"level": "RequestResponse", "verbs": writes, "resources": status},
            {"level": "Request", "verbs": writes, "resources": bodies},
            {"level": "Metadata"},
        ],
    }


def apiserver_flags(layout: Layout) -> list[str]:
    """What the tests need of an API server, whoever starts it (k3s takes the same flags)."""
    patience = ["not-ready", "unreachable"] if layout.tolerations is not None else []
    return [
        *(f"--default-{taint}-toleration-seconds={layout.tolerations}" for taint in patience),
        "--enable-admission-plugins=NodeRestriction",  # as kubeadm does: what a kubelet may not do, the agent may not
        "--allow-privileged=true",  # such pods shall reach the agent, and be refused there with a message
        f"--audit-log-path={layout.audit_log}",
        f"--audit-policy-file={layout.audit_policy}",
        "--kubelet-preferred-address-types=InternalIP",
        "--max-requests-inflight=3000",
        "--max-mutating-requests-inflight=1000",
        "--profiling=false",
    ]


def controller_manager_flags(layout: Layout) -> list[str]:
    """The same for the controller-manager; the rates let it keep up with a thousand pods."""
    flags = ["--profiling=false", "--kube-api-qps=300", "--kube-api-burst=600"]
    if layout.node_monitor_grace is not None:
        period = min(5.0, max(0.5, layout.node_monitor_grace / 4))
        flags += [f"--node-monitor-grace-period={layout.node_monitor_grace}s", f"--node-monitor-period={period}s"]
    return flags


class Components:
    """The Backend of separate programs from `folder`."""

    def __init__(self, layout: Layout, folder: Path) -> None:
        self._layout = layout
        self._folder = folder
        self._processes = ProcessGroup()
        self._apiserver: Process | None = None
        client, peer = free_ports(2)
        self._etcd_client, self._etcd_peer = f"https://127.0.0.1:{client}", f"https://127.0.0.1:{peer}"
        ca = layout.ca
        self._etcd_pair = ca.write("etcd", "etcd", addresses=["127.0.0.1", "localhost"])
        self._serving_pair = ca.write("apiserver", "kube-apiserver", addresses=(*API_SERVER_NAMES, layout.address))
        self._kubelet_pair = ca.write("kubelet-client", KUBELET_CLIENT)
        self._account_keys = ca.write_service_account_key()

    def start(self, ready: Callable[[], bool]) -> None:
        """Start etcd and the API server; then the two that give up after a while if their roles are not there by then.

        See `Backend.start`.
        """
        self._run("etcd", self._etcd_argv())
        self._start_apiserver(ready)
        for name in ("kube-controller-manager", "kube-scheduler"):
            self._run(name, self._client_argv(name))

    def restart_apiserver(self, ready: Callable[[], bool]) -> None:
        """Stop the API server as a node reboot would, and start it again. See `Backend.restart_apiserver`."""
        if self._apiserver is not None:
            self._apiserver.stop()
            self._processes.remove(self._apiserver)
        self._start_apiserver(ready)

    def stop(self) -> None:
        """Stop all four."""
        self._processes.stop()

    @property
    def pids(self) -> list[int]:
        """All processes, the guards included."""
        return self._processes.pids

    def _run(self, name: str, flags: list[str]) -> Process:
        process = Process(name, [self._folder / name, *flags], log=self._layout.logs / f"{name}.log", grace=2)
        return self._processes.add(process)

    def _start_apiserver(self, ready: Callable[[], bool]) -> None:
        self._apiserver = self._run("kube-apiserver", self._apiserver_argv())
        self._apiserver.wait_until(ready, "answer to /readyz", START_TIMEOUT)

    def _etcd_argv(self) -> list[str]:
        certificate, key = self._etcd_pair
        tls = [f"cert-file={certificate}", f"key-file={key}", f"trusted-ca-file={self._layout.ca.cert_file}"]
        return [
            f"--data-dir={self._layout.workdir / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={self._etcd_client}",
            f"--advertise-client-urls={self._etcd_client}",
            f"--listen-peer-urls={self._etcd_peer}",
            f"--initial-advertise-peer-urls={self._etcd_peer}",
            f"--initial-cluster=default={self._etcd_peer}",
            # Loopback is shared with the machine's other users: etcd holds every Secret.
            *("--client-cert-auth", "--peer-client-cert-auth"),
            *(f"--{prefix}{flag}" for prefix in ("", "peer-") for flag in tls),
        ]

    def _apiserver_argv(self) -> list[str]:
        layout = self._layout
        (etcd_cert, etcd_key), (serving_cert, serving_key) = self._etcd_pair, self._serving_pair
        (kubelet_cert, kubelet_key), (account_key, account_public) = self._kubelet_pair, self._account_keys
        return [
            f"--bind-address={layout.address}",
            f"--secure-port={layout.port}",
            f"--tls-cert-file={serving_cert}",
            f"--tls-private-key-file={serving_key}",
            f"--client-ca-file={layout.ca.cert_file}",
            f"--etcd-servers={self._etcd_client}",
            f"--etcd-cafile={layout.ca.cert_file}",
            f"--etcd-certfile={etcd_cert}",
            f"--etcd-keyfile={etcd_key}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={account_public}",
            f"--service-account-signing-key-file={account_key}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--kubelet-client-certificate={kubelet_cert}",
            f"--kubelet-client-key={kubelet_key}",
            # With a real node as kubeadm has it: certificates that kubelets made for themselves are not verified.
            *([f"--kubelet-certificate-authority={layout.ca.cert_file}"] if layout.address == LOOPBACK else []),
            # A loopback address may not be an endpoint; it would only complain.
            "--endpoint-reconciler-type=none"
            if layout.address == LOOPBACK
            else f"--advertise-address={layout.address}",
            "--shutdown-delay-duration=0s",
            *apiserver_flags(layout),
        ]

    def _client_argv(self, name: str) -> list[str]:
        layout = self._layout
        pair = tuple(path.read_bytes() for path in layout.ca.write(name, f"system:{name}"))
        kubeconfig = layout.workdir / f"{name}.kubeconfig"
        write_kubeconfig(kubeconfig, layout.url, layout.ca.cert_file, certificate=(pair[0], pair[1]))
        common = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        if name == "kube-scheduler":
            return [*common, "--profiling=false"]
        return [
            *common,
            f"--cluster-signing-cert-file={layout.ca.cert_file}",
            f"--cluster-signing-key-file={layout.ca.key_file}",
            f"--root-ca-file={layout.ca.cert_file}",
            f"--service-account-private-key-file={self._account_keys[0]}",
            "--use-service-account-credentials",
            *controller_manager_flags(layout),
        ]


def prepare(layout: Layout) -> None:
    """Make the folders and the audit policy that every backend expects."""
    layout.logs.mkdir(parents=True, exist_ok=True)
    layout.audit_policy.write_text(json.dumps(audit_policy(), indent=1))
