"""For all tests: files stay whole when they run side by side; what needs a real OpenPBS is left out without one."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `real_pbs` run where HPC_BRIDGE_PBS_SSH=user@host:port names a server.

    Fixtures of a file are dear (control planes), so its tests go to one worker; tests of containers share an engine.
    """
    for item in items:
        group = "containers" if "containers" in item.path.parts else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group), append=False)
    if os.environ.get("HPC_BRIDGE_PBS_SSH"):
        return
    left_out = [item for item in items if item.get_closest_marker("real_pbs")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("real_pbs")]
