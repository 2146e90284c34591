"""Jobs as `qstat -f` describes them, from its JSON and, where that is broken, from its plain text.

Both formats become the same attribute tree first, so that one function decides what each attribute means. An
attribute that is missing or makes no sense is None or empty; it never costs the rest of the job. Everything in a job
was written by its owner: believe ids only of jobs that were asked for by id, from an account that is trusted.
"""

import re
from typing import Any, Dict, Iterator, List, Match, NamedTuple, Optional, Tuple

from .parse_json import Literal, load, render
from .parse_values import ParseError, Value, parse_duration, parse_pbs_time, parse_resource, parse_size

#: An estimate further away than this from the job's creation is one of PBS's absurd ones (it has said year 13429).
_ESTIMATE_HORIZON = 10 * 365 * 86400.0
_ATTRIBUTE = re.compile(r"    ([A-Za-z_][\w-]*)(?:\.([\w.-]+))? = (.*)", re.ASCII)
_JOB_ID = re.compile(r"Job Id: (\S+)\s*")
_UNICODE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
_ARRAY = re.compile(r"(\d+)\[(\d*)\]", re.ASCII)
_COUNTS = re.compile(r"(\w+):(\d{1,18})", re.ASCII)


class Job(NamedTuple):
    """One job. Times are epoch seconds in UTC, durations seconds, memory bytes; None is "PBS does not say".

    `owner` and `owner_host` are the two parts of Job_Owner. `select` and `place` are PBS's own text (see
    parse_select). `mem` and `ncpus` are the totals asked for, `resources` all that was asked for, `*_used` what MoM
    last measured. `exit_status` may be stale while the job runs again (compare run_count). `array` marks an array job;
    a subjob has `array_id` and `array_index`. `variables` are the job's environment as far as qsub stored it.
    """

    job_id: str
    name: str
    owner: str
    owner_host: str
    state: str
    substate: Optional[int]
    queue: str
    server: str
    comment: str
    exec_host: str
    exec_vnode: str
    exit_status: Optional[int]
    hold_types: str
    ctime: Optional[float]
    qtime: Optional[float]
    etime: Optional[float]
    stime: Optional[float]
    mtime: Optional[float]
    obittime: Optional[float]
    execution_time: Optional[float]
    estimated_start: Optional[float]
    walltime: Optional[int]
    walltime_used: Optional[int]
    mem: Optional[int]
    mem_used: Optional[int]
    ncpus: Optional[int]
    ncpus_used: Optional[int]
    cput_used: Optional[int]
    resources: Dict[str, Value]
    resources_used: Dict[str, Value]
    select: str
    place: str
    run_count: Optional[int]
    priority: Optional[int]
    project: str
    account: str
    rerunable: Optional[bool]
    session_id: Optional[int]
    depend: str
    output_path: str
    submit_arguments: str
    variables: Dict[str, str]
    array: bool
    array_id: str
    array_index: Optional[int]
    array_indices: str
    array_states: Dict[str, int]


class ParsedJobs(NamedTuple):
    """`jobs` by id, as far as they could be read.

    `valid_json` False: some values may be wrong, ask again for the text format (`qstat -f -w`) and say so once, with
    `problem`. `complete` False: the output was cut off, so a job that is not in `jobs` may exist all the same.
    `timestamp` is the server's clock when it answered.
    """

    jobs: Dict[str, Job]
    valid_json: bool
    complete: bool
    problem: str
    timestamp: Optional[float]


def parse_jobs(text: bytes) -> ParsedJobs:
    """What `qstat [-x] [-t] [-E] -f -F json` printed. Never raises; look at `valid_json` and `complete`."""
    document = load(text)
    jobs = {}  # type: Dict[str, Job]
    section = document.tree.get("Jobs", {})
    if isinstance(section, dict):
        for job_id, attributes in section.items():
            if isinstance(attributes, dict):
                jobs[job_id] = _job(job_id, attributes, document.cjson)
    timestamp = _number(document.tree.get("timestamp"))
    return ParsedJobs(jobs, document.valid, document.complete, document.problem, timestamp)


