"""deploy/ as an admin applies it, on a real worker node: two replicas, another pod address after each restart.

An agent that the tests run as a process on loopback never changes its address, reads no mounted token and is probed by
nobody; a restart of the real one once froze every running pod.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.testbed import images
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.docker import Engine
from bridge.testbed.pbs_cluster import ALPHA, PbsTestCluster
from bridge.testbed.worker import Network, NoWorker, Worker

Json = dict[str, Any]
CHECKOUT = Path(__file__).parents[2]
PODS = 20
ETC = "/etc/hpc-bridge/ssh"
MEMORY_LIMIT = 512 << 20


@dataclass
class Site:
    """The Deployment, where it runs, and the cluster behind it."""

    plane: ControlPlane
    pbs: PbsTestCluster
    worker: Worker

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.plane.kubectl(*args, **options).stdout

    def get(self, *args: str) -> Json:
        found: Json = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def until(self, check: Callable[[], Any], what: str, timeout: float = 120.0) -> None:
        """Wait for a condition; what the agent logged if it does not come."""
        deadline = time.monotonic() + timeout
        while not check():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} after {timeout:.0f} s\n{self.said()}")
            time.sleep(0.3)

    def said(self) -> str:
        """What may tell why: pods, the agent's log, Events."""
        words = (
            ["get", "pods", "-A", "-o", "wide"],
            ["-n", "hpc-bridge", "describe", "pods"],
            ["-n", "hpc-bridge", "logs", "-l", "app.kubernetes.io/name=hpc-bridge", "--tail=40", "--prefix"],
        )
        return "\n".join(self.plane.kubectl(*each, check=False).stdout[-6000:] for each in words)

    def node(self) -> Json:
        return self.get("node", "pbs-alpha")

    def address(self) -> str:
        """The virtual node's address: that of the agent that leads."""
        return next(a["address"] for a in self.node()["status"]["addresses"] if a["type"] == "InternalIP")

    def agents(self) -> list[Json]:
        """The agent's pods."""
        found: list[Json] = self.get("pods", "-n", "hpc-bridge", "-l", "app.kubernetes.io/name=hpc-bridge")["items"]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def jobs(self) -> dict[str, str]:
        """The PBS job of each pod."""
        pods = (pod["metadata"] for pod in self.get("pods")["items"])
        return {meta["name"]: meta["annotations"]["status.hpc-bridge.io/job-id"] for meta in pods}

    def ready(self) -> bool:
        conditions = {c["type"]: c["status"] for c in self.node()["status"].get("conditions", [])}
        return conditions.get("Ready") == "True" and conditions.get("ClusterReachable") == "True"

    def memory(self) -> list[int]:
        """Working sets of the agent's containers, bytes, as the kubelet measured them."""
        summary = json.loads(self.kubectl("get", "--raw", f"/api/v1/nodes/{self.worker.name}/proxy/stats/summary"))
        agents = [pod for pod in summary["pods"] if pod["podRef"]["namespace"] == "hpc-bridge"]
        return [each["memory"]["workingSetBytes"] for pod in agents for each in pod["containers"] if "memory" in each]


