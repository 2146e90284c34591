"""The agent's image: its size, running as deploy/ says, and docker/compose.yaml."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterkit import ContainerCluster
from testcontainers.core.container import DockerContainer
from world import World, condition, pod, until

from bridge.testbed import images
from bridge.testbed.agent import next_address
from bridge.testbed.docker import Engine
from bridge.testbed.processes import free_ports

Json = dict[str, Any]
CHECKOUT = Path(__file__).parents[2]
MOST_ADDED = 150_000_000


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    """The agent's image, built from the wheel that `make test` has made."""
    if not list(CHECKOUT.glob("build/dist/*.whl")):
        pytest.skip("no wheel in build/dist: run `make build` first")
    return images.build_agent(engine, CHECKOUT)


def size(engine: Engine, name: str) -> int:
    """Bytes of an image."""
    return int(engine.docker("image", "inspect", "--format", "{{.Size}}", name).stdout)


def test_it_adds_little_to_its_base(engine: Engine, image: str) -> None:
    added = size(engine, image) - size(engine, "debian:bookworm-slim")
    print(f"the agent adds {added / 1e6:.0f} MB to its base")
    assert added <= MOST_ADDED
    assert engine.docker("image", "inspect", "--format", "{{.Config.User}}", image).stdout.strip() == "65532:65532"


def deployment() -> Json:
    """The Deployment that deploy/ has."""
    found: Json = yaml.safe_load((CHECKOUT / "deploy/base/deployment.yaml").read_text())
    return found


