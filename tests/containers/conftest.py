"""A Docker engine, a cluster in a container, and the agent on the host that reaches it by SSH.

HPC_BRIDGE_PBS_IMAGE names another cluster image: sshd on port 22 that lets in AUTHORIZED_KEY as user hpc, PBS in
/opt/pbs with a queue workq, Python 3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterkit import IMAGES, ContainerCluster
from world import World, until

from bridge.testbed import build, docker, images
from bridge.testbed.agent import Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.errors import TestbedError

CHECKOUT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Building images takes longer than a test may; and all of these tests share one engine and one cluster."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(600))
            if config.pluginmanager.hasplugin("xdist"):
                item.add_marker(pytest.mark.xdist_group("containers"))


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.Engine]:
    """A Docker engine with the base images; skips where there is none, but fails in CI."""
    try:
        with docker.engine() as running:
            images.ensure_bases(running)
            with pytest.MonkeyPatch.context() as patch:
                for name in ("DOCKER_HOST", "TESTCONTAINERS_RYUK_DISABLED"):
                    if name in running.env:
                        patch.setenv(name, running.env[name])
                yield running
    except (docker.NoEngine, TestbedError) as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cluster(engine: docker.Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerCluster]:
    """A running cluster with its images."""
    image = os.environ.get("HPC_BRIDGE_PBS_IMAGE") or images.build_cluster(engine, CHECKOUT)
    running = ContainerCluster(engine, image, tmp_path_factory.mktemp("cluster"))
    try:
        try:
            until(running.ready, "login and PBS", 180)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{running.logs()}") from None
        if running.has_apptainer():
            running.make_images()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def apptainer(cluster: ContainerCluster) -> None:
    """For tests that need it; our own image always has it."""
    if not cluster.has_apptainer():
        if cluster.image == images.CLUSTER:
            raise AssertionError("the cluster image has no apptainer")
        pytest.skip(f"{cluster.image} has no apptainer")


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A running control plane without nodes."""
    build.binaries()
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="session")
def world(
    control_plane: ControlPlane, cluster: ContainerCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """The agent on the host, as its own ServiceAccount."""
    rules = [
        {"image": "tool:sif", "runtime": "apptainer", "path": f"{IMAGES}/tool.sif"},
        {"image": "tool:gone", "runtime": "apptainer", "path": f"{IMAGES}/gone.sif"},
        {"image": "busybox:*"},
    ]
    changes = {
        "images": rules,
        "imagePaths": [IMAGES],
        "hostPaths": [{"path": "/var/tmp"}],
        "poll": 3,
        "lostAfter": 5,
        "walltimeMargin": 5,
    }
    agent = Agent(
        control_plane,
        [cluster],
        tmp_path_factory.mktemp("agent"),
        agent={"leaseDuration": 6},
        changes={cluster.name: changes},
    )
    agent.start()
    try:
        agent.wait_ready(120)
        yield World(control_plane, {cluster.name: cluster}, agent)  # type: ignore[dict-item]
    finally:
        agent.stop()
