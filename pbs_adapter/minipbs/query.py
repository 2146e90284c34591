"""The commands that only ask: qstat, qselect, pbsnodes, qmgr (list and print)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from . import errors, formats, options, tables, values, views
from .complex import Complex
from .errors import PbsError, UsageError
from .formats import Pairs
from .jobs import Job
from .lifecycle import Lifecycle
from .placement import Vnode
from .replies import Err, Out, Reply, Request

QSTAT = "1aBD:EF:fGHiJMnpqQrstTu:wx"
QSTAT_USAGE = """\
usage:
qstat [-f] [-J] [-p] [-t] [-x] [-E] [-F format] [-D delim] [ job_identifier... | destination... ]
qstat [-a|-i|-r|-H|-T] [-J] [-t] [-u user] [-n] [-s] [-G|-M] [-1] [-w]
\t[ job_identifier... | destination... ]
qstat -Q [-f] [-F format] [-D delim] [ destination... ]
qstat -q [-G|-M] [ destination... ]
qstat -B [-f] [-F format] [-D delim] [ server_name... ]
qstat --version
"""
_JOB_ID = re.compile(r"\d+(\[\d*\])?(\.[A-Za-z0-9_.-]+)?(@\S+)?")
_DESTINATION = re.compile(r"([A-Za-z_][\w.-]*)?(@[\w.-]+)?")


def qstat(life: Lifecycle, request: Request) -> Reply:
    """Jobs, queues (-Q, -q) or the server (-B)."""
    given, operands = options.getopt(QSTAT, request.argv, QSTAT_USAGE, "qstat")
    flags, valued = {flag for flag, _ in given}, dict(given)
    output = valued.get("F", "")
    if output not in ("", "json", "dsv"):
        raise UsageError(QSTAT_USAGE)
    if "B" in flags:
        yield from _server(life.complex, flags, output, valued.get("D", "|"), request.now)
    elif flags & {"Q", "q"}:
        yield from _queues(life.complex, flags, output, valued.get("D", "|"), operands, request.now)
    else:
        yield from _jobs(life, request, flags, valued, operands)


def _head(complex_: Complex, now: float) -> Pairs:
    return [("timestamp", int(now)), ("pbs_version", views.VERSION), ("pbs_server", complex_.config.server)]


def _show(
    complex_: Complex, output: str, delimiter: str, now: float, kind: str, title: str, objects: list[tuple[str, Pairs]]
) -> Iterator[Out]:
    """Full output of queues or the server."""
    if output == "json":
        for piece in formats.json_document(complex_.config.dialect, _head(complex_, now), kind, objects or None):
            yield Out(piece)
    for name, pairs in objects if output != "json" else []:
        yield Out(
            formats.dsv_object(title, name, pairs, delimiter)
            if output == "dsv"
            else formats.text_object(title, name, pairs)
        )


def _server(complex_: Complex, flags: set[str], output: str, delimiter: str, now: float) -> Reply:
    pairs = views.server_attributes(complex_)
    name = complex_.config.server
    if "f" in flags:
        yield from _show(complex_, output, delimiter, now, "Server", "Server", [(name, pairs)])
    else:
        for text in tables.server(name, dict(pairs), tables.merge_states(complex_.counts())):
            yield Out(text)
    yield 0


def _queues(complex_: Complex, flags: set[str], output: str, delimiter: str, operands: list[str], now: float) -> Reply:
    status = 0
    names = []
    for text in operands:
        name = text.partition("@")[0]
        if name in complex_.queues:
            names.append(name)
        elif name:
            yield Err(f"qstat: Unknown queue {name}\n")
            status = errors.UNKNOWN_QUEUE % 256
    if not operands or any(text.startswith("@") for text in operands):
        names = list(complex_.queues)
    rows = [(name, views.queue_attributes(complex_, name)) for name in names]
    if "f" in flags:
        yield from _show(complex_, output, delimiter, now, "Queue", "Queue", rows)
    elif names:
        table = [(name, dict(pairs), tables.merge_states(complex_.queues[name].counts)) for name, pairs in rows]
        shown = tables.queue_limits(complex_.config.server, table) if "q" in flags else tables.queues(table)
        for text in shown:
            yield Out(text)
    yield status


def _selected(life: Lifecycle, flags: set[str], users: set[str], operands: list[str]) -> Iterator[Job | PbsError | str]:
    """The jobs to show, in order; errors where an operand names none (with the text to show after them, if any)."""
    complex_ = life.complex
    history = bool(flags & {"x", "H"})
    listing: list[Job] = []
    for text in operands:
        if _JOB_ID.fullmatch(text):
            name = text.partition("@")[0]
            name = name if "." in name else f"{name}.{complex_.config.server}"
            if values.elsewhere(name, complex_.config.server):
                yield f"illegally formed job identifier: {text}"
                continue
            try:
                job = complex_.find(name)
                if job.finished and job.state == "F" and not history:
                    raise PbsError(
                        errors.FINISHED, f"{name} Job has finished, use -x or -H to obtain historical job information"
                    )
                yield job
            except PbsError as error:
                yield PbsError(error.code, error.text if name in error.text else f"{error.text} {name}")
            continue
        match = _DESTINATION.fullmatch(text)
        if not match:
            yield f"illegally formed destination: {text}"
        elif match[1] and match[1] not in complex_.queues:
            yield PbsError(errors.UNKNOWN_QUEUE, f"Unknown queue {match[1]}")
        else:
            listing += [job for job in complex_.jobs.values() if not match[1] or job.queue == match[1]]
    if not operands:
        listing = list(complex_.jobs.values())
    for job in listing:
        if job.finished and not history:
            continue
        if users and job.owner not in users:
            continue
        yield job


def _keep(job: Job, flags: set[str]) -> bool:
    if "H" in flags:
        return job.finished
    if "i" in flags:
        return job.state in "QHWT"
    if "r" in flags:
        return job.state in "RSB"
    return not ("J" in flags and job.array is None)


def _jobs(life: Lifecycle, request: Request, flags: set[str], valued: dict[str, str], operands: list[str]) -> Reply:
    complex_ = life.complex
    users = {entry.partition("@")[0] for entry in valued.get("u", "").split(",") if entry}
    failures: list[tuple[str, int]] = []
    jobs: list[Job] = []
    for found in _selected(life, flags, users, operands):
        if isinstance(found, Job):
            jobs += [one for one in (views.with_subjobs(found) if "t" in flags else [found]) if _keep(one, flags)]
        elif isinstance(found, PbsError):
            failures.append((found.text, found.exit_status))
        else:
            failures.append((found, 1))
    for text, _ in failures:
        yield Err(f"qstat: {text}\n")
    status = failures[-1][1] if failures else 0
    if "x" in flags and not complex_.history:
        yield Err(f"qstat: {errors.TEXTS[errors.NO_HISTORY]} {complex_.config.server}\n")
    if "f" in flags:
        named = any(_JOB_ID.fullmatch(text) for text in operands)
        if complex_.config.dialect == "main" and valued.get("F") == "json" and named and "E" not in flags and operands:
            first = operands[0] if len(operands) > 1 else ""
            jobs = jobs[:1] if first else jobs  # the rewritten emitter prints the first of several ids only
        yield from _full(complex_, jobs, valued, request)
    else:
        rows = ((job.id, dict(views.job_attributes(complex_, job, request.now))) for job in jobs)
        for piece in _table(complex_, rows, jobs, flags):
            yield Out(piece)
    yield status


def _full(complex_: Complex, jobs: list[Job], valued: dict[str, str], request: Request) -> Iterator[Out]:
    now, zone = request.now, values.zone_of(request.caller.environ.get("TZ"))
    objects = ((job.id, views.job_attributes(complex_, job, now, zone)) for job in jobs)
    output = valued.get("F", "")
    if output == "json":
        head = _head(complex_, now)
        for piece in formats.json_document(complex_.config.dialect, head, "Jobs", objects if jobs else None):
            yield Out(piece)
        return
    for name, pairs in objects:
        if output == "dsv":
            yield Out(formats.dsv_object("Job Id", name, pairs, valued.get("D", "|")))
        else:
            yield Out(formats.text_object("Job Id", name, pairs))


def _table(
    complex_: Complex, rows: Iterator[tuple[str, dict[str, Any]]], jobs: list[Job], flags: set[str]
) -> Iterator[str]:
    if not flags & set("aiHnrsTuGM1"):
        return tables.jobs_plain(rows, "w" in flags)
    if "T" in flags:
        order = {job.id: (job.state not in "RSB", number) for number, job in enumerate(jobs)}
        rows = iter(sorted(rows, key=lambda row: order[row[0]]))
    return tables.jobs_alternative(
        complex_.config.server,
        rows,
        wide="w" in flags,
        one_line="1" in flags,
        nodes="n" in flags,
        comments="s" in flags,
        estimates="T" in flags,
    )


def qselect(life: Lifecycle, request: Request) -> Reply:
    """Ids of the jobs that meet all conditions: -u, -N, -q, -s, -A, -P, -x, -J."""
    spec = "A:a:c:Hh:Jl:N:P:p:q:r:s:St:Tu:x"
    given, _ = options.getopt(
        spec, request.argv, "usage: qselect [-N name] [-q queue] [-s states] [-u users]\n", "qselect"
    )
    wanted = dict(given)
    complex_ = life.complex
    users = {entry.partition("@")[0] for entry in wanted.get("u", "").split(",") if entry}
    names = {"N": "Job_Name", "A": "Account_Name", "P": "project"}
    ids: list[str] = []
    for job in complex_.jobs.values():
        if job.finished and not ("x" in wanted or "H" in wanted):
            continue
        if "H" in wanted and not job.finished:
            continue
        if (users and job.owner not in users) or ("J" in wanted and job.array is None):
            continue
        if "q" in wanted and job.queue != wanted["q"].partition("@")[0]:
            continue
        if "s" in wanted and job.state not in wanted["s"]:
            continue
        if any(flag in wanted and job.attrs.get(name) != wanted[flag] for flag, name in names.items()):
            continue
        ids.append(job.id)
    yield Out("".join(f"{job_id}\n" for job_id in ids))
    yield 0


def pbsnodes(life: Lifecycle, request: Request) -> Reply:
    """Vnodes (-v) or hosts, as text, JSON (-F json) or summary (-Sj)."""
    usage = "usage:\n\tpbsnodes -a[v][S[j][L]][-F format] | [-H] | -l | host...\n"
    given, operands = options.getopt("aD:F:HjLlSv", request.argv, usage, "pbsnodes")
    flags, complex_ = {flag for flag, _ in given}, life.complex
    if not flags & set("aHlvS") and not operands:
        raise UsageError(usage, 1)
    status = 0
    chosen: list[Vnode] = []
    for name in operands or list(complex_.cluster.vnodes if "v" in flags else complex_.cluster.hosts):
        vnode = complex_.cluster.vnodes.get(name)
        if vnode is None:
            yield Err(f"pbsnodes: Unknown node {name}\n")
            status = 1
        else:
            chosen.append(vnode)
    if "l" in flags:
        chosen = []
    if "v" not in flags:
        chosen = [_whole_host(complex_, vnode) for vnode in chosen]
    if "S" in flags:
        for text in tables.nodes_summary(_summary_row(complex_, vnode, "v" in flags) for vnode in chosen):
            yield Out(text)
    elif dict(given).get("F") == "json":
        objects = [(vnode.name, views.vnode_attributes(complex_, vnode)) for vnode in chosen]
        head = _head(complex_, request.now)
        for piece in formats.json_document(complex_.config.dialect, head, "nodes", objects or None):
            yield Out(piece)
    else:
        for vnode in chosen:
            lines = formats.flatten(views.vnode_attributes(complex_, vnode))
            yield Out(f"{vnode.name}\n" + "".join(f"     {key} = {value}\n" for key, value in lines) + "\n")
    yield status


def _whole_host(complex_: Complex, natural: Vnode) -> Vnode:
    """A host's vnodes added up, as `pbsnodes -a` without -v has it: the NUMA domains are lost."""
    vnodes = complex_.cluster.hosts[natural.host]
    if natural.name != natural.host or len(vnodes) == 1:
        return natural
    whole = Vnode(natural.name, natural.host, {}, changed_at=max(vnode.changed_at for vnode in vnodes))
    for vnode in vnodes:
        for books, sums in ((vnode.available, whole.available), (vnode.assigned, whole.assigned)):
            for name, amount in books.items():
                sums[name] = sums.get(name, 0) + amount
        whole.jobs.update(vnode.jobs)
        whole.used_at = max(whole.used_at, vnode.used_at)
    return whole


