"""What qsub makes of a command line, a script and an environment: a Job, not yet queued; pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any
from xml.sax.saxutils import escape

from . import errors, options, resources, values
from .config import Config
from .errors import PbsError, UsageError
from .jobs import Array, Job, ranges
from .options import Submission

PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "TZ")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who runs a command, and where."""

    user: str
    uid: int
    cwd: str
    environ: Mapping[str, str]
    manager: bool


def parse(argv: list[str], script: str | None) -> Submission:
    """The submission with the script's directives taken in; `script` is None where the file cannot be read.

    Raises UsageError.
    """
    submission = options.parse_qsub(argv)
    if submission.executable is not None:
        if not submission.executable:
            raise UsageError(options.QSUB_USAGE)
        return submission
    if script is None:
        raise UsageError("qsub: script file:: No such file or directory\n", 1)
    prefix = submission.values.get("C", "#PBS")
    submission.add(options.directives(script, prefix), override=False)
    return submission


def destination(submission: Submission, config: Config) -> str:
    """The queue's name. Raises UsageError for another server."""
    queue, _, server = submission.values.get("q", "").partition("@")
    if server and server != config.server:
        shown = server[:7] if config.dialect == "release" else config.server
        text = f"Unknown Host.\nqsub: cannot connect to server {shown} (errno={errors.UNKNOWN_HOST})\n"
        raise UsageError(text, errors.UNKNOWN_HOST % 256)
    return queue or config.default_queue


def build(
    submission: Submission,
    typed: list[str],
    script: str,
    caller: Caller,
    config: Config,
    queue: str,
    seq: int,
    now: float,
) -> Job:
    """The job, in state Q, H or W, with every attribute that submission sets; `typed` is the command line.

    Raises PbsError or UsageError.
    """
    given = submission.values
    _check_user(given.get("u", ""), caller, config)
    if config.projects and given.get("P", config.projects[0]) not in config.projects:
        raise PbsError(errors.HOOK_REJECT, f"project {given['P']} is not allowed for {caller.user}")
    known = frozenset(name for host in config.hosts for name in host.resources)
    defaults = dict(config.resources_default)
    for candidate in config.queues:
        if candidate.name == queue:
            defaults.update(candidate.resources_default)
    request = resources.build(submission.resources, defaults, known)
    array = _array(submission, config)
    name = given.get("N") or posixpath.basename(submission.script_name or "") or "STDIN"
    job_id = f"{seq}{'[]' if array else ''}.{config.server}"
    environ, variables = _variables(submission, caller, config, queue)
    date = int(now)
    attrs: dict[str, Any] = {
        "Job_Name": name,
        "Job_Owner": f"{caller.user}@{config.server}",
        "job_state": "Q",
        "queue": queue,
        "server": config.server,
        "Checkpoint": given.get("c", "u"),
        "ctime": date,
        "Error_Path": _path(given.get("e", ""), f"{name}.e{seq}", caller, config, array),
        "Hold_Types": "u" if submission.hold else "n",
        "Join_Path": given.get("j", "n"),
        "Keep_Files": given.get("k", "n"),
        "Mail_Points": given.get("m", "a"),
        "mtime": date,
        "Output_Path": _path(given.get("o", ""), f"{name}.o{seq}", caller, config, array),
        "Priority": int(given.get("p", "0")),
        "qtime": date,
        "Rerunable": "False" if given.get("r") == "n" else "True",
        "Resource_List": request.listed,
        "Variable_List": variables,
        "substate": 10,
        "Submit_arguments": " ".join(typed),
        "project": given.get("P", "_pbs_project_default"),
        "Submit_Host": config.server,
    }
    job = Job(
        id=job_id, seq=seq, owner=caller.user, uid=caller.uid, queue=queue, rank=seq, chunks=request.chunks,
        place=request.place, walltime=request.walltime, attrs=attrs, script=script, argv=submission.executable,
        environ=environ, array=array,
    )  # fmt: skip
    _optional_attributes(job, submission)
    _execution_time(job, given.get("a"), now, values.zone_of(caller.environ.get("TZ")))
    if submission.hold:
        job.state, job.substate = "H", 20
    return job


def _check_user(users: str, caller: Caller, config: Config) -> None:
    wanted = {entry.partition("@")[0] for entry in users.split(",") if entry}
    if (wanted and caller.user not in wanted) or (caller.user == "root" and not config.root_jobs):
        raise PbsError(errors.BAD_USER)


def _array(submission: Submission, config: Config) -> Array | None:
    if submission.array is None:
        return None
    first, last, step, max_run = submission.array
    indices = list(range(first, last + 1, step))
    if len(indices) > config.max_array_size:
        raise PbsError(errors.ARRAY_TOO_BIG)
    text = ranges(indices) if step == 1 else f"{first}-{last}:{step}"
    return Array(text, len(indices), indices, max_run)


