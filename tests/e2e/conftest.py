"""One control plane and two PBS clusters for all end-to-end tests; they are real, so they are started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.testbed import build
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import ALPHA, BETA, PbsTestCluster

HERE = Path(__file__).parent


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
def clusters() -> Iterator[dict[str, PbsTestCluster]]:
    """The clusters alpha (2 hosts of 16 cores) and beta (1 host of 8), each behind its own sshd."""
    with PbsTestCluster(ALPHA) as alpha, PbsTestCluster(BETA) as beta:
        yield {"alpha": alpha, "beta": beta}
