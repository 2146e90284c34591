"""logs.read_mb_s and logs.follow_ms.p50: kubectl logs, through kube-apiserver, agent, SSH and helper.

kubectl writes to /dev/null, since it writes each line by itself: a file or a pipe would measure these system calls.
logs.port_mb_s is what agent, SSH and helper give without kube-apiserver and kubectl; it counts the bytes too.
"""

from __future__ import annotations

import http.client
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

from bridge.testbed.certs import KUBELET_CLIENT
from bridge.testbed.kubectl import find_kubectl
from tests.bench.figures import Figure, median
from tests.bench.stage import NAMESPACE, BenchError, Shape, Stage, Theatre, wait

MEGABYTES = 25
LINE = "x" * 99
SIZE = MEGABYTES * 1_000_000
ROUNDS = 5
FOLLOWED = 60


def measure(theatre: Theatre) -> Iterator[Figure]:
    """25 MB of lines of 100 bytes are read five times; then a container that tells the time is followed."""
    with theatre.stage(Shape(hosts=1)) as stage:
        writer = f"i=0; while [ $i -lt {MEGABYTES} ]; do yes {LINE} | head -c 1000000; i=$((i+1)); sleep 0.05; done"
        clock = f"i=0; while [ $i -lt {FOLLOWED} ]; do date +%s.%N; i=$((i+1)); sleep 0.3; done"
        stage.create([stage.pod("writer", writer), stage.pod("clock", f"sleep 5; {clock}")])
        follow = follow_ms(stage, "clock")
        wait(lambda: phase(stage, "writer") in ("Succeeded", "Failed"), "the writer's end", 300, pause=0.5)
        direct = tuple(read_port(stage, "writer") for _ in range(ROUNDS))
        reads = tuple(read(stage, "writer") for _ in range(ROUNDS))
        yield Figure("logs.read_mb_s", median(reads), "MB/s", "≥ 30", reads, f"{MEGABYTES} MB, lines of 100 bytes")
        note = "from the kubelet port, without kube-apiserver and kubectl"
        yield Figure("logs.port_mb_s", median(direct), "MB/s", "", direct, note)
        yield Figure("logs.follow_ms.p50", median(follow), "ms", "≤ 500", tuple(follow))


def phase(stage: Stage, name: str) -> str:
    """A pod's phase."""
    return next(str(pod["status"]["phase"]) for pod in stage.pods() if pod["metadata"]["name"] == name)


def argv(stage: Stage, *words: str) -> list[str]:
    """kubectl logs."""
    return [find_kubectl(), f"--kubeconfig={stage.control_plane.admin_kubeconfig}", "logs", "-n", NAMESPACE, *words]


def read(stage: Stage, name: str) -> float:
    """MB per second of a whole log, by kubectl."""
    began = time.monotonic()
    subprocess.run(argv(stage, name), stdout=subprocess.DEVNULL, check=True)
    return SIZE / 1e6 / (time.monotonic() - began)


def read_port(stage: Stage, name: str) -> float:
    """MB per second of a whole log, as kube-apiserver gets it."""
    trust = ssl.create_default_context(cafile=str(stage.control_plane.ca_file))
    trust.load_cert_chain(*stage.control_plane.ca.write("bench", KUBELET_CLIENT))
    node = stage.control_plane.kubectl(
        "get", "node", stage.node, "-o", "jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}"
    )
    began, size = time.monotonic(), 0
    with closing(http.client.HTTPSConnection(stage.agent.address, int(node.stdout), context=trust)) as port:
        port.request("GET", f"/containerLogs/{NAMESPACE}/{name}/main")
        answer = port.getresponse()
        while block := answer.read1(1 << 18):
            size += len(block)
    if size != SIZE:
        raise BenchError(f"{size} bytes of {name}'s log came, not {SIZE}")
    return size / 1e6 / (time.monotonic() - began)


def follow_ms(stage: Stage, name: str) -> list[float]:
    """Milliseconds from a line's writing to its coming out of `kubectl logs -f`."""
    wait(lambda: phase(stage, name) == "Running", f"{name} running", 60)
    offset = stage.clock_offset()
    delays = []
    with subprocess.Popen(argv(stage, "-f", name), stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            raise BenchError("no output")
        for line in process.stdout:
            delays.append((time.time() - (float(line) - offset)) * 1000)
    return delays
