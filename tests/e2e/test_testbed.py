"""The test bed keeps its own promises: what the other end-to-end tests stand on."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bridge.testbed import build
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.errors import TestbedError
from bridge.testbed.processes import Process, ProcessGroup


def eventually(check: Callable[[], bool], what: str, timeout: float = 60) -> None:
    """Poll until `check` holds."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"not after {timeout} s: {what}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


# --- processes


STUBBORN = "trap '' TERM; setsid sleep 1000 & (setsid sh -c 'sleep 1001 & sleep 1002' &) ; while :; do sleep 1003; done"


def test_stop_ends_the_whole_tree_with_daemons_and_sessions(tmp_path: Path) -> None:
    process = Process("stubborn", ["sh", "-c", STUBBORN], log=tmp_path / "log", grace=0.1)
    eventually(lambda: len(process.pids) >= 6, "all started")
    pids = process.pids
    process.stop()
    assert [pid for pid in pids if alive(pid)] == []
    assert process.returncode == 128 + signal.SIGKILL


def test_a_daemon_does_not_outlive_a_program_that_ends_by_itself(tmp_path: Path) -> None:
    script = "setsid sleep 1000 & echo $! > pid; exit 3"
    process = Process("short", ["sh", "-c", script], log=tmp_path / "log", cwd=tmp_path)
    assert process.wait(30) == 3
    assert not alive(int((tmp_path / "pid").read_text()))
    process.stop()


