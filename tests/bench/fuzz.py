"""The parsers, the wire and status.json with 100,000 inputs; `make test` has a short run of the same tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.bench.figures import Figure
from tests.bench.stage import Theatre

INPUTS = 100_000
IN_TESTS = 750
"""How many inputs one short run has, at least."""
FILES = ("test_parse_fuzz.py", "test_wire.py", "test_status_fuzz.py", "test_cluster_convert.py")
WORDS = [*(f"tests/unit/{name}" for name in FILES), "-q", "-p", "no:cacheprovider", "-o", "timeout=0"]
_PASSING = re.compile(r"(\d+) passing, (\d+) failing")


def measure(_: Theatre) -> Iterator[Figure]:
    """Run the fuzz tests that often that 100,000 inputs have been tried."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *WORDS, "--hypothesis-show-statistics"],
        env=os.environ | {"HPC_BRIDGE_FUZZ_TIMES": str(-(-INPUTS // IN_TESTS))},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = [(int(good), int(bad)) for good, bad in _PASSING.findall(done.stdout)]
    tried = sum(good + bad for good, bad in counts)
    rate = f"{tried / (time.monotonic() - began):.0f} a second"
    yield Figure("fuzz.inputs", tried, "", f"≥ {INPUTS}", (), f"parsers, wire and status.json; {rate}")
    failures = sum(bad for _, bad in counts) + (done.returncode != 0)
    yield Figure("fuzz.failures", failures, "", "≤ 0", (), done.stdout[-800:] if failures else "")