def confined() -> Json:
    """The security contexts of deploy/ in the words of docker run. RuntimeDefault is Docker's own seccomp profile."""
    spec = deployment()["spec"]["template"]["spec"]
    own, whole = spec["containers"][0]["securityContext"], spec["securityContext"]
    assert (own["allowPrivilegeEscalation"], whole["seccompProfile"]) == (False, {"type": "RuntimeDefault"})
    tmp = next(volume for volume in spec["volumes"] if volume["name"] == "tmp")["emptyDir"]
    assert (tmp["medium"], tmp["sizeLimit"]) == ("Memory", "16Mi")
    return {
        "user": f"{whole['runAsUser']}:{whole['runAsGroup']}",
        "read_only": own["readOnlyRootFilesystem"],
        "cap_drop": own["capabilities"]["drop"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": "512m",
        "network_mode": "host",  # the API server listens on loopback, and calls back
    }


@pytest.fixture
def settings(world: World, cluster: ContainerCluster, tmp_path: Path) -> Path:
    """/etc/hpc-bridge as the manifests mount it, key and known hosts with the modes that fsGroup gives them."""
    folder = tmp_path / "etc"
    (folder / "ssh").mkdir(parents=True)
    entry = yaml.safe_load(world.agent.config.read_text())["clusters"][0]
    transport = entry["accounts"][0]["transport"]
    for key, name in (("keyFile", "id_ed25519"), ("knownHostsFile", "known_hosts")):
        shutil.copy(transport[key], folder / "ssh" / name)
        transport[key] = f"/etc/hpc-bridge/ssh/{name}"
        (folder / "ssh" / name).chmod(0o440)
    kubelet = {"address": next_address()}
    pair = world.control_plane.ca.issue_kubelet_serving([kubelet["address"]])
    for key, name, content in zip(("certFile", "keyFile"), ("kubelet.crt", "kubelet.key"), pair, strict=True):
        (folder / "ssh" / name).write_bytes(content)
        (folder / "ssh" / name).chmod(0o440)
        kubelet[key] = f"/etc/hpc-bridge/ssh/{name}"
    (port,) = free_ports(1)
    (folder / "port").write_text(str(port))
    document = {"agent": {"statusListen": f"127.0.0.1:{port}", "leaseDuration": 6}, "kubelet": kubelet}
    document["clusters"] = [entry]
    (folder / "bridge.yaml").write_text(yaml.safe_dump(document))
    shutil.copy(world.agent.kubeconfig, folder / "kubeconfig")
    for parent in (folder, tmp_path):
        parent.chmod(0o755)
    for path in (*folder.rglob("*"),):
        if os.geteuid() == 0:
            os.chown(path, 0, 65532)
    for path in (folder / "kubeconfig", folder / "bridge.yaml"):
        path.chmod(0o440)
    return folder


@pytest.fixture
def agent_container(world: World, image: str, settings: Path) -> Iterator[DockerContainer]:
    """The image's agent in the place of the one on the host."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to the agent's group as fsGroup does")
    address = yaml.safe_load((settings / "bridge.yaml").read_text())["kubelet"]["address"]
    args = [
        word.replace("$(POD_IP)", address) for word in deployment()["spec"]["template"]["spec"]["containers"][0]["args"]
    ]
    container = DockerContainer(image).with_command([*args, "--kubeconfig", "/etc/hpc-bridge/kubeconfig"])
    container.with_volume_mapping(str(settings), "/etc/hpc-bridge", "ro").with_kwargs(**confined())
    container.with_tmpfs_mount("/tmp", "size=16m")
    world.stop_agent()
    try:
        with container as running:
            yield running
    finally:
        world.agent.start()
        world.agent.wait_ready(120)


def test_it_runs_as_the_manifests_say(
    world: World, settings: Path, agent_container: DockerContainer, engine: Engine
) -> None:
    wrapped = agent_container.get_wrapped_container()
    port = (settings / "port").read_text()
    probe = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/readyz').status)"

    def is_ready() -> bool:
        wrapped.reload()
        assert wrapped.status == "running", wrapped.logs().decode()
        return bool(wrapped.exec_run(["python3", "-c", probe]).exit_code == 0)

    until(is_ready, "/readyz of the image's agent", 120)
    until(lambda: condition(world.get("node", "pbs-alpha"), "Ready")["status"] == "True", "a Ready node", 60)
    assert wrapped.exec_run(["id", "-u"]).output.strip() == b"65532"
    status = wrapped.exec_run(["cat", "/proc/1/status"]).output.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (fields["CapEff"].strip("0"), fields["NoNewPrivs"], fields["Seccomp"]) == ("", "1", "2")
    assert wrapped.exec_run(["touch", "/opt/x"]).exit_code != 0
    world.apply(pod("by-image", "echo by the image"))
    world.wait_phase("by-image", "Succeeded", timeout=120)
    assert world.logs("by-image") == "by the image\n"
    wrapped.stop(timeout=20)
    wrapped.reload()
    assert wrapped.attrs["State"]["ExitCode"] == 0, wrapped.logs().decode()[-2000:]


def test_compose(world: World, engine: Engine, image: str, cluster: ContainerCluster, tmp_path: Path) -> None:
    """`docker compose up`, with other ports and a node of its own, since machines have other things too."""
    program = [shutil.which("docker-compose") or "docker", *([] if shutil.which("docker-compose") else ["compose"])]
    if subprocess.run([*program, "version"], capture_output=True, check=False, env=engine.env).returncode:
        pytest.skip("docker-compose is missing (Debian: the package docker-compose)")
    if cluster.image != images.CLUSTER:
        pytest.skip("compose.yaml starts docker/cluster")
    ssh_port, status_port = free_ports(2)
    text = (CHECKOUT / "docker/compose-bridge.yaml").read_text().replace("2222", str(ssh_port))
    document = yaml.safe_load(text.replace("name: alpha", "name: composed"))
    document["agent"]["statusListen"] = f"127.0.0.1:{status_port}"
    settings, kubeconfig = tmp_path / "bridge.yaml", tmp_path / "kubeconfig"
    settings.write_text(yaml.safe_dump(document))
    shutil.copy(world.control_plane.admin_kubeconfig, kubeconfig)
    kubeconfig.chmod(0o440)
    user = f"{os.geteuid()}:{os.getegid()}"
    if os.geteuid() == 0:
        user = "65532:65532"
        os.chown(kubeconfig, 65532, 65532)
    env = engine.env | {
        "KUBECONFIG": str(kubeconfig),
        "HPC_BRIDGE_CONFIG": str(settings),
        "HPC_BRIDGE_SSH_PORT": str(ssh_port),
        "HPC_BRIDGE_USER": user,
    }
    base = [*program, "-f", str(CHECKOUT / "docker/compose.yaml"), "-p", "hpc-bridge-test"]

    def compose(*words: str) -> str:
        done = subprocess.run([*base, *words], capture_output=True, text=True, check=False, env=env, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_ready() -> bool:
        found = world.kubectl("get", "node", "pbs-composed", "-o", "yaml", check=False)
        return found.returncode == 0 and condition(yaml.safe_load(found.stdout), "Ready")["status"] == "True"

    try:
        compose("up", "-d", "--no-build")
        try:
            until(is_ready, "the composed node to be Ready", 120)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{compose('logs')}") from None
    finally:
        compose("down", "--volumes", "--timeout", "5")
        world.kubectl("delete", "node", "pbs-composed", "--ignore-not-found")
