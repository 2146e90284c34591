"""route.census_s and route.census_mb: what reading a large site's census costs the agent, 1,000 hosts and 20,000 jobs.

A process of its own reads it three times, as the agent does once a minute; the resident size that has grown by then is
what the agent pays, and teaching the wait model is counted in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge.routing.waits import WaitModel
from pbs_adapter import cluster_convert as convert
from tests.bench.figures import Figure

HOSTS, JOBS, ROUNDS = 1000, 20_000, 3
_LINE = "{:<30} {:<15} {:<15} {:<15} {:>8} {:>4} {:>5} {:>6} {:>5} {} {:>5}"
_ROOT = Path(__file__).parents[2]


def vnodes() -> str:
    """`pbsnodes -av -F json`: two NUMA domains a host, three quarters of all CPUs taken."""
    found = {}
    for host in range(HOSTS):
        for domain in range(2):
            jobs = [f"{host * 20 + domain * 10 + n}.server.example.org/{n}" for n in range(6)]
            found[f"node{host:04}[{domain}]"] = {
                "Mom": f"node{host:04}.example.org",
                "Port": 15002,
                "pbs_version": "23.06.06",
                "ntype": "PBS",
                "state": "free",
                "pcpus": 64,
                "jobs": jobs,
                "resources_available": {
                    "arch": "linux",
                    "host": f"node{host:04}",
                    "mem": "263852544kb",
                    "ncpus": 32,
                    "vnode": f"node{host:04}[{domain}]",
                },
                "resources_assigned": {"mem": "100000000kb", "ncpus": 24},
                "sharing": "default_shared",
                "license": "l",
                "last_state_change_time": 1796030700,
            }
    return json.dumps({"timestamp": 1796030800, "pbs_version": "23.06.06", "nodes": found}, indent=4)


def table(first: int = 0) -> str:
    """`qstat -a -w` of as many jobs, two fifths of which run; numbered from `first`."""
    lines = ["", "server: ", " ".join("-" * width for width in (30, 15, 15, 15, 8, 4, 5, 6, 5, 1, 5))]
    for n in range(first, first + JOBS):
        runs = n % 5 < 2
        job_id, name, session, cpus = f"{n}.server.example.org", f"job-{n % 1000}", n if runs else "--", 1 << n % 6
        state, elapsed = ("R", "01:10") if runs else ("Q", "--")
        owner, queue = f"user{n % 200:03}", f"q_{n % 8}d"
        lines.append(_LINE.format(job_id, owner, queue, name, session, 1, cpus, "4gb", "24:00", state, elapsed))
    return "\n".join(lines) + "\n"


def answer(at: float, first: int) -> tuple[dict[str, object], bytes]:
    """Head and body as the helper sends them."""
    queues = {f"q_{n}d": {"queue_type": "Execution", "enabled": "True", "started": "True"} for n in range(8)}
    outputs = [
        json.dumps({"Server": {"server": {"default_queue": "q_1d", "query_other_jobs": "True"}}}),
        json.dumps({"Queue": queues}),
        vnodes(),
        table(first),
    ]
    encoded = [output.encode() for output in outputs]
    sizes = dict(zip(("server_size", "queues_size", "vnodes_size", "jobs_size"), map(len, encoded), strict=True))
    return {"at": at, "jobs_at": at, "host": {"user": "user001"}, "runtimes": [], **sizes}, b"".join(encoded)


def main() -> None:
    """In the process of its own: seconds of each round, and MiB that it has grown by."""
    folder = Path(sys.argv[1])
    model, census, seconds, before = WaitModel(), None, [], resident()
    for index in range(ROUNDS):
        head, body = json.loads((folder / f"{index}.json").read_text()), (folder / f"{index}.body").read_bytes()
        begun = time.process_time()
        census = convert.census(head, body, census)
        model.learn("large", census, float(head["at"]))
        seconds.append(time.process_time() - begun)
        del body
    print(json.dumps({"seconds": seconds, "mib": resident() - before}))


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def measure(_theatre: object = None) -> Iterator[Figure]:
    """Prepare the answers in files, so that only reading them counts."""
    with TemporaryDirectory() as folder:
        for index in range(ROUNDS):
            head, body = answer(1796030800.0 + 300 * index, 500 * index)
            Path(folder, f"{index}.json").write_text(json.dumps(head))
            Path(folder, f"{index}.body").write_bytes(body)
        command = [sys.executable, "-c", "from tests.bench.census import main; main()", folder]
        done = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    seconds = tuple(found["seconds"])
    yield Figure(
        "route.census_s", max(seconds), "s", "≤ 1.5", seconds, "CPU time; 1,000 hosts, 20,000 jobs, parsed and learnt"
    )
    yield Figure("route.census_mb", found["mib"], "MiB", "≤ 30", note="growth of the agent's resident size")


if __name__ == "__main__":
    for each in measure():
        print(each)
