"""The test bed keeps its own promises: what the other end-to-end tests stand on."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bridge.api.settings import Settings
from bridge.testbed import build
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.errors import TestbedError
from bridge.testbed.local_nodes import LocalNodes
from bridge.testbed.pbs_cluster import BETA, PbsTestCluster
from bridge.testbed.processes import alive


def eventually(check: Callable[[], bool], what: str, timeout: float = 60) -> None:
    """Poll until `check` holds."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"not after {timeout} s: {what}"
        time.sleep(0.05)


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


def test_an_api_server_that_ends_while_it_starts_is_told_of_and_nothing_is_left(tmp_path: Path) -> None:
    control_plane = ControlPlane(workdir=tmp_path / "work")
    with socket.create_server(("127.0.0.1", control_plane.layout.port)):
        with pytest.raises(TestbedError, match=r"kube-apiserver ended with status 1:(?s:.*)address already in use"):
            control_plane.start()
        assert control_plane.pids == []


def test_kubectl_answers(control_plane: ControlPlane) -> None:
    assert control_plane.kubectl("get", "--raw", "/readyz").stdout == "ok"
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


def test_pods_run_and_end_on_local_nodes_until_they_are_removed(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    here = f"--namespace={namespace}"
    with LocalNodes(control_plane, {"local-t": {"cpu": "2", "memory": "1Gi"}}, runs=1.0):
        kubectl("create", "job", "short", "--image=busybox:1.36", here, "--", "true")
        kubectl("run", "long", "--image=busybox:1.36", here)
        kubectl("wait", "--for=condition=complete", "job/short", here, "--timeout=60s")
        kubectl("wait", "--for=condition=ready", "pod/long", here, "--timeout=60s")
        kubectl("delete", "pod", "long", here, "--timeout=60s")
        pods = json.loads(kubectl("get", "pods", here, "-o", "json").stdout)["items"]
        assert {each["spec"]["nodeName"] for each in pods} == {"local-t"}
    assert kubectl("get", "node", "local-t", check=False).returncode != 0


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
        connection: Any = self.connection
        names = [value for part in connection.getpeercert()["subject"] for key, value in part if key == "commonName"]
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


# --- the clusters


@pytest.fixture
def alpha(clusters: dict[str, PbsTestCluster]) -> PbsTestCluster:
    if clusters["alpha"].sshd is None:
        pytest.skip("OpenSSH is missing and cannot be installed by this user")
    return clusters["alpha"]


def test_the_login_is_an_ordinary_user_who_knows_nothing_of_us(alpha: PbsTestCluster) -> None:
    done = alpha.run("id -u; id -un; pwd; command -v python3; command -v qsub; env")
    uid, name, folder, python, *rest = done.stdout.splitlines()
    assert (int(uid), name, folder) == (alpha.account.uid, alpha.account.name, str(alpha.account.home))
    assert int(uid) != 0
    assert python.startswith("/usr/")
    assert not [
        line for line in rest if line.startswith(("VIRTUAL_ENV=", "KUBECONFIG=", "PBS_EXEC=")) or "qsub" in line
    ]


def test_login_needs_the_key_and_the_known_host(alpha: PbsTestCluster, tmp_path: Path) -> None:
    assert alpha.sshd is not None
    assert alpha.sshd.key_file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "none").touch()

    def login(*options: str) -> subprocess.CompletedProcess[str]:
        argv = alpha.sshd.ssh_argv(*options) if alpha.sshd else []
        return subprocess.run([*argv, "true"], capture_output=True, text=True, check=False, timeout=60)

    assert login().returncode == 0
    assert "Permission denied (publickey)" in login("-o", "PubkeyAuthentication=no").stderr
    strange = f"UserKnownHostsFile={tmp_path / 'none'}"
    # The first value of an option counts, so this one has to precede ours.
    argv = [part if not part.startswith("UserKnownHostsFile=") else strange for part in alpha.sshd.ssh_argv()]
    refused = subprocess.run([*argv, "true"], capture_output=True, text=True, check=False, timeout=60)
    assert "Host key verification failed" in refused.stderr


