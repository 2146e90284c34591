"""How many inputs a fuzz test gets: few in `make test`, HPC_BRIDGE_FUZZ_TIMES times as many in `make bench`."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("HPC_BRIDGE_FUZZ_TIMES", "1"))


def examples(count: int) -> int:
    """Hypothesis' max_examples for a test that has `count` in `make test`."""
    return count * TIMES
