"""What `init` sees of a cluster: two shell scripts over one connection, and what their answers mean."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.setup.shell import FIND_PBS, MISSING, RUNTIMES, VERSION, Answer, ask, plain
from pbs_adapter.models import Census
from pbs_adapter.remote import parse
from pbs_adapter.transport import Transport

#: Variables by which sites name their file systems, in the order in which they are taken.
PLACES = ("HOME", "WORK", "WORKDIR", "PROJECT", "SCRATCH", "SCRATCHDIR")
#: File systems that several hosts mount, as df and stat name them.
SHARED = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "afs", "panfs", "orangefs", "pvfs", "glusterfs", "wekafs",
    "fuse.sshfs", "vast", "dvs", "gfs2", "ocfs2",
)  # fmt: skip

_LOOK = f"""\
{FIND_PBS}
part exec printf %s "$pbs"
part configured grep -q '^ *PBS_EXEC *=' /etc/pbs.conf
part server qstat -B -f -F json
part queues qstat -Q -f -F json
part vnodes pbsnodes -av -F json
part user id -un
part groups id -Gn
part host uname -n
part machine uname -m
part kernel uname -r
part os sh -c '. /etc/os-release; printf %s "$PRETTY_NAME"'
case $SHELL in *csh) login=-c;; *) login=-lc;; esac
part places sh -c '"$1" "$2" env | grep -E "^({"|".join(PLACES)})=/"' sh "${{SHELL:-/bin/sh}}" "$login"
for each in python3 python3.13 python3.12 python3.11 python3.9 python3.8 python3.6 /usr/libexec/platform-python; do
    part "python:$each" "$each" -c '{VERSION}'
done
part system-python /usr/bin/python3 -c '{VERSION}'
{RUNTIMES}
"""
_FILE_SYSTEMS = """\
for each in "$@"; do
    part "$each" sh -c '[ -d "$1" ] && [ -w "$1" ] && df -PT "$1" | tail -n 1' sh "$each"
done
"""


class NotACluster(Exception):
    """The login node answers, but no PBS does; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that may hold the spool: the variable that names it, its path, the file system and the bytes free."""

    variable: str
    path: str
    kind: str
    free: int

    @property
    def shared(self) -> bool:
        """Is it, by its kind, a file system that several hosts mount?"""
        return self.kind.startswith(SHARED)


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was seen. `python`: program on the login node and its version, or None. runtimes: name → version."""

    user: str
    groups: tuple[str, ...]
    census: Census
    pbs_exec: str
    pbs_configured: bool  # /etc/pbs.conf names it, so that the helper finds it too
    python: tuple[str, str] | None
    system_python: str  # version of /usr/bin/python3; empty: none
    bubblewrap: Answer
    runtimes: Mapping[str, str]
    places: tuple[Place, ...]


async def look(transport: Transport, pbs_exec: str | None) -> Findings:
    """Look at the cluster as the account that the transport logs in as. Raises TransportError and NotACluster."""
    seen = await ask(transport, _LOOK, pbs_exec or "")
    census = census_of(seen)
    named = dict(line.split("=", 1) for line in _lines(seen, "places") if "=" in line)
    wanted = [named[name] for name in PLACES if name in named]
    systems = await ask(transport, _FILE_SYSTEMS, *dict.fromkeys(wanted))
    pythons = [(name[7:], answer.text) for name, answer in seen.items() if name.startswith("python:") and answer.ok]
    return Findings(
        user=seen.get("user", MISSING).text,
        groups=tuple(seen.get("groups", MISSING).text.split()),
        census=census,
        pbs_exec=seen.get("exec", MISSING).text,
        pbs_configured=seen.get("configured", MISSING).ok,
        python=pythons[0] if pythons else None,
        system_python=seen["system-python"].text if seen.get("system-python", MISSING).ok else "",
        bubblewrap=seen.get("bwrap", MISSING),
        runtimes={n: seen[n].text for n in ("apptainer", "singularity") if n in seen and seen[n].ok},
        places=tuple(_places({name: named[name] for name in PLACES if name in named}, systems)),
    )


def census_of(seen: Mapping[str, Answer]) -> Census:
    """The census in the parts server, queues and vnodes. Raises NotACluster."""
    for name, command in (("server", "qstat -B"), ("queues", "qstat -Q"), ("vnodes", "pbsnodes -av")):
        answer = seen.get(name, MISSING)
        if not answer.ok:
            hint = "; say with --pbs-exec where PBS is installed" if answer.status == 127 else ""
            raise NotACluster(f"{command} on the login node: {answer.problem}{hint}")
    facts = {key: seen.get(part, MISSING).text for key, part in (("hostname", "host"), ("arch", "machine"))}
    facts |= {key: seen.get(key, MISSING).text for key in ("kernel", "os")}
    try:
        return Census(
            at=time.time(),
            server=parse.parse_server(seen["server"].output),
            queues=tuple(parse.parse_queues(seen["queues"].output).values()),
            vnodes=tuple(parse.parse_nodes(seen["vnodes"].output).values()),
            host=facts,
        )
    except parse.ParseError as error:
        raise NotACluster(f"what PBS says of its queues and nodes cannot be read: {error}") from error


def _lines(seen: Mapping[str, Answer], name: str) -> list[str]:
    return seen.get(name, MISSING).output.decode("utf-8", "replace").splitlines()


def _places(named: Mapping[str, str], systems: Mapping[str, Answer]) -> list[Place]:
    """`df -PT` prints: device, type, kilobytes, used, available, capacity, mount point."""
    found = []
    for variable, path in named.items():
        words = systems.get(path, MISSING).text.split()
        if len(words) >= 7 and words[4].isdigit() and path == plain(path):
            found.append(Place(variable, path, words[1], int(words[4]) * 1024))
    return found
