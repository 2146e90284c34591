"""What a former leader decided is not written."""

from __future__ import annotations

import pytest
from memorykube import MemoryKube

from bridge.kube.errors import NotFound, Unavailable
from bridge.kube.leading import LeaderOnly


async def test_only_a_leader_writes_and_everybody_reads() -> None:
    kube, leads = MemoryKube(), False
    only = LeaderOnly(kube, lambda: leads)
    body = {"metadata": {"name": "x", "uid": "u"}}
    for write in (only.create("/things", body), only.patch("/things/x", body), only.delete("/things/x", uid="u")):
        with pytest.raises(Unavailable, match="Lease has run out"):
            await write
    assert kube.writes == []
    with pytest.raises(NotFound):
        await only.get("/things/x")
    leads = True
    await only.create("/things", body)
    assert (await only.get("/things/x"))["metadata"]["name"] == "x"
