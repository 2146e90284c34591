"""The job as the server keeps it: hot fields as attributes, everything that qstat shows in one ordered dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .placement import Chunk, Piece, Place

ORDER = [
    "Job_Name",
    "Job_Owner",
    "resources_used",
    "job_state",
    "queue",
    "server",
    "Account_Name",
    "Checkpoint",
    "ctime",
    "depend",
    "Error_Path",
    "exec_host",
    "exec_vnode",
    "Execution_Time",
    "group_list",
    "Hold_Types",
    "Join_Path",
    "Keep_Files",
    "Mail_Points",
    "Mail_Users",
    "mtime",
    "Output_Path",
    "Priority",
    "qtime",
    "Remove_Files",
    "Rerunable",
    "Resource_List",
    "stime",
    "obittime",
    "session_id",
    "Shell_Path_List",
    "sandbox",
    "jobdir",
    "stagein",
    "stageout",
    "substate",
    "User_List",
    "Variable_List",
    "umask",
    "comment",
    "etime",
    "block",
    "run_count",
    "Stageout_status",
    "Exit_status",
    "Submit_arguments",
    "executable",
    "argument_list",
    "array",
    "array_id",
    "array_index",
    "array_state_count",
    "array_indices_submitted",
    "array_indices_remaining",
    "estimated",
    "history_timestamp",
    "project",
    "Submit_Host",
    "max_run_subjobs",
]
"""The order in which the real server lists a job's attributes."""

NOT_OF_SUBJOBS = frozenset(
    [
        "Checkpoint",
        "Hold_Types",
        "Submit_arguments",
        "array",
        "array_state_count",
        "array_indices_submitted",
        "array_indices_remaining",
        "Stageout_status",
        "Exit_status",
        "executable",
        "argument_list",
        "obittime",
        "history_timestamp",
        "comment",
    ]
)
STATES = {"T": "Transit", "Q": "Queued", "H": "Held", "W": "Waiting", "R": "Running", "E": "Exiting", "B": "Begun"}
LIVE = frozenset("TQHWRSUEB")


@dataclass(slots=True)
class Array:
    """The indices of an array job: those that wait, and the subjobs of those that have started."""

    text: str
    total: int
    waiting: list[int]
    max_run: int | None = None
    subjobs: dict[int, Job] = field(default_factory=dict)
    failed: bool = False
    expired: int = 0


@dataclass(slots=True)
class Job:
    """One job, array job or subjob. Times are seconds since the epoch; `rank` is its place in the order of queueing."""

    id: str
    seq: int
    owner: str
    uid: int
    queue: str
    rank: int
    chunks: tuple[Chunk, ...]
    place: Place
    walltime: int | None
    attrs: dict[str, Any]
    state: str = "Q"
    substate: int = 10
    script: str = ""
    argv: list[str] | None = None
    environ: list[tuple[str, str]] = field(default_factory=list)
    pieces: list[list[Piece]] = field(default_factory=list)
    slots: list[tuple[str, int]] = field(default_factory=list)
    execution_time: float = 0.0
    started_at: float = 0.0
    sid: int = 0
    sid_due: float = 0.0
    suspended_at: float = 0.0
    suspended_for: float = 0.0
    deleted_by: str = ""
    depends: list[tuple[str, str]] = field(default_factory=list)
    array: Array | None = None
    parent: Job | None = None
    index: int = -1
    rerunning: bool = False

    @property
    def name(self) -> str:
        return str(self.attrs["Job_Name"])

    @property
    def finished(self) -> bool:
        return self.state in "FXM"

    def holds(self) -> set[str]:
        """The letters of Hold_Types."""
        return set(str(self.attrs.get("Hold_Types", "n"))) - {"n"}

    def signature(self) -> tuple[Any, ...]:
        """Jobs with the same signature are alike to the scheduler."""
        return (self.queue, self.owner, self.chunks, self.place, self.walltime)

    def shown(self) -> list[tuple[str, Any]]:
        """Attributes in PBS's order."""
        attrs = self.attrs
        return [(name, attrs[name]) for name in ORDER if name in attrs]