def _path(asked: str, default: str, caller: Caller, config: Config, array: Array | None) -> str:
    host, colon, path = asked.rpartition(":")
    if not colon:
        host = config.server
    if not path:
        path = default + (".^array_index^" if array else "")
    return f"{host}:{posixpath.normpath(posixpath.join(caller.cwd, path))}{'/' if path.endswith('/') else ''}"


def _variables(submission: Submission, caller: Caller, config: Config, queue: str) -> tuple[list[tuple[str, str]], str]:
    """The job's own variables as they are, and Variable_List with qsub's escapes (doubled for -v, as measured)."""
    pairs = [(f"PBS_O_{name}", caller.environ[name]) for name in PASSED_ON if name in caller.environ]
    if config.dialect == "main":
        pairs += [("PBS_O_INTERACTIVE_AUTH_METHOD", "resvport"), ("PBS_O_INTERACTIVE_ENCRYPT_METHOD", "")]
    pairs += [("PBS_O_WORKDIR", caller.cwd), ("PBS_O_SYSTEM", "Linux")]
    environ = list(pairs)
    shown = [f"{name}={values.escape_variable(value)}" for name, value in pairs]
    if submission.variables:
        try:
            given = values.parse_variables(submission.variables)
        except ValueError:
            raise UsageError("qsub: cannot send environment with the job\n", 1) from None
        for name, value in given:
            if value is None and name not in caller.environ:
                raise UsageError("qsub: cannot send environment with the job\n", 1)
            real = caller.environ[name] if value is None else value
            environ.append((name, real))
            doubled = (
                values.escape_variable(real) if value is None else real.replace("\\", "\\" * 4).replace(",", "\\,")
            )
            shown.append(f"{name}={doubled}")
    if submission.export_all:
        everything = [item for item in caller.environ.items() if not item[0].startswith("PBS_O_")]
        environ += everything
        if (
            config.dialect == "main"
        ):  # the released version drops the environment: malloc's success is taken for failure
            shown += [f"{name}={values.escape_variable(value)}" for name, value in everything]
        else:
            del environ[len(environ) - len(everything) :]
    last = [("PBS_O_QUEUE", queue), ("PBS_O_HOST", config.server)]
    return environ + last, ",".join(shown + [f"{name}={value}" for name, value in last])


def _optional_attributes(job: Job, submission: Submission) -> None:
    given, attrs = submission.values, job.attrs
    for flag, name in (("A", "Account_Name"), ("R", "Remove_Files"), ("M", "Mail_Users"), ("S", "Shell_Path_List")):
        if flag in given:
            attrs[name] = given[flag]
    if "u" in given:
        attrs["User_List"] = given["u"]
    for name in ("sandbox", "group_list", "stagein", "stageout", "block"):
        if name in submission.others:
            attrs[name] = submission.others[name]
    if "umask" in submission.others:
        attrs["umask"] = submission.others["umask"].lstrip("0") or "0"
    if job.argv:
        attrs["executable"] = f"<jsdl-hpcpa:Executable>{escape(job.argv[0])}</jsdl-hpcpa:Executable>"
        if job.argv[1:]:
            arguments = [f"<jsdl-hpcpa:Argument>{escape(word)}</jsdl-hpcpa:Argument>" for word in job.argv[1:]]
            attrs["argument_list"] = "".join(arguments)
    if job.array is not None:
        attrs["array"] = "True"
        attrs["array_indices_submitted"] = job.array.text
        if job.array.max_run is not None:
            attrs["max_run_subjobs"] = job.array.max_run


def _execution_time(job: Job, text: str | None, now: float, zone: tzinfo | None) -> None:
    if text is None:
        return
    try:
        job.execution_time = values.parse_execution_time(text, now, zone)
    except ValueError:
        raise UsageError(f"qsub: illegal -a value\n{options.QSUB_USAGE}") from None
    if job.execution_time > now:
        job.state, job.substate = "W", 30
        job.attrs["Execution_Time"] = int(job.execution_time)


def parse_depend(text: str, server: str) -> list[tuple[str, str]]:
    """(kind, job id) pairs of `-W depend=afterok:1:2,afterany:3`. Raises PbsError."""
    pairs: list[tuple[str, str]] = []
    for item in text.split(","):
        kind, *ids = item.split(":")
        if kind not in ("after", "afterok", "afternotok", "afterany") or not ids:
            raise PbsError(errors.BAD_VALUE, "Illegal attribute or resource value depend")
        pairs += [(kind, full_id(one.partition("@")[0], server)) for one in ids]
    return pairs


def full_id(text: str, server: str) -> str:
    """ "12" → "12.server"."""
    return text if "." in text else f"{text}.{server}"
