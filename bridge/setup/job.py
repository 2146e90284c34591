"""Runs one small PBS job that writes into the spool what its compute node has, and reads that on the login node."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from bridge.api.settings import Account, Cluster
from bridge.plan.resources import site_options
from bridge.setup import shell
from bridge.setup.login_checks import LoginNode
from bridge.setup.shell import FIND_PBS, MISSING, RUNTIMES, VERSION, Answer, ask, plain
from pbs_adapter.models import JobRef, JobRequest
from pbs_adapter.remote import parse
from pbs_adapter.script import Site, qsub
from pbs_adapter.transport import Transport

NAME = "hpc-bridge-doctor"
WALLTIME = 60  # s
LOOK_EVERY = 1.0
LATE = 15  # looks after the job's end
WAITING = ("Q", "H", "W", "T")
Look = Callable[[], Awaitable[Mapping[str, Answer]]]

_PROBE = f"""\
part host uname -n
part clock date +%s.%N
part python sh -c '"$1" -c "$2"' sh "$2" '{VERSION}'
{RUNTIMES}
"""
#: $1 PBS, $2 directory, $3 the job's script, then the qsub command.
_SUBMIT = f"""\
{FIND_PBS}
directory=$2; text=$3; shift 3
part prepare sh -c 'umask 077; mkdir "$1" && cd "$1" && printf %s "$2" > probe.sh' sh "$directory" "$text"
part qsub sh -c 'cd / && exec "$@"' sh "$@"
"""
_LOOK = f"""\
{FIND_PBS}
part listed ls -a "$2"
part read cat "$2/report"
part said tail -c 2000 "$2/job.out"
part state sh -c 'qstat -f "$1" | sed -n "s/^ *\\(job_state\\|comment\\) = /\\1 /p"' sh "$3"
"""
_CLEAN = f"""\
{FIND_PBS}
[ -z "$3" ] || part qdel qdel "$3"
case $2 in */doctor-*) part remove rm -rf -- "$2";; esac
"""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """`report`: the job's parts, empty when none was read. Then `queued` tells whether it still waited (with PBS's
    `comment`), and `said` is the job's own output. `offset`: the compute node's clock minus ours (s), within `doubt`.
    """

    job_id: str
    report: Mapping[str, Answer]
    offset: float = 0.0
    doubt: float = 0.0
    queued: bool = False
    comment: str = ""
    said: str = ""


class NoJob(Exception):
    """PBS did not take the job; the message is PBS's."""


async def run_job(connection: Transport, cluster: Cluster, account: Account, node: LoginNode, wait: float) -> JobSeen:
    """Submit the job, and wait up to `wait` s for what it writes; nothing is left behind.

    Raises NoJob, TransportError, and Rejected for settings that PBS's grammar forbids.
    """
    name, mark = f"doctor-{secrets.token_hex(6)}", shell.new_mark()
    directory = posixpath.join(node.spool, name)
    pbs = cluster.pbs_exec or ""
    argv = command(cluster, account, posixpath.join(cluster.compute_spool or node.spool, name))
    job_id = ""
    try:
        sent = await ask(connection, _SUBMIT, pbs, directory, _script(mark), *argv)
        answer = sent.get("qsub", MISSING)
        if not sent.get("prepare", MISSING).ok:
            raise NoJob(f"{directory}: {sent.get('prepare', MISSING).problem}")
        if not answer.ok:
            raise NoJob(answer.problem)
        job_id = parse.job_id_in(answer.output.decode("utf-8", "replace"))
        if not job_id:
            raise NoJob(f"it answered without a job id: {answer.text}")
        return await _follow(partial(ask, connection, _LOOK, pbs, directory, job_id), job_id, mark, wait)
    finally:
        await asyncio.shield(ask(connection, _CLEAN, pbs, directory, job_id))


def _script(mark: str) -> str:
    """The job: $1 its directory, $2 the compute nodes' Python. The report appears by rename, whole."""
    probe = shell.script(_PROBE, mark)
    head = '#!/bin/sh\n# A job of `hpc-bridge doctor`.\ncd "$1" || exit\nexec >report.new || exit\n'
    return f"{head}{probe}mv report.new report\n"


def command(cluster: Cluster, account: Account, directory: str) -> list[str]:
    """The same command as for a pod, but for what runs. Raises `Rejected` for settings that PBS's grammar forbids."""
    options = replace(site_options(cluster, account.namespaces[0]), walltime=WALLTIME)
    site = Site(directory, posixpath.join(directory, "probe.sh"), cluster.compute_python, cluster.pbs_exec)
    argv = qsub(JobRequest(JobRef(account.name, NAME), NAME, options, ()), site)
    return [*argv[: argv.index("--")], "--", "/bin/sh", site.podrun, directory, cluster.compute_python]


async def _follow(look: Look, job_id: str, mark: str, wait: float) -> JobSeen:
    began = waited_at = time.time()
    late = 0
    while True:
        asked = time.time()
        seen = await look()
        report = shell.parts(b"\n" + seen.get("read", MISSING).output, mark)
        state = _state(seen)
        if report:
            return JobSeen(job_id, report, *_clock(report, waited_at))
        if state.get("job_state", "") in WAITING:
            waited_at = asked
        elif state.get("job_state", "") not in ("R", "E"):
            late += 1  # it has ended: NFS may show its file late
        if late > LATE or time.time() - began > wait:
            queued = state.get("job_state", "") in WAITING
            return JobSeen(job_id, {}, queued=queued, comment=plain(state.get("comment", "")), said=_said(seen))
        await asyncio.sleep(LOOK_EVERY)


def _state(seen: Mapping[str, Answer]) -> dict[str, str]:
    lines = seen.get("state", MISSING).output.decode("utf-8", "replace").splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def _said(seen: Mapping[str, Answer]) -> str:
    answer = seen.get("said", MISSING)
    return answer.text if answer.ok else ""


def _clock(report: Mapping[str, Answer], waited_at: float) -> tuple[float, float]:
    """The compute node's clock minus ours, and how well that is known: it was read after the job last waited."""
    told, now = report.get("clock", MISSING).text, time.time()
    if not told.replace(".", "", 1).isdigit():
        return 0.0, 0.0
    return float(told) - (now + waited_at) / 2, (now - waited_at) / 2
