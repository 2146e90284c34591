"""As whom the agent acts: what the API server refuses a kubelet, and what policies refuse the router, all real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apirequests import Request, judged

from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.files import shipped


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane with `kubectl apply -k deploy` done, as README says."""
    with ControlPlane() as running:
        running.kubectl("apply", "-k", str(shipped("deploy")))
        yield running


async def test_every_request_is_judged_as_a_kubelets_or_as_the_routers(plane: ControlPlane, tmp_path: Path) -> None:
    found: list[tuple[Request, bool, str]] = await judged(plane, tmp_path)
    wrong = [f"{request.who}: {request.what} ({request.verb}): {said}" for request, right, said in found if not right]
    assert wrong == []
    assert len([request for request, _, _ in found if not request.allowed]) >= 25
    assert {request.who for request, _, _ in found} == {"node", "router"}
