"""One embedded PBS for the module, one spool for each test, helpers on the system's own Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helperkit import Site

from pbs_adapter.minipbs import Config, Host, Queue, Server, install


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that depends on what PBS prints names both versions in DIALECTS."""
    if "pbs" in metafunc.fixturenames:
        metafunc.parametrize("pbs", getattr(metafunc.module, "DIALECTS", ("release",)), indirect=True, scope="module")


@pytest.fixture(scope="module")
def pbs(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Two hosts; queue `small` takes one job of a user, `closed` none, `parked` runs none."""
    prefix = Path(tempfile.mkdtemp(prefix="hb-pbs-"))
    small, closed = Queue("small", max_queued="[u:PBS_GENERIC=1]"), Queue("closed", enabled=False)
    config = Config(
        hosts=(Host("n1", 8), Host("n2", 8)),
        server="alpha",
        dialect=request.param,
        queues=(Queue("workq"), small, closed, Queue("parked", started=False)),
        kill_delay=2.0,
        scheduler_iteration=1.0,
        root_jobs=True,
        python=sys.executable,
    )
    try:
        install(prefix, config)
        with Server(prefix) as server:
            yield server
    finally:
        shutil.rmtree(prefix, ignore_errors=True)


@pytest.fixture
def site(pbs: Server, tmp_path: Path) -> Iterator[Site]:
    """A fresh spool on that PBS."""
    found = Site(tmp_path, pbs.prefix, os.environ.get("HPC_BRIDGE_TEST_PYTHON", sys.executable))
    try:
        yield found
    finally:
        found.close()
        # Trees that Python's own rmtree cannot walk: pytest would stumble over them at the end of a later session.
        subprocess.run(["rm", "-rf", str(tmp_path)], check=False)
