"""Leaves out, rather than skips, what needs a real OpenPBS when none is named."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `real_pbs` run where HPC_BRIDGE_PBS_SSH=user@host:port names a server."""
    if os.environ.get("HPC_BRIDGE_PBS_SSH"):
        return
    left_out = [item for item in items if item.get_closest_marker("real_pbs")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("real_pbs")]
