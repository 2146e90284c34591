"""What `doctor` checks on a login node, and what the answers mean. `judge_login` is pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bridge.api.settings import Cluster, SshTransport, Transport
from bridge.setup.checks import Check, Rows
from bridge.setup.look import NotACluster, census_of
from bridge.setup.queues import unusable
from bridge.setup.shell import FIND_PBS, MISSING, VERSION, Answer, ask
from pbs_adapter.models import Census
from pbs_adapter.transport import AuthenticationRefused, HostKeyRefused, TransportError
from pbs_adapter.transport import Transport as Connection
from pbs_adapter.transport.install import SAFE

SSH, HOST_KEY, CLOCK, PYTHON = "SSH", "host key", "clock of the login node", "Python on the login node"
COMMANDS, QUEUE, SPOOL = "PBS commands", "queue", "spool on the login node"
AFTER_SSH = (CLOCK, PYTHON, COMMANDS, QUEUE, SPOOL)
NEEDED = ("qsub", "qstat", "qdel", "qselect", "pbsnodes")
MOST_APART = 10.0  # s between two clocks; container times and the age of reports are compared across hosts

_LOGIN = f"""\
{FIND_PBS}
part python sh -c '"$1" -c "$2"' sh "$2" '{VERSION}'
for each in {" ".join(NEEDED)}; do part "command:$each" sh -c 'command -v "$1"' sh "$each"; done
part server qstat -B -f -F json
part queues qstat -Q -f -F json
part vnodes pbsnodes -av -F json
part user id -un
part groups id -Gn
case $3 in "~/"*) spool=$HOME/${{3#"~/"}};; *) spool=$3;; esac
part spool sh -c 'umask 077; mkdir -p "$1" && [ -w "$1" ] && cd "$1" && pwd' sh "$spool"
{SAFE}fail() {{ echo "$1"; exit 1; }}
check() {{ (safe "$1"); }}
part safe check "$spool"
"""


@dataclass(frozen=True, slots=True)
class LoginNode:
    """What the login node answered; `offset`: its clock minus ours (s), known within `doubt`."""

    parts: Mapping[str, Answer]
    offset: float
    doubt: float

    @property
    def spool(self) -> str:
        """The spool's absolute path; empty: it cannot be used."""
        answer = self.parts.get("spool", MISSING)
        return answer.output.decode("utf-8", "replace").strip() if answer.ok else ""


async def visit(connection: Connection, cluster: Cluster) -> LoginNode:
    """Ask the login node. Raises TransportError."""
    before = time.time()
    clock = await ask(connection, "part clock date +%s.%N\n")
    after = time.time()
    told = clock.get("clock", MISSING).text
    offset = float(told) - (before + after) / 2 if told.replace(".", "", 1).isdigit() else 0.0
    parts = await ask(connection, _LOGIN, cluster.pbs_exec or "", cluster.python, cluster.spool)
    return LoginNode(parts, offset, (after - before) / 2)


def unreachable(rows: Rows, transport: Transport, error: TransportError) -> list[Check]:
    """The rows of a login node that could not be asked."""
    text = str(error)
    if isinstance(error, HostKeyRefused):
        advice = "compare the fingerprint with the site's, then put the key into knownHostsFile (hpc-bridge init does)"
        return [rows.failed(SSH, "refused by us: see host key", advice), rows.failed(HOST_KEY, text, advice)]
    if isinstance(error, AuthenticationRefused):
        advice = "install the public key for this user on the cluster (authorized_keys), or name another keyFile"
    elif isinstance(transport, SshTransport):
        advice = f"can this machine reach {transport.host} port {transport.port}? Is a login shell printing errors?"
    else:
        advice = "run the command of the transport by hand with a shell line as last argument"
    known = [rows.ok(HOST_KEY, "as knownHostsFile has it")] if isinstance(error, AuthenticationRefused) else []
    return [rows.failed(SSH, text, advice), *(known or rows.unseen([HOST_KEY], SSH))]


def judge_login(rows: Rows, cluster: Cluster, transport: Transport, node: LoginNode) -> Iterator[Check]:
    """The rows of a login node that answered."""
    yield rows.ok(SSH, f"a shell as {node.parts.get('user', MISSING).text}")
    if isinstance(transport, SshTransport):
        yield rows.ok(HOST_KEY, "as knownHostsFile has it")
    else:
        yield rows.skipped(HOST_KEY, f"a transport of type {transport.type} has its own ways")
    yield clock_row(rows, CLOCK, node.offset, node.doubt)
    python = node.parts.get("python", MISSING)
    if python.ok:
        yield rows.ok(PYTHON, python.text)
    else:
        told = python.text or python.problem
        yield rows.failed(
            PYTHON, told, f"python: name a Python of 3.6 or newer on the login node, not {cluster.python}"
        )
    yield from _pbs(rows, cluster, node)
    safe = node.parts.get("safe", MISSING)
    if node.spool and not safe.ok:
        advice = "mend owner or mode as it says, or name another directory: who can write there can act as this account"
        yield rows.failed(SPOOL, safe.text or safe.problem, advice)
    elif node.spool:
        yield rows.ok(SPOOL, node.spool)
    else:
        text = node.parts.get("spool", MISSING).problem
        yield rows.failed(SPOOL, text, "spool: name a directory that this account may make and write")


def clock_row(rows: Rows, name: str, offset: float, doubt: float) -> Check:
    """Whether a clock agrees with ours."""
    apart = max(0.0, abs(offset) - doubt)
    if apart <= MOST_APART:
        return rows.ok(name, f"{apart:.1f} s apart from here" if apart >= 0.1 else "agrees with ours")
    word = "ahead of" if offset > 0 else "behind"
    return rows.failed(name, f"{apart:.0f} s {word} ours", "set both clocks by NTP: times of containers would be wrong")


def _pbs(rows: Rows, cluster: Cluster, node: LoginNode) -> Iterator[Check]:
    missing = [name for name in NEEDED if not node.parts.get(f"command:{name}", MISSING).ok]
    if missing:
        yield rows.failed(COMMANDS, f"not found: {', '.join(missing)}", "pbsExec: say where PBS is installed")
        yield from rows.unseen([QUEUE], COMMANDS)
        return
    try:
        census = census_of(node.parts)
    except NotACluster as error:
        yield rows.failed(COMMANDS, str(error), "run it by hand on the login node; is the PBS server up?")
        yield from rows.unseen([QUEUE], COMMANDS)
        return
    yield rows.ok(COMMANDS, f"PBS {census.server.version or 'of unknown version'}, server {census.server.name}")
    groups = node.parts.get("groups", MISSING).text.split()
    yield _queue(rows, cluster, census, node.parts.get("user", MISSING).text, groups)


def _queue(rows: Rows, cluster: Cluster, census: Census, user: str, groups: list[str]) -> Check:
    wanted = list(dict.fromkeys([cluster.queue or census.server.default_queue, *cluster.queues]))
    queues = {queue.name: queue for queue in census.queues}
    usable = ", ".join(name for name, queue in queues.items() if not unusable(queue, user, groups)) or "none"
    for name in wanted:
        problem = unusable(queues[name], user, groups) if name in queues else "does not exist"
        if problem:
            return rows.failed(
                QUEUE, f"{name or 'the default queue'}: {problem}", f"queue, queues: usable are {usable}"
            )
    return rows.ok(QUEUE, ", ".join(wanted))
