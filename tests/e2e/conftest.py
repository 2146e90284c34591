"""One control plane and two PBS clusters for all end-to-end tests; they are real, so they are started once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faultkit import Points
from world import World, shared

from bridge.testbed import build
from bridge.testbed.agent import Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import ALPHA, BETA, PbsTestCluster
from pbs_adapter.minipbs import Queue

HERE = Path(__file__).parent
SHORT = {"poll": 3, "lostAfter": 3, "walltimeMargin": 5, "census": 5, "overcommit": 2}
# What a pod may meet with: a queue that takes jobs and runs none, one that takes none, ones with limits.
QUEUES = (
    Queue("workq"),
    Queue("stopped", started=False),
    Queue("closed", enabled=False),
    Queue("short", resources_max={"walltime": "00:02:00", "ncpus": "4"}),
    Queue("single", max_queued="[u:PBS_GENERIC=1]"),
)
NAMED = {
    "queues": [*(queue.name for queue in QUEUES), "nowhere"],
    "allowProjectAnnotation": True,
    "projects": {"project-allowed": "physics", "project-refused": "alchemy"},
    "unsatisfiableAfter": 15,
    "placements": ["scatter", "excl"],
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the control plane before the first test, where no test's time limit counts; once a machine."""
    if session.config.option.collectonly or not any(item.path.is_relative_to(HERE) for item in session.items):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    def progress(message: str) -> None:
        if reporter is not None:
            reporter.write_line(message)

    build.binaries(progress)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A running control plane without nodes."""
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="session")
def points() -> Iterator[Points]:
    """Where the agent and the helpers stop when a test asks for it."""
    with Points() as found:
        yield found


@pytest.fixture(scope="session")
def clusters(points: Points) -> Iterator[dict[str, PbsTestCluster]]:
    """The clusters alpha (2 hosts of 16 cores, several queues) and beta (1 host of 8), each behind its own sshd."""
    config = replace(ALPHA, queues=QUEUES, projects=("physics",))
    env = points.environment
    with PbsTestCluster(config, environment=env) as alpha, PbsTestCluster(BETA, environment=env) as beta:
        yield {"alpha": alpha, "beta": beta}


@pytest.fixture(scope="session")
def bridge(
    control_plane: ControlPlane,
    clusters: dict[str, PbsTestCluster],
    points: Points,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """The agent on both clusters, as its own ServiceAccount; waits that a user would have are shortened."""
    for cluster in clusters.values():
        cluster.run("mkdir", "-p", str(shared(cluster)))
    changes = {
        name: SHORT
        | {"images": [{"image": "busybox:*"}], "queue": "workq", "hostPaths": [{"path": str(shared(cluster))}]}
        for name, cluster in clusters.items()
    }
    changes["alpha"] |= NAMED
    changes["beta"] |= {"heldLimit": 8}
    agent = Agent(
        control_plane,
        list(clusters.values()),
        tmp_path_factory.mktemp("agent"),
        agent={"sweep": 4, "leaseDuration": 6},
        changes=changes,
        environment=points.environment,
    )
    agent.start()
    try:
        agent.wait_ready(180)
        yield World(control_plane, clusters, agent)
    finally:
        agent.stop()