@pytest.fixture(scope="module")
def site(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The whole of it; skips where no worker node can be had, but fails in CI."""
    if not list(CHECKOUT.glob("build/dist/*.whl")):
        pytest.skip("no wheel in build/dist: run `make build` first")
    folder = tmp_path_factory.mktemp("deployment")
    archive = folder / "agent.tar"
    image = images.build_agent(engine, CHECKOUT)
    engine.docker("save", "-o", str(archive), image)
    try:
        with (
            Network() as network,
            ControlPlane(address=network.address) as plane,
            PbsTestCluster(ALPHA, host=network.address) as pbs,
            Worker(plane, network) as worker,
        ):
            worker.load(archive)
            deploy(plane, pbs, folder)
            running = Site(plane, pbs, worker)
            running.until(lambda: len(running.agents()) == 2, "two replicas")
            running.until(lambda: plane.kubectl("get", "node", "pbs-alpha", check=False).returncode == 0, "a node")
            running.until(running.ready, "virtual node that is Ready")
            yield running
    except NoWorker as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))


def deploy(plane: ControlPlane, pbs: PbsTestCluster, folder: Path) -> None:
    """What docs/how-to/run-in-a-cluster.md says: bridge.yaml, its manifests in place of the example's, the key."""
    settings = pbs.settings() | {"images": [{"image": "busybox:*"}], "poll": 3, "kubeletPort": 10251}
    transport = settings["accounts"][0]["transport"]
    key, known_hosts = (Path(transport[name]).read_text() for name in ("keyFile", "knownHostsFile"))
    transport |= {"keyFile": f"{ETC}/id_ed25519", "knownHostsFile": f"{ETC}/known_hosts"}
    bridge = folder / "bridge.yaml"
    bridge.write_text(yaml.safe_dump({"clusters": [settings]}))
    command = [str(Path(sys.executable).with_name("hpc-bridge")), "manifests", "-c", str(bridge)]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for part in ("base", "routing", "admission"):
        plane.kubectl("apply", "-k", str(CHECKOUT / "deploy" / part))
    plane.kubectl("apply", "-f", "-", input=made)
    meta = {"name": "hpc-bridge-ssh", "namespace": "hpc-bridge"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta}
    secret["stringData"] = {"id_ed25519": key, "known_hosts": known_hosts}
    plane.kubectl("apply", "-f", "-", input=json.dumps(secret))
    plane.kubectl("-n", "hpc-bridge", "rollout", "restart", "deployment", "hpc-bridge")
    plane.kubectl("-n", "hpc-bridge", "scale", "deployment", "hpc-bridge", "--replicas=2")


def pod(name: str, script: str) -> Json:
    """A pod as its author writes it."""
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    container["resources"] = {"requests": {"cpu": "1", "memory": "64Mi"}}
    spec = {"runtimeClassName": "pbs-alpha", "restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_rollout_under_twenty_running_pods(site: Site) -> None:
    script = "echo number {0}; while ! test -e /go/now; do sleep 0.2; done; exit {1}"
    things = []
    for number in range(PODS):
        thing = pod(f"work-{number}", script.format(number, number % 2))
        thing["spec"]["volumes"] = [{"name": "go", "configMap": {"name": "go", "optional": True}}]
        thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "go", "mountPath": "/go"}]
        things.append(thing)
    things.append(pod("endless", "trap 'echo told; exit 0' TERM; while true; do sleep 0.2; done"))
    site.kubectl("apply", "-f", "-", input="---\n".join(json.dumps(thing) + "\n" for thing in things))

    def phases() -> dict[str, str]:
        return {each["metadata"]["name"]: each["status"]["phase"] for each in site.get("pods")["items"]}

    site.until(lambda: set(phases().values()) == {"Running"}, "running pods", 180)
    jobs = site.jobs()
    assert "number 3" in site.kubectl("logs", "work-3")
    before = site.address()
    site.kubectl("-n", "hpc-bridge", "rollout", "restart", "deployment", "hpc-bridge")
    site.kubectl("-n", "hpc-bridge", "rollout", "status", "deployment", "hpc-bridge", "--timeout=180s", timeout=200)
    site.until(lambda: site.address() != before and site.ready(), "virtual node at another address")
    assert set(phases().values()) == {"Running"}
    site.until(lambda: "number 3" in site.plane.kubectl("logs", "work-3", check=False).stdout, "log, once connected")

    site.kubectl("create", "configmap", "go", "--from-literal=now=yes")
    wanted = {f"work-{number}": "Failed" if number % 2 else "Succeeded" for number in range(PODS)}
    site.until(lambda: wanted.items() <= phases().items(), "pods that end as their jobs do", 180)
    assert site.jobs() == jobs
    for each in site.get("pods")["items"]:
        name = each["metadata"]["name"]
        assert each["status"]["containerStatuses"][0]["restartCount"] == 0
        if name in wanted:
            ended = each["status"]["containerStatuses"][0]["state"]["terminated"]
            assert ended["exitCode"] == (1 if wanted[name] == "Failed" else 0)
    site.kubectl("delete", "pod", "endless", "--timeout=60s", timeout=90)
    memory = site.memory()
    print("working sets of the agents, MiB:", [size >> 20 for size in memory])
    assert memory
    assert max(memory) < MEMORY_LIMIT
