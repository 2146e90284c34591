"""Which NUMA domains of the host the job may use, and whether that is one of them, for pods that require it.

PBS may confine a job to a cpuset (pbs_cgroups); only from inside can that be seen. Memory nodes are usually not fenced:
the kernel takes memory from the domain of the CPU as long as there is some, so the list must only have that domain.
"""

import os
import re
from typing import Any, Dict, FrozenSet, NamedTuple

NODES = "/sys/devices/system/node"
_NODE = re.compile(r"node(\d{1,6})", re.ASCII)
_ALLOWED = re.compile(r"^(Cpus|Mems)_allowed_list:\s*([\d,-]*)$", re.MULTILINE)
_SHOWN = 200


class Given(NamedTuple):
    """`cpus`, `mems`: the kernel's lists of what the job may use. `domains`: CPUs of each domain that has any."""

    cpus: str
    mems: str
    domains: Dict[int, FrozenSet[int]]

    @property
    def used(self) -> FrozenSet[int]:
        """The domains that the allowed CPUs are in."""
        allowed = numbers(self.cpus)
        return frozenset(node for node, cpus in self.domains.items() if cpus & allowed)

    @property
    def confined(self) -> bool:
        """Whether some CPU of the host is not allowed."""
        return bool(frozenset().union(*self.domains.values()) - numbers(self.cpus)) if self.domains else False

    def shown(self) -> Dict[str, Any]:
        """For status.json."""
        lists = {"cpus": self.cpus[:_SHOWN], "mems": self.mems[:_SHOWN]}
        return dict(lists, domains=len(self.used), of=len(self.domains), confined=self.confined)


def numbers(text: str) -> FrozenSet[int]:
    """The numbers in one of the kernel's lists.

    >>> sorted(numbers("0-2,8")), sorted(numbers(""))
    ([0, 1, 2, 8], [])
    """
    found = set()  # type: ignore[var-annotated]
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def look(nodes: str = "", status: str = "/proc/self/status") -> Given:
    """What this process may use. A kernel that shows no NUMA nodes has one domain, and no `domains`.

    HPC_BRIDGE_NUMA_NODES names another folder to read instead of the kernel's.
    """
    nodes = nodes or os.environ.get("HPC_BRIDGE_NUMA_NODES", NODES)
    with open(status) as file:
        lists = dict(_ALLOWED.findall(file.read()))
    domains = {}
    try:
        names = sorted(os.listdir(nodes))
    except OSError:
        names = []
    for match in filter(None, map(_NODE.fullmatch, names)):
        with open(os.path.join(nodes, match.group(), "cpulist")) as file:
            cpus = numbers(file.read())
        if cpus:
            domains[int(match.group(1))] = cpus
    return Given(lists.get("Cpus", ""), lists.get("Mems", ""), domains)


def split(given: Given, by_vnodes: bool) -> str:
    """Why the job is not within one NUMA domain; "" when it is.

    by_vnodes: PBS has kept the job on one vnode, and vnodes are domains. Then a job that no cpuset confines is well.
    """
    used = given.used
    if len(given.domains) < 2 or (by_vnodes and not given.confined):
        return ""
    if len(used) == 1 and used <= numbers(given.mems):
        return ""
    where = "in %d of the %d NUMA domains" % (len(used), len(given.domains))
    if len(used) == 1:
        where = "of NUMA domain %d, without its memory" % min(used)
    text = "numa: require asks for one NUMA domain, and the job may use CPUs %s and memory of nodes %s on %s: %s"
    return text % (given.cpus[:_SHOWN], given.mems[:_SHOWN], os.uname()[1], where)