def parse_jobs_text(text: bytes) -> ParsedJobs:
    """What `qstat -f` printed, with or without `-w`. Never raises; bytes that are not UTF-8 become surrogates.

    Prefer `-w`: it keeps each attribute on a line. Without it, values are folded with a newline and a tab, and a
    newline within a value is printed as it is, so that a job's environment can pretend to be further attributes. The
    first value of an attribute is the one that counts, and the first job of an id.
    """
    jobs = {}  # type: Dict[str, Job]
    problem = ""
    for job_id, lines in _blocks(text.decode("utf-8", "surrogateescape")):
        if job_id not in jobs:
            jobs[job_id] = _job(job_id, _text_attributes(lines), True)
    if not jobs and text.strip():
        problem = "no job in the output of qstat -f"
    return ParsedJobs(jobs, False, not problem, problem, None)


def _blocks(text: str) -> Iterator[Tuple[str, List[str]]]:
    """(job id, attribute lines) with folded lines put together again."""
    job_id = ""
    lines = []  # type: List[str]
    for line in text.split("\n"):
        match = _JOB_ID.fullmatch(line)
        if match:
            if job_id:
                yield job_id, lines
            job_id, lines = match.group(1), []
        elif line.startswith("\t") and lines:
            lines[-1] += line[1:]
        elif line.startswith("    "):
            lines.append(line)
        elif line and lines:
            lines[-1] += "\n" + line
    if job_id:
        yield job_id, lines


def _text_attributes(lines: List[str]) -> Dict[str, Any]:
    """The tree that the JSON would have had."""
    tree = {}  # type: Dict[str, Any]
    for line in lines:
        match = _ATTRIBUTE.fullmatch(line.rstrip("\n")) or re.match(_ATTRIBUTE.pattern, line, re.ASCII | re.DOTALL)
        if match is None:
            continue
        name, resource, value = match.groups()
        if name == "Variable_List":
            tree.setdefault(name, _variables_of_text(value))
        elif resource:
            inner = tree.setdefault(name, {})
            if isinstance(inner, dict):
                inner.setdefault(resource, _UNICODE.sub(_decode_unicode, value))
        else:
            tree.setdefault(name, _UNICODE.sub(_decode_unicode, value))
    return tree


def _decode_unicode(match: Match[str]) -> str:
    """`\\u0159` as a letter (qstat prints comments so on some sites); unpaired surrogates stay as they were."""
    decoded = match.group(0).encode("ascii").decode("unicode_escape").encode("utf-16", "surrogatepass")
    try:
        return decoded.decode("utf-16")
    except UnicodeDecodeError:
        return match.group(0)


def _variables_of_text(value: str) -> Dict[str, str]:
    """Name to (still quoted) value of a list whose commas and backslashes within values are quoted by a backslash."""
    result = {}  # type: Dict[str, str]
    for item in re.findall(r"(?:[^,\\]|\\.|\\$)+", value, re.DOTALL):
        name, _, content = item.partition("=")
        result.setdefault(name, content)
    return result