def _summary_row(
    complex_: Complex, vnode: Vnode, single: bool
) -> tuple[str, str, list[str], dict[str, tuple[int, int]], int, int]:
    vnodes = [vnode] if single else complex_.cluster.hosts[vnode.host]
    states = {views.vnode_state(one) for one in vnodes}
    ids = dict(views.vnode_attributes(complex_, vnode)).get("jobs", [])
    sizes = {name: (total - vnode.assigned.get(name, 0), total) for name, total in vnode.available.items()}
    suspended = sum(1 for job_id in ids if (job := complex_.running.get(job_id)) and job.state == "S")
    state = states.pop() if len(states) == 1 else "<various>"
    return vnode.name, state, [job_id.partition(".")[0] for job_id in ids], sizes, len(ids) - suspended, suspended


_QMGR = re.compile(r"\s*(l|list|p|print)\s+(s|server|q|queue|n|node)\s*(\S*)\s*", re.IGNORECASE)


def qmgr(life: Lifecycle, request: Request) -> Reply:
    """`-c "list|print server|queue|node [name]"`; nothing can be set here."""
    given, _ = options.getopt("ac:ezn", request.argv, "usage: qmgr [-c command]\n", "qmgr")
    directive = dict(given).get("c", request.script or "")
    match = _QMGR.fullmatch(directive)
    if not match:
        raise UsageError("qmgr: Syntax error\n", 1)
    complex_ = life.complex
    show, kind, name = match[1][0].lower(), match[2][0].lower(), match[3].strip("@")
    name = "" if name in ("@default", "default") else name
    if kind == "s":
        yield Out("".join(_printed_server(complex_) if show == "p" else _listed("Server", [_server_row(complex_)])))
        yield 0
        return
    if kind == "q":
        rows = [(one, views.queue_attributes(complex_, one)) for one in complex_.queues if name in ("", one)]
    else:
        vnodes = complex_.cluster.vnodes.values()
        rows = [(one.name, views.vnode_attributes(complex_, one)) for one in vnodes if name in ("", one.name)]
    if not rows:
        word = "queue" if kind == "q" else "node "
        raise UsageError(f"qmgr obj={name} svr=default: Unknown {word}\nqmgr: Error (15018) returned from server\n", 1)
    title = "Queue" if kind == "q" else "Node"
    if show == "l":
        yield Out("".join(_listed(title, rows)))
    else:
        yield Out("".join(_printed(title.lower(), one, pairs) for one, pairs in rows))
    yield 0


