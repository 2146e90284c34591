"""What the helper answers, as models. Pure, and tolerant: an answer is partly written by jobs, so it is untrusted.

What cannot be understood becomes "unknown", never an error and never an absence.
"""

from __future__ import annotations

import re
import sys
import time
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
from pbs_adapter.remote import parse, wire
from pbs_adapter.remote.status_shape import clean, reduce_status

_TEXT = 4096
_HEAD = 64 * 1024  # bytes of a census' head
MAX_PARTS = {"server": 1 << 20, "queues": 2 << 20, "vnodes": 10 << 20, "jobs": 8 << 20}  # bytes of each, in this order
MAX_CENSUS = _HEAD + sum(MAX_PARTS.values())
#: What a census may cost: as JSON values it takes up to a hundred bytes each, and there is the last one beside it.
MAX_VALUES, MAX_VNODES, MAX_QUEUES = 500_000, 20_000, 2000
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
    """Return the report. One entry that names no pod spoils it: a missing UID may be that one."""
    began = time.perf_counter()
    raw = head.get("observations")
    entries = raw if isinstance(raw, list) else []
    observations = [found for entry in entries if (found := _observation(entry)) is not None]
    gone, more = head.get("gone"), head.get("more") is True
    spoilt = ""
    if not isinstance(raw, list) or len(observations) != len(entries):
        spoilt = "the helper's report has an entry that names no pod"
    elif more and not entries and not gone:
        spoilt = "the helper's report goes on for ever"
    return JobsReport(
        cursor=_text(head, "cursor")[:200],
        full=head.get("full") is True,
        complete=head.get("complete") is True and not spoilt,
        observations=tuple(observations),
        gone=tuple(uid for uid in gone if isinstance(uid, str)) if isinstance(gone, list) else (),
        server_up=head.get("server_up") is not False,
        server_message=_text(head, "server_message"),
        more=more,
        spoilt=spoilt,
        read_age=_time(head["read_age"]) if "read_age" in head else None,
        poll_age=_time(head["poll_age"]) if "poll_age" in head else None,
        took=2 * (time.perf_counter() - began),  # with the JSON before it
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
    """The helper has reduced it already; but the helper may be anybody's."""
    if raw.get("status") is None:
        return None, _text(raw, "status_problem")
    return reduce_status(raw["status"], raw["uid"])


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


def split_census(answer: bytearray) -> tuple[Json, memoryview]:
    """Return head and body of the stream that a census is. Raises `PbsUnavailable` for what is none, or is too much."""
    end = answer.find(b"\n", 0, _HEAD)
    try:
        head = wire.decode_head(bytes(answer[: max(0, end)]))
    except wire.WireError as error:
        raise PbsUnavailable(f"the helper's census cannot be read: {error}") from error
    values = sum(answer.count(mark) for mark in (b",", b"{", b"["))
    if end < 0 or values > MAX_VALUES:
        raise PbsUnavailable(f"the helper's census cannot be read: {values} values in {len(answer)} bytes")
    return head, memoryview(answer)[end + 1 :]


def census(head: Json, body: bytes | memoryview, last: Census | None = None) -> Census:
    """Return the census. Raises `PbsUnavailable` when PBS's own output cannot be read: keep the last good one.

    `body`: the parts that were asked for. What was not asked for, and a table of jobs that cannot be read, is what it
    was in `last`.
    """
    quick = "server_size" not in head and last is not None
    try:
        server = last.server if quick and last else parse.parse_server(_output(head, body, "server"))
        queues = parse.parse_queues(_output(head, body, "queues"))
        vnodes = parse.parse_nodes(_output(head, body, "vnodes"))
        if len(queues) > MAX_QUEUES or len(vnodes) > MAX_VNODES:
            raise parse.ParseError(f"{len(queues)} queues and {len(vnodes)} vnodes are more than the agent keeps")
    except parse.ParseError as error:
        raise PbsUnavailable(f"what PBS says of its queues and nodes cannot be read: {error}") from error
    host = last.host if quick and last else _texts(head.get("host"))
    runtimes = tuple(name[:64] for name in _list(head.get("runtimes"))[:20] if isinstance(name, str))
    jobs, jobs_at = _jobs(head, body) or ((last.jobs, last.jobs_at) if last is not None else ((), 0.0))
    return Census(
        at=_time(head.get("at")),
        server=server,
        queues=tuple(queues.values()),
        vnodes=tuple(vnodes.values()),
        host=host,
        runtimes=last.runtimes if quick and last else runtimes,
        jobs=jobs,
        jobs_at=jobs_at,
        account=host.get("user", ""),
    )


def _jobs(head: Json, body: bytes | memoryview) -> tuple[tuple[CensusJob, ...], float] | None:
    if "jobs_at" not in head or _text(head, "jobs_problem"):
        return None
    try:
        rows = parse.iter_job_table(_output(head, body, "jobs"))
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


def _output(head: Json, body: bytes | memoryview, name: str) -> bytes:
    """One command's output: the body is all of them, one after the other in this order. Raises ParseError: too much."""
    at = 0
    for each, most in MAX_PARTS.items():
        size = head.get(f"{each}_size")
        end = at + (size if isinstance(size, int) and size >= 0 else 0)
        if each == name:
            if end - at > most:
                raise parse.ParseError(f"{name}: {end - at} bytes, more than the agent reads")
            break
        at = end
    return bytes(body[at:end])


def _text(raw: Json, name: str) -> str:
    value = raw.get(name)
    return clean(value[:_TEXT]) if isinstance(value, str) else ""


def _texts(raw: Any) -> Mapping[str, str]:
    """Few and short texts by name."""
    found = list(raw.items())[:50] if isinstance(raw, dict) else []
    return {clean(str(key)[:100]): clean(str(value)[:_TEXT]) for key, value in found}


def _list(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _integer(raw: Any) -> int | None:
    return raw if type(raw) is int and abs(raw) < 1 << 31 else None


def _time(raw: Any) -> float:
    return float(raw) if type(raw) in (int, float) and abs(raw) < 1e12 else 0.0  # NaN is not less
