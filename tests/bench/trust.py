"""trust.agent_mb.max and trust.other_cluster_status_s.p99: what a hostile cluster costs the agent, and its neighbour.

For each hostile input a process of its own with all that the agent imports follows two clusters: one whose helper is
`hostile_helper`, and an honest one that tells of a change twice a second. TRUST_SECONDS: how long each floods.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import bridge.app  # noqa: F401 - the base that an agent has
from bridge.api.settings import Cluster
from bridge.clusters.link import ClusterLink
from pbs_adapter.channel import Pauses
from pbs_adapter.cluster import HelperOptions, PbsCluster, Timing
from pbs_adapter.remote import wire
from pbs_adapter.transport.local import LocalTransport
from tests.bench.figures import Figure, quantile

MODES = (
    "frames", "parts", "silent", "observations", "statuses", "comments", "deep", "endless", "vnodes", "values",
)  # fmt: skip
SECONDS = float(os.environ.get("TRUST_SECONDS", "60"))
_ROOT = Path(__file__).parents[2]


def program(_name: str) -> tuple[str, bytes]:
    """The hostile helper as a zipapp."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("wire.py", Path(wire.__file__).read_text())
        archive.writestr("__main__.py", Path(__file__).with_name("hostile_helper.py").read_text())
    return "hostile.pyz", packed.getvalue()


def link(mode: str, folder: str) -> tuple[PbsCluster, ClusterLink]:
    """A cluster whose helper behaves so."""
    account = {"transport": {"type": "local"}, "sharedTrust": True}
    settings = Cluster.model_validate({"name": mode, "accounts": [account], "images": [{"image": "*"}], "census": 5})
    options = HelperOptions(
        instance=mode, cluster=mode, epoch=lambda: 1, spool=f"{folder}/{mode}", python=sys.executable
    )
    timing = Timing(pauses=Pauses(first=0.2, longest=1.0))  # it floods again at once
    adapter = PbsCluster({"default": LocalTransport}, options, timing=timing, program=program)
    return adapter, ClusterLink(settings, adapter)


async def follow(mode: str, seconds: float, folder: str) -> list[float]:
    """Seconds from each change on the honest cluster until the agent knows it."""
    late: list[float] = []
    hostile, other = link(mode, folder), link("honest", folder)

    def changed(_: object) -> None:
        seen = other[1].of_account("default").get("pod")
        if seen is not None:
            late.append(time.time() - seen.pbs.at)

    other[1].on_change.append(changed)
    running = []
    for adapter, each in (hostile, other):
        await adapter.start()
        running.append(asyncio.ensure_future(each.run()))
    await asyncio.sleep(seconds)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.gather(hostile[0].aclose(), other[0].aclose())
    return late


def main() -> None:
    """In the process of its own."""
    with TemporaryDirectory() as folder:
        late = asyncio.run(follow(sys.argv[1], float(sys.argv[2]), folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"late": late, "mb": peak}))


def measure(_theatre: object = None) -> Iterator[Figure]:
    """One process for each hostile input."""
    peaks, late = dict[str, float](), list[float]()
    for mode in MODES:
        command = [sys.executable, "-c", "from tests.bench.trust import main; main()", mode, str(SECONDS)]
        done = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        peaks[mode] = found["mb"]
        worst = max(found["late"], default=SECONDS)
        late += found["late"] or [SECONDS]
        print(f"  {mode}: {found['mb']:.0f} MiB, {len(found['late'])} changes, at most {worst:.2f} s", file=sys.stderr)
    note = ", ".join(f"{mode} {peak:.0f}" for mode, peak in peaks.items())
    yield Figure("trust.agent_mb.max", max(peaks.values()), "MiB", "≤ 256", tuple(peaks.values()), note)
    yield Figure(
        "trust.other_cluster_status_s.p99", quantile(late, 0.99), "s", "≤ 2", tuple(late), f"{len(late)} changes"
    )


if __name__ == "__main__":
    for each in measure():
        print(each.key, each.value, each.note)
