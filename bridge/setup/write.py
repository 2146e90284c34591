"""bridge.yaml for a cluster that was looked at, each choice with its reason beside it. Pure.

What the cluster said is untrusted: it appears as quoted values and printable comments only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from bridge.setup.look import Findings, Place
from bridge.setup.queues import choose, limits, shown, unusable
from bridge.setup.shell import plain
from pbs_adapter.remote.parse import Queue, group_by_host

WALLTIME = 3600
_AROUND = 30 + 60  # the default grace period and walltimeMargin, which are added to what a pod asks


@dataclass(frozen=True, slots=True)
class Login:
    """How the account is reached; the files' paths are absolute."""

    host: str
    port: int
    user: str
    key_file: str
    known_hosts_file: str


def bridge_yaml(login: Login, seen: Findings, date: str) -> str:
    """The text of the file. `date`: as it is to appear in it."""
    lines = [
        f"# Written by `hpc-bridge init {login.user}@{login.host}` on {date}. Check it with",
        "#   hpc-bridge validate -c bridge.yaml    and    hpc-bridge doctor -c bridge.yaml",
        "#",
        *(f"# {line}" for line in _seen(seen)),
        "kubelet:",
        "  address: 127.0.0.1 # what the API server dials for logs: this agent's address as the API server sees it",
        "clusters:",
        *(f"  {'- ' if number == 0 else '  '}{line}" for number, line in enumerate(_cluster(login, seen))),
    ]
    return "\n".join(lines) + "\n"


def value(anything: object) -> str:
    """A scalar or flat list as YAML, quoted where it must be.

    >>> value("workq"), value("yes"), value("a: b\\n#"), value(["x", "1"])
    ('workq', "'yes'", '"a: b\\\\n#"', "[x, '1']")
    """
    if isinstance(anything, list):
        return yaml.safe_dump(anything, default_flow_style=True, width=1 << 20).strip()
    style = '"' if isinstance(anything, str) and not anything.isprintable() else None
    return yaml.safe_dump([anything], default_flow_style=True, default_style=style, width=1 << 20).strip()[1:-1]


def _seen(seen: Findings) -> Iterator[str]:
    server, host = seen.census.server, seen.census.host
    yield f"Seen from {plain(host.get('hostname', ''))} ({host.get('os', '')}, {host.get('arch', '')}) as {seen.user}:"
    yield f"  PBS {plain(server.version) or 'of unknown version'}, server {plain(server.name)}"
    yield from (f"  {line}" for line in _hosts(seen))
    yield from (f"  {line}" for line in _queues(seen))
    yield f"  on the login node: {', '.join(_runtimes(seen))}; compute nodes may differ"


def _hosts(seen: Findings) -> Iterator[str]:
    kinds: Counter[tuple[int, int, int, int]] = Counter()
    for vnodes in group_by_host(seen.census.vnodes).values():
        gpus = sum(int(found) for v in vnodes if isinstance(found := v.available.get("ngpus", 0), int))
        kinds[(sum(v.ncpus for v in vnodes), sum(v.mem for v in vnodes), len(vnodes), gpus)] += 1
    for (ncpus, mem, domains, gpus), count in sorted(kinds.items(), reverse=True):
        accelerators = f", {gpus} GPUs" if gpus else ""
        numa = f", in {domains} NUMA domains" if domains > 1 else ""
        yield f"{count} host{'s' if count > 1 else ''} of {ncpus} cores, {shown('mem', mem)}{accelerators}{numa}"


def _queues(seen: Findings) -> Iterator[str]:
    for queue in seen.census.queues:
        problem = unusable(queue, seen.user, seen.groups)
        said = f"not usable: {problem}" if problem else limits(queue, seen.user) or "usable, no limits to be seen"
        yield plain(f"queue {queue.name}: {said}")


def _runtimes(seen: Findings) -> Iterator[str]:
    works = seen.bubblewrap.ok
    yield "bubblewrap works" if works else f"bubblewrap does not work ({seen.bubblewrap.problem})"
    for name, version in seen.runtimes.items():
        yield f"{name} ({version})"
    yield f"Python {seen.python[1]}" if seen.python else "no Python 3.6 or newer"