def _job(job_id: str, tree: Dict[str, Any], quoted: bool) -> Job:
    """`quoted`: values of Variable_List still have PBS's backslashes."""
    asked, used = _resources(tree, "Resource_List"), _resources(tree, "resources_used")
    owner, _, owner_host = _text(tree, "Job_Owner").partition("@")
    array = _ARRAY.match(job_id)
    ctime = _time(tree, "ctime")
    index = _integer(tree.get("array_index"))
    return Job(
        job_id=job_id,
        name=_text(tree, "Job_Name"),
        owner=owner,
        owner_host=owner_host,
        state=_text(tree, "job_state")[:1],
        substate=_integer(tree.get("substate")),
        queue=_text(tree, "queue"),
        server=_text(tree, "server"),
        comment=_text(tree, "comment"),
        exec_host=_text(tree, "exec_host"),
        exec_vnode=_text(tree, "exec_vnode"),
        exit_status=_integer(tree.get("Exit_status")),
        hold_types=_text(tree, "Hold_Types"),
        ctime=ctime,
        qtime=_time(tree, "qtime"),
        etime=_time(tree, "etime"),
        stime=_time(tree, "stime"),
        mtime=_time(tree, "mtime"),
        obittime=_time(tree, "obittime"),
        execution_time=_time(tree, "Execution_Time"),
        estimated_start=_estimate(tree, ctime),
        walltime=_duration(tree, "Resource_List", "walltime"),
        walltime_used=_duration(tree, "resources_used", "walltime"),
        mem=_size(tree, "Resource_List", "mem"),
        mem_used=_size(tree, "resources_used", "mem"),
        ncpus=_integer(_inner(tree, "Resource_List", "ncpus")),
        ncpus_used=_integer(_inner(tree, "resources_used", "ncpus")),
        cput_used=_duration(tree, "resources_used", "cput"),
        resources=asked,
        resources_used=used,
        select=render(_inner(tree, "Resource_List", "select") or ""),
        place=render(_inner(tree, "Resource_List", "place") or ""),
        run_count=_integer(tree.get("run_count")),
        priority=_integer(tree.get("Priority")),
        project=_text(tree, "project"),
        account=_text(tree, "Account_Name"),
        rerunable={"true": True, "false": False}.get(_text(tree, "Rerunable").lower()),
        session_id=_integer(tree.get("session_id")),
        depend=_text(tree, "depend"),
        output_path=_text(tree, "Output_Path"),
        submit_arguments=_text(tree, "Submit_arguments"),
        variables=_variables(tree.get("Variable_List"), quoted),
        array=_text(tree, "array").lower() == "true" or bool(array and not array.group(2)),
        array_id=_text(tree, "array_id"),
        array_index=int(array.group(2)[:18]) if index is None and array and array.group(2) else index,
        array_indices=_text(tree, "array_indices_submitted"),
        array_states={name: int(n) for name, n in _COUNTS.findall(_text(tree, "array_state_count"))},
    )


def _text(tree: Dict[str, Any], name: str) -> str:
    return render(tree[name]) if name in tree else ""


def _inner(tree: Dict[str, Any], name: str, resource: str) -> Any:
    inner = tree.get(name)
    return inner.get(resource) if isinstance(inner, dict) else None


def _number(value: Any) -> Optional[float]:
    """A JSON or text number; None for anything else, infinity and 400-digit numbers included."""
    if not isinstance(value, (str, Literal)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < 1e18 else None


def _integer(value: Any) -> Optional[int]:
    number = _number(value)
    return None if number is None else int(number)


def _time(tree: Dict[str, Any], name: str) -> Optional[float]:
    return _parse_time(tree.get(name))


def _parse_time(value: Any) -> Optional[float]:
    try:
        return parse_pbs_time(value) if isinstance(value, str) else None
    except ParseError:
        return None


def _estimate(tree: Dict[str, Any], ctime: Optional[float]) -> Optional[float]:
    """`estimated.start_time`, where PBS gives one that a calendar can hold."""
    start = _parse_time(_inner(tree, "estimated", "start_time"))
    if start is None or ctime is None or not 0 <= start - ctime <= _ESTIMATE_HORIZON:
        return None
    return start


def _duration(tree: Dict[str, Any], name: str, resource: str) -> Optional[int]:
    value = _inner(tree, name, resource)
    try:
        return parse_duration(value) if isinstance(value, str) else None
    except ParseError:
        return None


def _size(tree: Dict[str, Any], name: str, resource: str) -> Optional[int]:
    value = _inner(tree, name, resource)
    try:
        return parse_size(value) if isinstance(value, str) else None
    except ParseError:
        return None


def _resources(tree: Dict[str, Any], name: str) -> Dict[str, Value]:
    inner = tree.get(name)
    return {key: parse_resource(key, render(value)) for key, value in inner.items()} if isinstance(inner, dict) else {}


def _variables(tree: Any, quoted: bool) -> Dict[str, str]:
    if not isinstance(tree, dict):
        return {}
    values = {name: render(value) for name, value in tree.items()}
    return {n: _BACKSLASH.sub(_unquote, v) if quoted and "\\" in v else v for n, v in values.items()}


def _unquote(match: Match[str]) -> str:
    """What PBS quoted with a backslash; `-w` also prints newline and form feed so."""
    return {"n": "\n", "f": "\f"}.get(match.group(1), match.group(1))
