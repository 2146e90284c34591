"""A real worker node: kubelet, kube-proxy and containerd, in a network namespace of its own on this machine.

What a Deployment of ours meets on a cluster cannot be seen where the agent is a process on loopback: a pod address
that changes with each restart, a ServiceAccount's mounted token, probes, the Service `kubernetes`, a memory limit. The
machine's own network stays as it is but for one pair of interfaces and one route; both go with the namespace. Needs
root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from bridge.testbed import build
from bridge.testbed.build import Progress, quiet
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.errors import TestbedError
from bridge.testbed.images import busybox_archive
from bridge.testbed.kubectl import write_kubeconfig
from bridge.testbed.packages import ensure_packages, find_program
from bridge.testbed.processes import Process, ProcessGroup

CNI = Path("/usr/lib/cni")
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": str(CNI / "ptp"),
    "iproute2": "ip",
    "iptables": "iptables",
    "busybox-static": "busybox",
}
PAUSE = "local/pause:1"
KUBELET_PORT = 10250
CGROUPS = Path("/sys/fs/cgroup")
READY = 120.0


class NoWorker(Exception):
    """A worker node cannot be had here; the text says what is missing."""


class Network:
    """A network namespace with one way to this machine. address: this machine's end; node: the other."""

    def __init__(self, number: int = 77) -> None:
        """number: of the networks 10.89.N.0/24 (the link) and 10.90.N.0/24 (pods)."""
        self.name = f"hpcb-{os.getpid()}"
        self.address, self.node, self.pods = f"10.89.{number}.1", f"10.89.{number}.2", f"10.90.{number}.0/24"
        self._link = f"hpcb{os.getpid() % 100000}"

    def __enter__(self) -> Network:
        missing = _missing()
        if missing:
            raise NoWorker(missing)
        try:
            _run("ip", "netns", "add", self.name)
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            _run("ip", "addr", "add", f"{self.address}/24", "dev", self._link)
            _run("ip", "link", "set", self._link, "up")
            _run("ip", "-n", self.name, "addr", "add", f"{self.node}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", self.name, "link", "set", device, "up")
            _run("ip", "-n", self.name, "route", "add", "default", "via", self.address)
            _run("ip", "route", "add", self.pods, "via", self.node)
            _run(*self.inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def inside(self) -> tuple[str, ...]:
        """What comes before a command that is to run in the namespace; its mounts, cgroups too, stay this machine's."""
        return ("nsenter", f"--net=/run/netns/{self.name}")

    def close(self) -> None:
        """Remove the namespace, and with it interfaces, routes and rules."""
        for words in (("ip", "netns", "del", self.name), ("ip", "link", "del", self._link)):
            subprocess.run(words, capture_output=True, check=False)


class Worker:
    """A context manager: the node is Ready when it is entered, and nothing is left of it afterwards."""

    def __init__(self, plane: ControlPlane, network: Network, *, name: str = "worker-1") -> None:
        """plane: listens at the network's `address`. name: of the Node."""
        self.name = name
        self._plane, self._network = plane, network
        self._work = Path(tempfile.mkdtemp(prefix="hpc-bridge-worker-"))
        self._socket = self._work / "containerd.sock"
        self._runtime, self._nodes = ProcessGroup(), ProcessGroup()

    def __enter__(self) -> Worker:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def logs(self) -> Path:
        """Folder of the programs' logs."""
        return self._work

    def load(self, archive: Path) -> None:
        """Take the images of a file that `docker save` wrote."""
        _run("ctr", "-a", str(self._socket), "-n", "k8s.io", "images", "import", str(archive))

    def _start(self) -> None:
        folder = build.worker_binaries()
        if folder is None:
            raise NoWorker("there is no Go to build kubelet and kube-proxy with")
        containerd = self._run(
            self._runtime, "containerd", [str(find_program("containerd")), "-c", str(self._containerd())]
        )
        containerd.wait_until(self._answers, "answering containerd")
        pause = self._work / "pause.tar"
        pause.write_bytes(busybox_archive(PAUSE, ["/bin/sleep", "999999999"]))
        self.load(pause)
        kubelet = self._run(self._nodes, "kubelet", [str(folder / "kubelet"), *self._kubelet()])
        self._run(self._nodes, "kube-proxy", [str(folder / "kube-proxy"), *self._proxy()])
        kubelet.wait_until(self._ready, "Ready node", READY)

    def stop(self) -> None:
        """End the programs, the pods, which would outlive them, and what both have mounted."""
        self._nodes.stop()  # first: a kubelet starts anew what somebody else ends
        namespaces = self._end_containers()
        self._runtime.stop()
        for name in namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for path in reversed([each for each in mounts if each.startswith(f"{self._work}/")]):
            subprocess.run(["umount", "-l", path], capture_output=True, check=False)
        for folder, _, _ in (each for top in CGROUPS.glob("*/k8s.io") for each in os.walk(top, topdown=False)):
            with contextlib.suppress(OSError):  # those of another containerd are not empty
                os.rmdir(folder)
        shutil.rmtree(self._work, ignore_errors=True)

    def _end_containers(self) -> set[str]:
        """Kill every container; the names of the network namespaces that they leave behind."""
        namespaces = set()
        for container in self._ctr("containers", "ls", "-q").split():
            spec = json.loads(self._ctr("containers", "info", container) or "{}").get("Spec") or {}
            paths = [n.get("path", "") for n in spec.get("linux", {}).get("namespaces", []) if n["type"] == "network"]
            namespaces |= {Path(path).name for path in paths if Path(path).name.startswith("cni-")}
            self._ctr("tasks", "rm", "-f", container)
        return namespaces

    def _ctr(self, *words: str) -> str:
        argv = ["ctr", "-a", str(self._socket), "-n", "k8s.io", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30).stdout

    def _run(self, group: ProcessGroup, name: str, argv: list[str]) -> Process:
        environment = {"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"}
        command = [*self._network.inside, *argv]
        return group.add(Process(name, command, log=self._work / f"{name}.log", env=environment, grace=10))

    def _answers(self) -> bool:
        done = subprocess.run(["ctr", "-a", str(self._socket), "version"], capture_output=True, check=False, timeout=30)
        return done.returncode == 0

    def _ready(self) -> bool:
        status, node = self._plane.api("GET", f"/api/v1/nodes/{self.name}")
        conditions = node.get("status", {}).get("conditions", []) if status == 200 else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _containerd(self) -> Path:
        conf = self._work / "cni"
        conf.mkdir()
        # ptp: with a bridge pods do not reach Services of pods on the same bridge.
        ipam = {"type": "host-local", "ranges": [[{"subnet": self._network.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
        ipam |= {"dataDir": str(self._work / "ipam")}
        plugins = [
            {"type": "ptp", "ipMasq": True, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ]
        document = {"cniVersion": "0.4.0", "name": "testbed", "plugins": plugins}
        (conf / "10-testbed.conflist").write_text(json.dumps(document))
        file = self._work / "containerd.toml"
        # restrict_oom_score_adj: a machine without CAP_SYS_RESOURCE cannot lower it, and no sandbox would start.
        file.write_text(f"""version = 2
root = "{self._work}/root"
state = "{self._work}/state"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI}"
    conf_dir = "{conf}"
""")
        return file

    def _kubelet(self) -> list[str]:
        ca = self._plane.ca
        serving, key = ca.write("worker-serving", self.name, addresses=[self._network.node, self.name])
        document = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._network.node,
            "port": KUBELET_PORT,
            "healthzPort": 0,
            "tlsCertFile": str(serving),
            "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "podLogsDir": str(self._work / "pods-logs"),
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
        }
        config = self._work / "kubelet.json"
        config.write_text(json.dumps(document))
        kubeconfig = self._kubeconfig("kubelet", f"system:node:{self.name}", ["system:nodes"])
        return [
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self._work / 'kubelet'}",
            f"--cert-dir={self._work / 'certificates'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._network.node}",
        ]

    def _proxy(self) -> list[str]:
        kubeconfig = self._kubeconfig("kube-proxy", "system:kube-proxy", [])
        return [
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            "--proxy-mode=iptables",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            f"--healthz-bind-address={self._network.node}:10256",
            "--metrics-bind-address=127.0.0.1:10249",
        ]

    def _kubeconfig(self, name: str, user: str, groups: list[str]) -> Path:
        pair = tuple(path.read_bytes() for path in self._plane.ca.write(f"worker-{name}", user, organizations=groups))
        file = self._work / f"{name}.kubeconfig"
        return write_kubeconfig(file, self._plane.url, self._plane.ca_file, certificate=(pair[0], pair[1]))


def _missing() -> str:
    """What this machine lacks; empty when nothing."""
    if os.geteuid() != 0:
        return "a worker node needs root"
    missing = ensure_packages(PACKAGES)
    return f"a worker node needs {', '.join(sorted(missing))}, which cannot be installed here" if missing else ""


def prepare_worker(progress: Progress = quiet) -> str | None:
    """Get packages and programs; None when a worker node can be had here, else a sentence that says why not."""
    if os.geteuid() == 0:
        ensure_packages(PACKAGES, progress)
    why = _missing()
    if not why and build.worker_binaries(progress) is None:
        why = "there is no Go to build kubelet and kube-proxy with"
    return f"the test on a real worker node is skipped: {why}" if why else None


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise TestbedError(f"{' '.join(words[:5])}: {done.stderr.strip()[-500:]}")
