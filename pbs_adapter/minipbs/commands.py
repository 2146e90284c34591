"""The commands as the server answers them: arguments in, text and an exit status out."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

from . import errors, options, query, resources, submit, values
from .errors import PbsError, UsageError
from .jobs import Job
from .lifecycle import Lifecycle
from .replies import Err, Out, Reply, Request, Until
from .submit import Caller
from .views import VERSION

_ID = re.compile(r"\d+(\[\d*\])?(\.[A-Za-z0-9_.-]+)?(@\S+)?")


def answer(life: Lifecycle, request: Request) -> Reply:
    """Run a command. The last thing yielded is its exit status."""
    if request.argv == ["--version"]:
        yield Out(f"pbs_version = {VERSION}\n")
        yield 0
        return
    try:
        yield from _COMMANDS[request.command](life, request)
    except UsageError as error:
        yield Err(error.text)
        yield error.exit_status
    except PbsError as error:
        yield Err(f"{request.command}: {error.text}\n")
        yield error.exit_status


def qsub(life: Lifecycle, request: Request) -> Reply:
    """Submit one job."""
    complex_ = life.complex
    submission = submit.parse(request.argv, request.script)
    queue = submit.destination(submission, complex_.config)
    complex_.queue(queue)
    typed, script, seq = request.argv, request.script or "", complex_.next_seq
    job = submit.build(submission, typed, script, request.caller, complex_.config, queue, seq, request.now)
    complex_.check_accepts(queue, job.owner, job.attrs["Resource_List"])
    complex_.next_seq += 1
    life.enqueue(job, submission.others.get("depend", ""), request.now)
    if "z" not in submission.values:
        yield Out(f"{job.id}\n")
    yield 0


def _for_each(life: Lifecycle, request: Request, ids: list[str], act: Callable[[Job], None]) -> Reply:
    """Do something to each job named; the exit status is that of the last failure."""
    status = 0
    server, dialect = life.complex.config.server, life.complex.config.dialect
    if not ids:
        raise UsageError(f"usage:\n\t{request.command} job_identifier...\n")
    for text in ids:
        if not _ID.fullmatch(text) or values.elsewhere(text.partition("@")[0], server):
            yield Err(f"{request.command}: illegally formed job identifier: {text}\n")
            status = 1
            continue
        try:
            act(life.complex.find(text.partition("@")[0]))
        except PbsError as error:
            shown = text if "." in text or (dialect == "release" and request.command == "qdel") else f"{text}.{server}"
            yield Err(f"{request.command}: {error.text} {shown}\n")
            status = error.exit_status
    yield status


def qdel(life: Lifecycle, request: Request) -> Reply:
    """Delete jobs; `-x` takes finished ones out of the history, `-W force` forgets those whose MoM does not answer."""
    given, ids = options.getopt("W:x", request.argv, "usage:\n\tqdel [-W force] [-x] job_identifier...\n", "qdel")
    purge = ("x", "") in given

    def act(job: Job) -> None:
        if purge and job.finished:
            if job.owner != request.caller.user and not request.caller.manager:
                raise PbsError(errors.PERMISSION)
            life.complex.forget(job)
            return
        life.delete(job, request.caller, request.now)
        if purge and job.finished:
            life.complex.forget(job)

    yield from _for_each(life, request, ids, act)


def qhold(life: Lifecycle, request: Request) -> Reply:
    """Hold jobs (u, or what -h says)."""
    yield from _hold(life, request, life.hold)


def qrls(life: Lifecycle, request: Request) -> Reply:
    """Release jobs."""
    yield from _hold(life, request, life.release)


def _hold(life: Lifecycle, request: Request, change: Callable[[Job, set[str], Caller, float], None]) -> Reply:
    usage = f"usage: {request.command} [-h hold_list] job_identifier ...\n"
    given, ids = options.getopt("h:", request.argv, usage, request.command)
    kinds = set(dict(given).get("h", "u")) & set("uosnp")
    if kinds - {"u"} and not request.caller.manager:
        raise PbsError(errors.PERMISSION)
    yield from _for_each(life, request, ids, lambda job: change(job, kinds, request.caller, request.now))


def qmove(life: Lifecycle, request: Request) -> Reply:
    """Move jobs to another queue."""
    _, words = options.getopt("", request.argv, "usage: qmove destination job_identifier...\n", "qmove")
    queue = words[0].partition("@")[0] if words else ""
    yield from _for_each(life, request, words[1:], lambda job: life.move(job, queue, request.caller, request.now))


def qrerun(life: Lifecycle, request: Request) -> Reply:
    """Requeue running jobs; ends when they are queued again."""
    _, ids = options.getopt("W:", request.argv, "usage: qrerun job_identifier...\n", "qrerun")
    reply = list(_for_each(life, request, ids, lambda job: life.rerun(job, request.caller)))
    jobs = [job for text in ids if (job := life.complex.jobs.get(submit.full_id(text, life.complex.config.server)))]
    yield Until(lambda: not any(job.rerunning for job in jobs))
    yield from reply


def qsig(life: Lifecycle, request: Request) -> Reply:
    """Signal every process of running jobs; suspend and resume are for managers."""
    given, ids = options.getopt("s:", request.argv, "usage: qsig [-s signal] job_identifier...\n", "qsig")
    name = dict(given).get("s", "SIGTERM")

    def act(job: Job) -> None:
        life.permit(job, request.caller)
        if name in ("suspend", "resume"):
            _suspend(life, request, job, name == "suspend")
            return
        if job.state not in "RS":
            raise PbsError(errors.BAD_STATE)
        life.mom.signal(job, signal_number(name))

    yield from _for_each(life, request, ids, act)


def _suspend(life: Lifecycle, request: Request, job: Job, stop: bool) -> None:
    if not request.caller.manager:
        raise PbsError(errors.PERMISSION)
    if job.state != ("R" if stop else "S"):
        raise PbsError(errors.BAD_STATE)
    if stop:
        job.suspended_at = request.now
    else:
        job.suspended_for += request.now - job.suspended_at
        job.suspended_at = 0.0
    life.complex.transition(job, "S" if stop else "R", 43 if stop else 42, request.now)
    life.mom.signal(job, signal.SIGSTOP if stop else signal.SIGCONT)


def signal_number(name: str) -> int:
    """From "SIGUSR1", "USR1" or "10". Raises PbsError."""
    if name.isdigit() and 0 < int(name) < 65:
        return int(name)
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
    except KeyError:
        raise PbsError(errors.UNKNOWN_SIGNAL) from None


def qalter(life: Lifecycle, request: Request) -> Reply:
    """Change a job: -l, -N, -p, -W umask, -m, -r, -A, -P; of a running one only the walltime."""
    given, ids = options.getopt(options.QSUB, request.argv, "usage: qalter job_identifier...\n", "qalter")
    submission = options.Submission()
    submission.add(given, override=True)
    yield from _for_each(life, request, ids, lambda job: _alter(life, request, job, submission))


_ALTERABLE = {
    "N": "Job_Name",
    "p": "Priority",
    "m": "Mail_Points",
    "r": "Rerunable",
    "A": "Account_Name",
    "P": "project",
}


def _alter(life: Lifecycle, request: Request, job: Job, submission: options.Submission) -> None:
    life.permit(job, request.caller)
    complex_ = life.complex
    walltime_only = set(submission.resources) <= {"walltime"} and not submission.values
    if job.state in "RSE" and not walltime_only:
        raise PbsError(errors.BAD_RUN_ATTRIBUTE)
    if submission.resources:
        known = frozenset(name for host in complex_.config.hosts for name in host.resources)
        listed = dict(job.attrs["Resource_List"])
        asked = {name: listed[name] for name in listed if name in resources.TIMES or name in ("select", "place")}
        asked.update(submission.resources)
        changed = resources.build(asked, {}, known)
        table = complex_.queues[job.queue].config
        if not resources.within(changed.listed, table.resources_max, table.resources_min):
            raise PbsError(errors.LIMITS)
        complex_.backlog.remove(job)
        job.chunks, job.place, job.walltime = changed.chunks, changed.place, changed.walltime
        job.attrs["Resource_List"] = changed.listed
        if job.state in "RS":
            life.mom.walltime(job)
    for flag, name in _ALTERABLE.items():
        if flag in submission.values:
            value: Any = submission.values[flag]
            job.attrs[name] = int(value) if flag == "p" else str(value == "y") if flag == "r" else value
    job.attrs.pop("comment", None) if job.state == "Q" else None
    complex_.transition(job, job.state, job.substate, request.now)
    life.wanted = True


_COMMANDS: dict[str, Callable[[Lifecycle, Request], Reply]] = {
    **{one.__name__: one for one in (qsub, qdel, qhold, qrls, qmove, qrerun, qsig, qalter)},
    **query.COMMANDS,
}
