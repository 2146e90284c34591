"""Finds the folders deploy/ and examples/: inside the installed wheel, or in the checkout that this runs from."""

from __future__ import annotations

from pathlib import Path

from bridge.testbed.errors import TestbedError

PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder of that name. Raises TestbedError when the installation lacks it."""
    for folder in (PACKAGE / "shipped" / name, PACKAGE.parent.parent / name):
        if folder.is_dir():
            return folder
    raise TestbedError(
        f"this installation of hpc-bridge has no folder {name}; install the wheel or run from a checkout"
    )