def _cluster(login: Login, seen: Findings) -> Iterator[str]:
    usable = choose(seen.census, seen.user, seen.groups)
    yield f"name: {value(cluster_name(seen.census.server.name))} # after the PBS server; the node is pbs-NAME"
    yield "kubeletPort: 10251 # a port of its own for each cluster; `hpc-bridge manifests` and firewalls name it"
    yield "accounts:"
    yield "  - transport:"
    yield "      type: ssh"
    for key, text in (("host", login.host), ("port", login.port), ("user", login.user)):
        yield f"      {key}: {value(text)}"
    yield f"      keyFile: {value(login.key_file)}"
    yield f"      knownHostsFile: {value(login.known_hosts_file)}"
    yield "    namespaces: [default] # whose pods run as this user; several need sharedTrust: true"
    yield from _spool(seen.places)
    if not seen.pbs_configured and seen.pbs_exec:
        yield f"pbsExec: {value(seen.pbs_exec)} # /etc/pbs.conf does not name it"
    yield from _pythons(seen)
    yield from _queue_lines(usable)
    yield from _resources(seen)
    yield from _images(seen)


def cluster_name(server: str) -> str:
    """A DNS label from the server's name.

    >>> cluster_name("PBS_01.site.org"), cluster_name("--")
    ('pbs-01', 'cluster')
    """
    return re.sub(r"[^a-z0-9]+", "-", server.split(".")[0].lower()).strip("-")[:50].strip("-") or "cluster"


def _spool(places: tuple[Place, ...]) -> Iterator[str]:
    chosen = next((place for place in places if place.shared), next(iter(places), None))
    if chosen is None:
        yield "spool: ~/.hpc-bridge # must be on a file system that compute nodes see too; no candidate was found"
        return
    path = "~/.hpc-bridge" if chosen.variable == "HOME" else f"{chosen.path.rstrip('/')}/.hpc-bridge"
    room = f"${chosen.variable} is {plain(chosen.kind)} with {chosen.free / (1 << 30):.0f} GiB free"
    doubt = "" if chosen.shared else "; it looks local to the login node: does `hpc-bridge doctor` find it shared?"
    yield f"spool: {value(path)} # {room}{doubt}"
    for place in places:
        if place is not chosen:
            yield f"# also there: ${place.variable} = {place.path} ({plain(place.kind)})"


def _pythons(seen: Findings) -> Iterator[str]:
    if seen.python is None:
        yield "python: python3 # none of 3.6 or newer was found on the login node: name one here"
    elif seen.python[0] != "python3":
        yield f"python: {value(seen.python[0])} # {seen.python[1]}; python3 is missing or older than 3.6"
    if seen.system_python:
        return
    yield "computePython: /usr/bin/python3 # the login node has none there: name the compute nodes' Python"


def _queue_lines(usable: list[Queue]) -> Iterator[str]:
    if not usable:
        yield "# no queue is usable by this account as far as can be seen: ask the site"
        return
    yield f"queue: {value(usable[0].name)} # for pods that name none"
    yield f"queues: {value([queue.name for queue in usable])} # pods may name these by annotation"
    most = usable[0].resources_max.get("walltime")
    if isinstance(most, int) and most < WALLTIME + _AROUND:
        room = max(60, most - _AROUND)
        yield f"walltime: {room}s # of pods that give none; the queue allows {shown('walltime', most)} in all"
    else:
        yield f"walltime: {WALLTIME}s # of pods that give none"


def _resources(seen: Findings) -> Iterator[str]:
    if any("ngpus" in vnode.available for vnode in seen.census.vnodes):
        yield "resources:"
        yield "  nvidia.com/gpu: ngpus # hosts offer ngpus"


def _images(seen: Findings) -> Iterator[str]:
    yield "images: # which images run, and how; all others are refused"
    yield "  - image: \"busybox:*\" # the pod's command runs on the compute node's own /usr"
    yield "    runtime: host"
    if seen.runtimes:
        yield f"  # {' and '.join(seen.runtimes)} can run an image from a SIF file or directory on the compute nodes:"
        yield '  # - image: "registry.example.org/app:*"'
        yield "  #   runtime: apptainer"
        yield "  #   path: /where/compute/nodes/have/app.sif"
