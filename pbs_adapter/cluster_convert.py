"""What the helper answers, as models. Pure, and tolerant: an answer is partly written by jobs, so it is untrusted.

What cannot be understood becomes "unknown", never an error and never an absence.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pbs_adapter.errors import PbsUnavailable
from pbs_adapter.models import (
    Census,
    CensusJob,
    JobsReport,
    Json,
    Observation,
    PbsView,
    PodFile,
    Seen,
    VolumeFiles,
    job_number,
)
from pbs_adapter.remote import parse

_TEXT = 4096
_STATUS_VERSION = 1
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


def files_head(files: Sequence[PodFile], volumes: Sequence[VolumeFiles]) -> tuple[Json, bytes]:
    """Return how files and volumes are written into a head, and all contents in that order.

    >>> files_head((PodFile("pod.json", b"{}"),), (VolumeFiles("volumes/a", (PodFile("k", b"v", 0o644),)),))[1]
    b'{}v'
    """
    head = {
        "files": [_entry(file) for file in files],
        "volumes": [
            {"root": volume.root, "files": [_entry(file) for file in volume.files], "managed": volume.managed}
            for volume in volumes
        ],
    }
    contents = [file.content for file in files] + [file.content for volume in volumes for file in volume.files]
    return head, b"".join(contents)


def _entry(file: PodFile) -> Json:
    return {"path": file.path, "mode": file.mode, "size": len(file.content)}


def jobs_report(head: Json) -> JobsReport:
    """Return the report. One entry that names no pod makes it incomplete: a missing UID may be that one."""
    raw = head.get("observations")
    entries = raw if isinstance(raw, list) else []
    observations = [found for entry in entries if (found := _observation(entry)) is not None]
    gone = head.get("gone")
    return JobsReport(
        cursor=_text(head, "cursor"),
        full=head.get("full") is True,
        complete=head.get("complete") is True and isinstance(raw, list) and len(observations) == len(entries),
        observations=tuple(observations),
        gone=tuple(uid for uid in gone if isinstance(uid, str)) if isinstance(gone, list) else (),
        server_up=head.get("server_up") is not False,
        server_message=_text(head, "server_message"),
    )


def _observation(raw: Any) -> Observation | None:
    if not isinstance(raw, dict) or not _UID.fullmatch(_text(raw, "uid")):
        return None
    status, problem = _status(raw)
    return Observation(
        uid=raw["uid"],
        job_id=_text(raw, "job_id") or None,
        submitting=raw.get("submitting") is True,
        claimed=raw.get("claimed") is True,
        stopping=raw.get("stopping") is True,
        pbs=_view(raw.get("pbs")),
        status=status,
        status_problem=problem,
    )


def _status(raw: Json) -> tuple[Json | None, str]:
    status, problem = raw.get("status"), _text(raw, "status_problem")
    if status is None:
        return None, problem
    if not isinstance(status, dict):
        return None, "status.json is not an object"
    if status.get("version") != _STATUS_VERSION:
        return None, f"status.json has version {str(status.get('version'))[:20]}, not {_STATUS_VERSION}"
    if status.get("uid") not in (None, raw["uid"]):
        return None, "status.json names another pod"
    return status, problem


def _view(raw: Any) -> PbsView:
    if not isinstance(raw, dict):
        return PbsView()
    try:
        seen = Seen(_text(raw, "seen"))
    except ValueError:
        seen = Seen.UNKNOWN
    return PbsView(
        seen=seen,
        at=_time(raw.get("at")),
        state=_text(raw, "state")[:1],
        substate=_integer(raw.get("substate")),
        comment=_text(raw, "comment"),
        queue=_text(raw, "queue"),
        exec_vnode=_text(raw, "exec_vnode"),
        exit_status=_integer(raw.get("exit_status")),
        estimated=_time(raw.get("estimated")) or None,
    )


def census(head: Json, body: bytes, last: Census | None = None) -> Census:
    """Return the census. Raises `PbsUnavailable` when PBS's own output cannot be read: keep the last good one.

    Where the answer has no table of jobs, or one that cannot be read, `jobs` and `jobs_at` are those of `last`.
    """
    host = _texts(head.get("host"))
    try:
        server = parse.parse_server(_output(head, body, "server_size"))
        queues = parse.parse_queues(_output(head, body, "queues_size"))
        vnodes = parse.parse_nodes(_output(head, body, "vnodes_size"))
    except parse.ParseError as error:
        raise PbsUnavailable(f"what PBS says of its queues and nodes cannot be read: {error}") from error
    jobs, jobs_at = _jobs(head, body) or ((last.jobs, last.jobs_at) if last is not None else ((), 0.0))
    return Census(
        at=_time(head.get("at")),
        server=server,
        queues=tuple(queues.values()),
        vnodes=tuple(vnodes.values()),
        host=host,
        runtimes=tuple(name for name in _list(head.get("runtimes")) if isinstance(name, str)),
        jobs=jobs,
        jobs_at=jobs_at,
        account=host.get("user", ""),
    )


def _jobs(head: Json, body: bytes) -> tuple[tuple[CensusJob, ...], float] | None:
    if "jobs_at" not in head or _text(head, "jobs_problem"):
        return None
    try:
        rows = parse.iter_job_table(_output(head, body, "jobs_size"))
        return tuple(map(_job, rows)), _time(head["jobs_at"])
    except parse.ParseError:
        return None


def _job(row: parse.TableRow) -> CensusJob:
    """Owners, queues and states are few: twenty thousand jobs share their strings."""
    return CensusJob(
        number=job_number(row.job_id),
        owner=sys.intern(row.user),
        queue=sys.intern(row.queue),
        ncpus=row.tsk,
        walltime=row.walltime,
        state=sys.intern(row.state),
        elapsed=row.elapsed,
        mem=row.memory,
        chunks=row.nds or 1,
    )


def _output(head: Json, body: bytes, name: str) -> bytes:
    """One command's output: the body is all of them, one after the other in this order."""
    at = 0
    for each in ("server_size", "queues_size", "vnodes_size", "jobs_size"):
        size = head.get(each)
        end = at + (size if isinstance(size, int) and size >= 0 else 0)
        if each == name:
            break
        at = end
    return body[at:end]


def _text(raw: Json, name: str) -> str:
    value = raw.get(name)
    return value[:_TEXT] if isinstance(value, str) else ""


def _texts(raw: Any) -> Mapping[str, str]:
    return {str(key): str(value)[:_TEXT] for key, value in raw.items()} if isinstance(raw, dict) else {}


def _list(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _integer(raw: Any) -> int | None:
    return raw if type(raw) is int else None


def _time(raw: Any) -> float:
    return float(raw) if type(raw) in (int, float) and math.isfinite(raw) and abs(raw) < 1e12 else 0.0
