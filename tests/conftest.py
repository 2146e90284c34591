"""Leaves out, rather than skips, what needs a real OpenPBS, or many minutes, unless it is asked for."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A machine that does other things besides is no failure of what is tested.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`real_pbs` runs where HPC_BRIDGE_PBS_SSH=user@host:port names a server, `full` with HPC_BRIDGE_TEST_FULL=1."""
    asked = {"real_pbs": "HPC_BRIDGE_PBS_SSH", "full": "HPC_BRIDGE_TEST_FULL"}
    missing = [marker for marker, variable in asked.items() if not os.environ.get(variable)]
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in missing)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
