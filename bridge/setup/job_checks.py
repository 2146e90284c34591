"""What only a job can tell of a cluster: is the spool shared, and what does a compute node have? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bridge.api.settings import Cluster
from bridge.setup.checks import Check, Rows
from bridge.setup.job import JobSeen
from bridge.setup.login_checks import clock_row
from bridge.setup.shell import MISSING, Answer

JOB, SHARED, RUNTIME = "a small job", "spool shared", "runtime on the compute node"
PYTHON, CLOCK = "Python on the compute node", "clock of the compute node"
EVERY = (JOB, SHARED, RUNTIME, PYTHON, CLOCK)


def judge_job(rows: Rows, cluster: Cluster, seen: JobSeen, wait: float, server: str = "") -> Iterator[Check]:
    """The rows of a job that PBS took. `server`: the name of the server that qstat asks, where it is known."""
    if server and not same_server(seen.job_id, server):
        text = f"qsub made {seen.job_id}, but qstat asks the server {server}: pods' jobs would not be found again"
        yield rows.failed(JOB, text, "pbsExec, PBS_SERVER, wrappers of qsub: have both ask one server")
        yield from rows.unseen((SHARED, RUNTIME, PYTHON, CLOCK), JOB)
        return
    if not seen.report and seen.queued:
        why = f"{seen.job_id} still waited after {wait:.0f} s and was cancelled"
        why += f": {seen.comment}" if seen.comment else ""
        yield rows.skipped(JOB, why, "try again with a longer --wait, when the cluster is less busy")
        yield from rows.unseen((SHARED, RUNTIME, PYTHON, CLOCK), "a job that runs")
        return
    yield rows.ok(JOB, f"{seen.job_id} was taken and started")
    if not seen.report:
        text = "the job wrote nothing that the login node sees" + (f"; it said: {seen.said}" if seen.said else "")
        yield rows.failed(SHARED, text, "spool, computeSpool: name a directory that compute nodes and login node share")
        yield from rows.unseen((RUNTIME, PYTHON, CLOCK), SHARED)
        return
    host = seen.report.get("host", MISSING).text
    yield rows.ok(SHARED, f"{host} wrote, the login node read it back")
    yield _runtime(rows, cluster, seen.report)
    python = seen.report.get("python", MISSING)
    if python.ok:
        yield rows.ok(PYTHON, python.text)
    else:
        told = python.text or python.problem
        yield rows.failed(
            PYTHON, told, f"computePython: name a Python of 3.6 or newer there, not {cluster.compute_python}"
        )
    yield clock_row(rows, CLOCK, seen.offset, seen.doubt)


def same_server(job_id: str, server: str) -> bool:
    """Whether a job of that id is one of that server's. Names of one server may be cut at a dot.

    >>> same_server("1.alpha.example.org", "alpha"), same_server("1.omega", "alpha")
    (True, False)
    """
    name = job_id.partition(".")[2]
    return name == server or name.startswith(server + ".") or server.startswith(name + ".")


def _runtime(rows: Rows, cluster: Cluster, report: Mapping[str, Answer]) -> Check:
    """Every kind of runtime that the images of this cluster are mapped to must work; `host` by bubblewrap."""
    bubblewrap, namespaces = report.get("bwrap", MISSING), report.get("userns", MISSING).ok
    found = [name for name in ("apptainer", "singularity") if report.get(name, MISSING).ok]
    image = any(namespaces or report.get(f"{name}-setuid", MISSING).ok for name in found)
    told = [f"bubblewrap {'works' if bubblewrap.ok else f'does not work ({bubblewrap.problem})'}"]
    told += [report[name].text for name in found]
    told += [f"user namespaces are {'allowed' if namespaces else 'not allowed'}"]
    wanted = {str(rule.runtime) for rule in cluster.images} or {"host"}
    walled = bubblewrap.ok or cluster.isolation == "optional"
    if ("host" not in wanted or walled) and (wanted <= {"host"} or image):
        return rows.ok(RUNTIME, ", ".join(told))
    advice = (
        "ask the site for bubblewrap or apptainer, and for user namespaces (user.max_user_namespaces) or a setuid "
        "installation; without bubblewrap pods of the runtime host fail, or run unconfined with isolation: optional"
    )
    return rows.failed(RUNTIME, ", ".join(told), advice)