OWNER = """
import os, sys, time
from pathlib import Path
from bridge.testbed.processes import Process
folder = Path(sys.argv[1])
argv, afterwards = ["sh", "-c", sys.argv[2]], [["touch", str(folder / "x")]]
process = Process("x", argv, log=folder / "log", grace=0.1, afterwards=afterwards)
while len(process.pids) < 6:
    time.sleep(0.05)
(folder / "pids.part").write_text(" ".join(map(str, process.pids)))
(folder / "pids.part").rename(folder / "pids")
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), STUBBORN], stderr=subprocess.DEVNULL)
    eventually((tmp_path / "pids").exists, "started")
    owner.send_signal(number)
    owner.wait(30)
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    eventually(lambda: not any(alive(pid) for pid in pids), "all gone")
    assert (tmp_path / "x").exists()


def test_a_group_stops_the_newest_first(tmp_path: Path) -> None:
    script = "trap 'echo %s >> order; exit' TERM; : > ready-%s; while :; do sleep 0.02; done"
    with ProcessGroup() as group:
        for name in ("a", "b"):
            argv = ["sh", "-c", script % (name, name)]
            process = group.add(Process(name, argv, log=tmp_path / name, cwd=tmp_path))
            process.wait_until((tmp_path / f"ready-{name}").exists, "start")
    assert (tmp_path / "order").read_text() == "b\na\n"


def test_a_program_that_fails_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = Process("broken", ["sh", "-c", "echo no such luck; exit 5"], log=tmp_path / "log")
    with pytest.raises(TestbedError, match=r"broken ended with status 5:\nno such luck"):
        process.wait_until(lambda: False, "luck")
    process.stop()


def test_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    process = Process("nothing", ["/no/such/program"], log=tmp_path / "log")
    with pytest.raises(TestbedError, match="No such file"):
        process.wait_until(lambda: False, "anything")
    process.stop()


# --- where the programs come from


def fake_programs(folder: Path, names: tuple[str, ...]) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    return folder


def test_assets_are_used_when_they_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(fake_programs(tmp_path / "assets", build.PROGRAMS)))
    assert build.binaries() == tmp_path / "assets"


def test_incomplete_assets_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_programs(tmp_path / "assets", ("etcd", "kube-apiserver", "kubectl"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = f"control-plane-{build.VERSION}-{build.sources_hash()}"
    cached = fake_programs(tmp_path / "cache" / "hpc-bridge" / name, build.PROGRAMS)
    assert build.binaries() == cached


def test_the_three_ways_are_named_when_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TestbedError) as caught:
        ControlPlane(workdir=tmp_path / "work").start()
    assert all(way in str(caught.value) for way in ("KUBEBUILDER_ASSETS", "Go 1.26", "Docker"))


# --- the control plane


def test_kubectl_answers_and_there_is_no_node(control_plane: ControlPlane) -> None:
    assert control_plane.kubectl("get", "nodes").stderr.strip() == "No resources found"
    assert f"v{build.VERSION}" in control_plane.kubectl("version").stdout
    control_plane.kubectl("get", "serviceaccount", "default")


def test_a_failing_kubectl_says_what_it_said(control_plane: ControlPlane) -> None:
    with pytest.raises(TestbedError, match='namespaces "nowhere" not found'):
        control_plane.kubectl("get", "namespace", "nowhere")
    assert control_plane.kubectl("get", "namespace", "nowhere", check=False).returncode == 1


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-")[:50].strip("-")
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


def test_rbac_is_on(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    control_plane.kubectl("create", "serviceaccount", "agent", "-n", namespace)
    config = control_plane.service_account_kubeconfig(namespace, "agent", tmp_path / "agent.kubeconfig")
    assert config.stat().st_mode & 0o777 == 0o600

    def as_agent(*args: str) -> subprocess.CompletedProcess[str]:
        return control_plane.kubectl(f"--kubeconfig={config}", *args, check=False)

    assert f"system:serviceaccount:{namespace}:agent" in as_agent("auth", "whoami").stdout
    assert "cannot list resource" in as_agent("get", "pods").stderr
    subject = f"--serviceaccount={namespace}:agent"
    control_plane.kubectl("create", "rolebinding", "view", "--clusterrole=view", subject, "-n", namespace)
    eventually(lambda: as_agent("get", "pods").returncode == 0, "the role counts")


def test_the_controllers_go_on_after_a_restart_of_the_api_server(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("create", "configmap", "kept", "-n", namespace)
    control_plane.restart_apiserver()
    control_plane.kubectl("get", "configmap", "kept", "-n", namespace)
    control_plane.kubectl("create", "job", "made", "--image=x", "-n", namespace)
    eventually(lambda: "made-" in control_plane.kubectl("get", "pods", "-n", namespace).stdout, "the Job's pod")


class Kubelet(BaseHTTPRequestHandler):
    """Answers every GET like containerLogs, with the caller's name and the path."""

    def do_GET(self) -> None:
        assert isinstance(self.connection, ssl.SSLSocket)
        certificate = self.connection.getpeercert() or {}
        names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]  # type: ignore[union-attr, misc]
        body = json.dumps([*names, self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def kubelet_port(control_plane: ControlPlane, tmp_path: Path) -> Iterator[int]:
    certificate, key = control_plane.ca.issue_kubelet_serving(["127.0.0.1"])
    (tmp_path / "pair.pem").write_bytes(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(control_plane.ca_file))
    context.load_cert_chain(tmp_path / "pair.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with ThreadingHTTPServer(("127.0.0.1", 0), Kubelet) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def bound_pod(control_plane: ControlPlane, namespace: str, node: str, port: int) -> None:
    """A node whose kubelet listens on `port`, and a running pod `p` bound to it."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    metadata = {"name": node}
    apply = ("apply", "--server-side", "-f", "-")
    control_plane.kubectl(*apply, input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
    control_plane.kubectl("patch", "node", node, "--subresource=status", "-p", json.dumps({"status": status}))
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "x"}], "tolerations": [{"operator": "Exists"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace}, "spec": spec}
    control_plane.kubectl(*apply, input=json.dumps(pod))


def test_the_api_server_calls_our_kubelet_port_with_its_own_certificate(
    control_plane: ControlPlane, namespace: str, kubelet_port: int
) -> None:
    bound_pod(control_plane, namespace, "here", kubelet_port)
    logs = control_plane.kubectl("logs", "p", "-n", namespace, "--tail=3").stdout
    assert json.loads(logs) == ["kube-apiserver-kubelet-client", f"/containerLogs/{namespace}/p/main?tailLines=3"]
    control_plane.kubectl("delete", "node", "here")


def test_the_audit_log_has_the_bodies_of_pod_writes(control_plane: ControlPlane, namespace: str) -> None:
    bound_pod(control_plane, namespace, "audited", 1)
    patch = '{"status":{"phase":"Running"}}'
    control_plane.kubectl("patch", "pod", "p", "-n", namespace, "--subresource=status", "-p", patch)
    control_plane.kubectl("delete", "pod", "p", "-n", namespace, "--grace-period=0", "--force")
    control_plane.kubectl("delete", "node", "audited")
    events = control_plane.audit_events(user="testbed-admin", verbs=["patch", "delete"])
    mine = [event for event in events if event["objectRef"].get("namespace") == namespace]
    (status,) = [event for event in mine if event["objectRef"].get("subresource") == "status"]
    assert status["requestObject"] == {"status": {"phase": "Running"}}
    assert status["responseObject"]["kind"] == "Pod"
    (deletion,) = [event for event in mine if event["verb"] == "delete" and event["objectRef"]["resource"] == "pods"]
    assert deletion["requestObject"]["gracePeriodSeconds"] == 0


# --- the end of it


ALL = """
import os, sys, time
from pathlib import Path
from bridge.testbed.control_plane import ControlPlane
with ControlPlane(workdir=Path(sys.argv[1])) as running:
    print(*running.pids, flush=True)
    time.sleep(1000)
"""


def test_a_control_plane_whose_owner_is_killed_is_gone(tmp_path: Path, control_plane: ControlPlane) -> None:
    with subprocess.Popen([sys.executable, "-c", ALL, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(each) for each in owner.stdout.readline().split()]
        owner.kill()
    assert len(pids) == 8
    assert os.getpid() not in pids
    eventually(lambda: not any(alive(pid) for pid in pids), "all gone")