def to_record(job: Job) -> dict[str, Any]:
    """The job as JSON data for the journal (subjobs included in their array)."""
    record = {name: getattr(job, name) for name in _PLAIN}
    record["chunks"] = [[c.count, list(c.amounts), c.host, c.vnode] for c in job.chunks]
    record["place"] = [job.place.arrangement, job.place.sharing]
    if job.array is not None:
        array = job.array
        record["array"] = [array.text, array.total, array.waiting, array.max_run, array.failed, array.expired]
    if job.parent is not None:
        record["parent"] = job.parent.id
    return record


_PLAIN = [
    "id",
    "seq",
    "owner",
    "uid",
    "queue",
    "rank",
    "walltime",
    "attrs",
    "state",
    "substate",
    "argv",
    "environ",
    "pieces",
    "slots",
    "execution_time",
    "started_at",
    "sid",
    "suspended_at",
    "suspended_for",
    "deleted_by",
    "depends",
    "index",
    "rerunning",
]


def from_record(record: dict[str, Any], script: str) -> Job:
    """The job that `to_record` described; `parent` and the array's subjobs are tied up by the caller."""
    fields = {name: record[name] for name in _PLAIN}
    fields["environ"] = [(name, value) for name, value in record["environ"]]
    fields["depends"] = [(kind, other) for kind, other in record["depends"]]
    fields["slots"] = [(host, slot) for host, slot in record["slots"]]
    fields["pieces"] = [[(name, amounts) for name, amounts in chunk] for chunk in record["pieces"]]
    chunks = tuple(
        Chunk(count, tuple((name, amount) for name, amount in amounts), host, vnode)
        for count, amounts, host, vnode in record["chunks"]
    )
    job = Job(chunks=chunks, place=Place(*record["place"]), script=script, **fields)
    if "array" in record:
        text, total, waiting, max_run, failed, expired = record["array"]
        job.array = Array(text, total, waiting, max_run, {}, failed, expired)
    return job


def ranges(indices: list[int]) -> str:
    """ "0-3,7" for array_indices_remaining, "-" for none."""
    if not indices:
        return "-"
    parts: list[str] = []
    start = last = indices[0]
    for index in [*indices[1:], None]:
        if index is not None and index == last + 1:
            last = index
            continue
        parts.append(f"{start}-{last}" if last > start else str(start))
        if index is not None:
            start = last = index
    return ",".join(parts)


def subjob_id(parent: Job, index: int) -> str:
    """ "5[].srv" and 3 → "5[3].srv"."""
    return parent.id.replace("[]", f"[{index}]")


def make_subjob(parent: Job, index: int) -> Job:
    """A subjob as it is before it starts: state Q, in no table."""
    attrs = {name: value for name, value in parent.attrs.items() if name not in NOT_OF_SUBJOBS and name != "stime"}
    for name in ("Error_Path", "Output_Path"):
        attrs[name] = attrs[name].replace("^array_index^", str(index))
    attrs["array_id"], attrs["array_index"] = parent.id, index
    attrs["job_state"], attrs["substate"] = "Q", 10
    return Job(
        id=subjob_id(parent, index), seq=parent.seq, owner=parent.owner, uid=parent.uid, queue=parent.queue,
        rank=parent.rank, chunks=parent.chunks, place=parent.place, walltime=parent.walltime, attrs=attrs, state="N",
        script=parent.script, argv=parent.argv, environ=parent.environ, parent=parent, index=index,
    )  # fmt: skip


def waiting_subjob(parent: Job, index: int) -> Job:
    """A subjob that has not started, as one can look at it; it is in no table."""
    subjob = make_subjob(parent, index)
    subjob.state = "Q"
    return subjob
