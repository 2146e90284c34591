"""trust.api_requests_refused: what the API server makes of requests with the agent's credentials."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.files import shipped
from tests.bench.figures import Figure
from tests.bench.stage import Theatre
from tests.e2e import apirequests


def measure(_: Theatre) -> Iterator[Figure]:
    """A control plane of its own, with `kubectl apply -k deploy` done."""
    with ControlPlane() as plane, tempfile.TemporaryDirectory(prefix="hpc-bridge-bench-") as folder:
        plane.kubectl("apply", "-k", str(shipped("deploy")))
        found = asyncio.run(apirequests.judged(plane, Path(folder)))
    refused = [right for request, right, _ in found if not request.allowed]
    others = [right for request, right, _ in found if request.allowed]
    for request, right, said in found:
        if not right:
            sys.stderr.write(f"{request.who}: {request.what} ({request.verb}): {said}\n")
    note = f"{sum(refused)}/{len(refused)} that a kubelet or a router may not; {sum(others)}/{len(others)} that it may"
    wrong = len(found) - sum(refused) - sum(others)
    yield Figure("trust.api_requests_refused", sum(refused), "", f"≥ {len(refused)}", (), note)
    yield Figure("trust.api_requests_not_as_expected", wrong, "", "≤ 0", (), note)
