"""The submit script of one pod: pure text, run by the helper on the login node, its last line the qsub command.

Everything that comes from a pod or an admin is checked against PBS's own grammar before it may appear here, and quoted
besides; what does not fit is refused with what would be right. Nothing is ever passed by `-V` or `-v`, and there is no
shell between PBS and podrun (it would die of qdel's SIGTERM at once and hide podrun's exit status).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from pbs_adapter.errors import Rejected
from pbs_adapter.models import JobOptions, JobRequest

_MOST = 2**31 - 1  # PBS keeps counts in C longs, some versions in ints
_LONGEST_WALLTIME = 10 * 366 * 86400
_RESERVED = frozenset({"ncpus", "mem", "select", "place", "nodes", "nodect", "walltime", "mpiprocs", "ompthreads"})


@dataclass(frozen=True, slots=True)
class Site:
    """Where things are on one cluster: the pod directory, podrun and Python as *compute* nodes see them.

    `pbs_exec` is PBS's installation on the login node; None: qsub is found on PATH.
    """

    directory: str
    podrun: str
    python: str
    pbs_exec: str | None = None


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    right: str  # what would be right, for the user

    def check(self, what: str, value: str) -> str:
        if not self.pattern.fullmatch(value):
            raise Rejected(f"{what} {value[:300]!r} is not allowed: {self.right}")
        return value


_NAME = _Rule(re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,229}"), "letters, digits and _ . + -, at most 230 of them")
_QUEUE = _Rule(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"),
    "a queue name has at most 15 letters, digits, _ . - (no @server: the other server is a cluster of its own)",
)
_PROJECT = _Rule(re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=-]{0,254}"), "letters, digits and _ . @ = -, not - first")
_ACCOUNTING = _Rule(
    re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@=+-]{0,254}"), "letters, digits and _ . : / @ = + -, not - first"
)
_PLACE = _Rule(
    re.compile(
        r"(?=.)(?:free|pack|scatter|vscatter)?"
        r"(?:(?:^|(?<=.):)(?:excl|shared|exclhost))?"
        r"(?:(?:^|(?<=.):)group=[A-Za-z][A-Za-z0-9_-]{0,63})?"
    ),
    "[free|pack|scatter|vscatter][:excl|shared|exclhost][:group=RESOURCE], for example scatter:excl",
)
_RESOURCE = _Rule(re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}"), "a letter, then letters, digits, _ and -")
_GROUP = _Rule(re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"), "the name of a Unix group: letters, digits and _ . -")
_WIDE = _Rule(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,254}"), "letters, digits and _ . / : @ + -, for example home:scratch"
)
_VALUE = _Rule(re.compile(r"[A-Za-z0-9][A-Za-z0-9_./@-]{0,127}"), "letters, digits and _ . / @ -, for example 20gb")
_PATH = _Rule(
    re.compile(r"(?=.{1,1000}\Z)(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9._@%=~+-]+)+"),
    "an absolute path of letters, digits and . _ @ % = ~ + -, without . and .. as parts",
)


def problem(option: str, value: str) -> str | None:
    """Why a value may not be given to qsub, with what would be right; None: it may. For checking settings early.

    option: queue, project, accounting, group, resource (a name), chunk or wide (a value of a resource).
    """
    rules = {
        "queue": _QUEUE, "project": _PROJECT, "accounting": _ACCOUNTING, "group": _GROUP, "resource": _RESOURCE,
        "chunk": _VALUE, "wide": _WIDE,
    }  # fmt: skip
    if option == "resource" and value.lower() in _RESERVED:
        return f"{value!r} is not allowed: it follows from the pod's spec"
    rule = rules[option]
    return None if rule.pattern.fullmatch(value) else f"{value[:300]!r} is not allowed: {rule.right}"


def walltime(seconds: int) -> str:
    """`[H]HH:MM:SS` as qsub takes it.

    >>> walltime(3660), walltime(59), walltime(360000)
    ('01:01:00', '00:00:59', '100:00:00')
    """
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def render(request: JobRequest, site: Site) -> str:
    """Return the text of job.qsub. Raises `Rejected`, with what would be right, for anything outside PBS's grammar."""
    command = shlex.join(qsub(request, site))
    comment = "".join(c if " " <= c <= "~" else "?" for c in request.comment)[:500]
    return f"#!/bin/sh\n# {comment or request.name}\n{command}\n"


def qsub(request: JobRequest, site: Site) -> list[str]:
    """Return the qsub command as an argv, every word of it checked."""
    directory = _PATH.check("the pod directory", site.directory)
    podrun = _PATH.check("the path of podrun", site.podrun)
    python = _PATH.check("computePython", site.python)
    program = f"{_PATH.check('pbsExec', site.pbs_exec)}/bin/qsub" if site.pbs_exec else "qsub"
    name = _NAME.check("the job name", request.name)
    argv = [program, "-r", "n", "-c", "n", "-m", "n", "-j", "oe", "-koed", "-o", f"{directory}/job.out", "-N", name]
    argv += _accounting(request.options)
    argv += _resources(request.options)
    return [*argv, "--", python, podrun, directory]


def _accounting(options: JobOptions) -> list[str]:
    argv = []
    if options.queue is not None:
        argv += ["-q", _QUEUE.check("queue", options.queue)]
    if options.project is not None:
        argv += ["-P", _PROJECT.check("project", options.project)]
    if options.accounting is not None:
        argv += ["-A", _ACCOUNTING.check("accounting", options.accounting)]
    if options.group is not None:
        argv += ["-W", f"group_list={_GROUP.check('group', options.group)}"]
    if options.priority is not None:
        argv += ["-p", str(_number("priority", options.priority, -1024, 1023))]
    return argv


def _resources(options: JobOptions) -> list[str]:
    ncpus = _number("ncpus", options.ncpus, 1, _MOST)
    kilobytes = -(-_number("mem_bytes", options.mem_bytes, 1, 2**60) // 1024)
    chunk = [f"ncpus={ncpus}", f"mem={kilobytes}kb"]
    for name, value in sorted(options.resources.items()):
        if _RESOURCE.check("resource", name).lower() in _RESERVED:
            raise Rejected(f"resource {name!r} cannot be given as a chunk resource: it follows from the pod's spec")
        shown = _VALUE.check(f"the value of {name},", value) if isinstance(value, str) else _count(name, value)
        chunk.append(f"{name}={shown}")
    argv = ["-l", "select=1:" + ":".join(chunk)]
    if options.place is not None:
        argv += ["-l", f"place={_PLACE.check('place', options.place)}"]
    argv += ["-l", f"walltime={walltime(_number('walltime', options.walltime, 1, _LONGEST_WALLTIME))}"]
    for name, value in sorted(options.job_resources.items()):
        if _RESOURCE.check("resource", name).lower() in _RESERVED:
            raise Rejected(f"resource {name!r} cannot be given for the whole job: it follows from the pod's spec")
        argv += ["-l", f"{name}={_WIDE.check(f'the value of {name},', value)}"]
    return argv


def _count(name: str, value: int) -> str:
    return str(_number(f"resource {name}", value, 0, _MOST))


def _number(what: str, value: int, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Rejected(f"{what} {value!r} is not allowed: a whole number from {least} to {most}")
    return value