def _server_row(complex_: Complex) -> tuple[str, Pairs]:
    return complex_.config.server, views.server_attributes(complex_)


def _listed(title: str, rows: list[tuple[str, Pairs]]) -> Iterator[str]:
    for name, pairs in rows:
        yield f"{title} {name}\n"
        yield "".join(f"    {key} = {value}\n" for key, value in formats.flatten(pairs)) + "\n"


READ_ONLY = frozenset({"total_jobs", "state_count", "resources_assigned", "server_state", "server_host", "pbs_version"})


def _printed(kind: str, name: str, pairs: Pairs) -> str:
    lines = [f"#\n# Create and define {kind} {name}\n#\ncreate {kind} {name}\n"]
    for key, value in formats.flatten([pair for pair in pairs if pair[0] not in READ_ONLY]):
        lines.append(f"set {kind} {name} {key} = {value}\n")
    return "".join(lines)


def _printed_server(complex_: Complex) -> Iterator[str]:
    yield "#\n# Create queues and set their attributes.\n#\n"
    for name in complex_.queues:
        yield _printed("queue", name, views.queue_attributes(complex_, name))
    yield "#\n# Set server attributes.\n#\n"
    for key, value in formats.flatten([pair for pair in _server_row(complex_)[1] if pair[0] not in READ_ONLY]):
        yield f"set server {key} = {value}\n"


COMMANDS: dict[str, Callable[[Lifecycle, Request], Reply]] = {
    "qstat": qstat,
    "qselect": qselect,
    "pbsnodes": pbsnodes,
    "qmgr": qmgr,
}