def test_a_restarted_sshd_is_the_same_one_without_its_sessions(alpha: PbsTestCluster) -> None:
    assert alpha.sshd is not None
    with subprocess.Popen([*alpha.sshd.ssh_argv(), "echo here; exec sleep 1000"], stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"here\n"
        alpha.sshd.restart()
        assert session.wait(30) == 255
    assert alpha.run("echo", "a  b").stdout == "a  b\n"


def test_a_job_submitted_over_ssh_runs_as_the_user(alpha: PbsTestCluster) -> None:
    output = alpha.account.home if alpha.account.temporary else alpha.workdir
    done = alpha.pbs("qsub", "-j", "oe", "-o", str(output / "who"), "--", "/usr/bin/id", "-un")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert job.endswith(".alpha")
    eventually(lambda: "job_state = F" in alpha.pbs("qstat", "-x", "-f", job).stdout, "the job's end")
    assert alpha.run("cat", str(output / "who")).stdout.strip() == alpha.account.name


def test_alpha_has_two_hosts_of_two_numa_domains(clusters: dict[str, PbsTestCluster]) -> None:
    nodes = json.loads(clusters["alpha"].pbs("pbsnodes", "-a", "-v", "-F", "json").stdout)["nodes"]
    cores = {name: node["resources_available"]["ncpus"] for name, node in nodes.items()}
    assert {name: number for name, number in cores.items() if number} == {
        f"alpha-n{host}[{domain}]": 8 for host in (1, 2) for domain in (0, 1)
    }


def test_a_busy_beta_lets_others_wait(clusters: dict[str, PbsTestCluster]) -> None:
    beta = clusters["beta"]
    (filler,) = beta.keep_busy(seconds=1000)
    eventually(lambda: "job_state = R" in beta.pbs("qstat", "-f", filler).stdout, "the filler's start")
    mine = beta.pbs("qsub", "-j", "oe", "-o", "/dev/null", "--", "/bin/true").stdout.strip()
    eventually(lambda: "Insufficient amount of resource: ncpus" in beta.pbs("qstat", "-f", mine).stdout, "the reason")
    owners = [
        line.split(" = ")[1].split("@")[0]
        for line in beta.pbs("qstat", "-f").stdout.splitlines()
        if line.strip().startswith("Job_Owner")
    ]
    assert len(set(owners)) == 2
    beta.server.fault("vanish", f"{filler}:kill")
    eventually(lambda: "job_state = F" in beta.pbs("qstat", "-x", "-f", mine).stdout, "the waiting job's end")


def test_the_settings_are_what_the_agent_reads(clusters: dict[str, PbsTestCluster]) -> None:
    settings = Settings.model_validate({"clusters": [each.settings() for each in clusters.values()]})
    assert [cluster.name for cluster in settings.clusters] == ["alpha", "beta"]
    assert all(Path(cluster.pbs_exec or "", "bin", "qsub").exists() for cluster in settings.clusters)


def test_a_home_that_others_cannot_enter_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root creates users")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(TestbedError, match="cannot be entered by other users"):
        PbsTestCluster(BETA, workdir=closed).start()


# --- the end of it


def mentions(text: str) -> list[int]:
    """Processes with that text in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(int(entry.name))
    return found


def user_exists(name: str) -> bool:
    """Whether the user database knows the name."""
    return subprocess.run(["getent", "passwd", name], capture_output=True, check=False).returncode == 0


def test_a_stopped_cluster_leaves_no_process_no_user_and_no_file() -> None:
    cluster = PbsTestCluster(BETA)
    with cluster:
        temporary, name = cluster.account.temporary, cluster.account.name
        cluster.keep_busy(seconds=1000)
        cluster.run("setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
        eventually(lambda: "1 /bin/sleep" in running(cluster.pids), "the job")
        pids = cluster.pids
    assert [pid for pid in pids if alive(pid)] == []
    assert mentions(str(cluster.workdir)) == []
    assert not cluster.workdir.exists()
    assert not (temporary and user_exists(name))


def running(pids: list[int]) -> str:
    """A line for each command: how often it runs, and its program."""
    programs = []
    for pid in pids:
        try:
            programs.append(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode())
        except OSError:
            continue
    return "\n".join(f"{programs.count(name)} {name}" for name in set(programs))


ALL = """
import sys, time
from pathlib import Path
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import BETA, PbsTestCluster
with PbsTestCluster(BETA) as beta, ControlPlane(workdir=Path(sys.argv[1])) as control_plane:
    beta.keep_busy(seconds=1000)
    print(beta.account.name if beta.account.temporary else "", beta.workdir, *beta.pids, *control_plane.pids, sep="|")
    sys.stdout.flush()
    time.sleep(1000)
"""


def test_nothing_is_left_when_the_owner_of_everything_is_killed(tmp_path: Path, control_plane: ControlPlane) -> None:
    with subprocess.Popen([sys.executable, "-c", ALL, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        user, workdir, *pids = owner.stdout.readline().strip().split("|")
        owner.kill()
    assert len(pids) >= 8
    eventually(lambda: not any(alive(int(pid)) for pid in pids), "all gone")
    eventually(lambda: not mentions(workdir) and not mentions(str(tmp_path)), "nothing else below it")
    eventually(lambda: not (user and user_exists(user)), "the user removed")
    shutil.rmtree(workdir)
