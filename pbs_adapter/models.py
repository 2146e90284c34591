"""Data that crosses the adapter's border: what a caller asks of a cluster, and what the cluster said.

Frozen and free of behaviour, so that the bridge can compare, store and log them. Times are UTC epoch seconds,
sizes bytes, durations seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobRef:
    """Names one pod's job on a cluster: the account it runs under and the pod's UID. Nothing else is a key."""

    account: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodFile:
    """One file below the pod directory. `path` is relative, has no `..`; `mode` are permission bits."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class VolumeFiles:
    """The whole content of one configMap, secret, downwardAPI or projected volume, swapped in atomically.

    `root` is its folder below the pod directory (`volumes/NAME`, or `secrets/volumes/NAME` when any of it is
    secret). The files' paths are relative to it. On disk it looks as the kubelet writes it: `..data` is a link to a
    dated folder, every top-level name a link through `..data`. A volume that is `managed` holds just these files, so it
    is emptied when there are none any more; any other is made empty and then belongs to the pod (an emptyDir).
    """

    root: str
    files: tuple[PodFile, ...] = ()
    managed: bool = False


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What becomes qsub options. `None` leaves an option out, so that the site's default holds.

    job_resources: resources of the whole job (`-l NAME=VALUE`), which no host has. group: `-W group_list=`.
    """

    ncpus: int
    mem_bytes: int
    walltime: int
    resources: Mapping[str, int | str] = field(default_factory=dict)  # further resources of the one chunk
    place: str | None = None
    queue: str | None = None
    project: str | None = None
    accounting: str | None = None
    priority: int | None = None
    job_resources: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Everything needed to run one pod: the PBS job's name and options, and the pod directory's first content."""

    ref: JobRef
    name: str  # PBS job name, unique: it carries the pod's UID and the instance
    options: JobOptions
    files: tuple[PodFile, ...]  # pod.json first of all
    volumes: tuple[VolumeFiles, ...] = ()
    comment: str = ""  # one line for the reader of job.qsub, e.g. "pod default/hello-0"


class Seen(StrEnum):
    """What PBS said of a job: it has it, it certainly has not, or nothing can be said."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PbsView:
    """The job as PBS showed it at time `at` (0: never asked). `exit_status` only after the end.

    `estimated` is PBS's own estimate of the start, epoch seconds: only where a site has it made, and often far off.
    """

    seen: Seen = Seen.UNKNOWN
    at: float = 0.0
    state: str = ""  # the letter: Q H W T R S E F …
    substate: int | None = None
    comment: str = ""
    queue: str = ""
    exec_vnode: str = ""
    exit_status: int | None = None
    estimated: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All that is known of one pod directory: its marks, PBS's view and podrun's own status.

    `status` is podrun's status.json (see docs/explanation/on-the-cluster.md), untrusted: bounded in size, its version
    checked, otherwise `None` with the reason in `status_problem`.
    """

    uid: str
    job_id: str | None = None
    submitting: bool = False  # submit.lock without job.id
    claimed: bool = False
    stopping: bool = False
    pbs: PbsView = PbsView()
    status: Json | None = None
    status_problem: str = ""


@dataclass(frozen=True, slots=True)
class JobsReport:
    """One answer of the long poll: what changed since `after`, or the beginning of everything (`full`).

    `cursor` goes into the next call. `more`: it is a page, and the next call has the rest at once; only after the last
    page can anything be concluded from what is missing. `complete` says that the pod directories and PBS have both been
    read since this helper started, so that a UID that is missing is missing. `spoilt` is why the report cannot be
    relied on: ask for everything again. `server_up` and `server_message` tell whether PBS answered the last poll;
    `gone` are UIDs whose directory has been removed. `read_age` and `poll_age`: seconds since the helper last came
    round to reading files, and to asking PBS; None: it does not say.
    """

    cursor: str
    full: bool
    complete: bool
    observations: tuple[Observation, ...]
    gone: tuple[str, ...] = ()
    server_up: bool = True
    server_message: str = ""
    more: bool = False
    spoilt: str = ""
    read_age: float | None = None
    poll_age: float | None = None
    took: float = field(default=0.0, compare=False)  # s of work to read it


def job_number(job_id: str) -> str:
    """What lists of jobs have whole: the server's name behind it may be cut there.

    >>> job_number("12[].alpha")
    '12[]'
    """
    return job_id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class CensusJob:
    """One job of anyone, as far as the account may see it, from the cheapest table that PBS prints.

    `number`: see `job_number`. `owner` and `queue` may be cut (then they end with `*`). `ncpus` are all CPUs of its
    `chunks`; None where the job asked for none. `walltime` and `elapsed` are whole minutes in seconds; `elapsed` is
    None before the start. `state` is PBS's letter. An array is one job. `mem` is in bytes.
    """

    number: str
    owner: str
    queue: str
    ncpus: int | None
    walltime: int | None
    state: str
    elapsed: int | None
    mem: int | None = None
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class Census:
    """Queues, vnodes and server as parsed by `pbs_adapter.remote.parse` (its types), and facts of the login host.

    `jobs` is older than the rest: PBS is asked for it at most every five minutes, and `jobs_at` (by the login host's
    clock, like `at`) says when; 0: never yet. Sites may hide other users' jobs. `account` is the PBS user who asked.
    """

    at: float
    server: Any  # parse.Server
    queues: tuple[Any, ...]  # parse.Queue
    vnodes: tuple[Any, ...]  # parse.Vnode
    host: Mapping[str, str]  # os, kernel, arch, hostname, python of the login host
    runtimes: tuple[str, ...] = ()  # podrun runtimes found on the login host, e.g. ("host+bwrap",)
    jobs: tuple[CensusJob, ...] = field(default=(), repr=False)
    jobs_at: float = 0.0
    account: str = ""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The options of `kubectl logs` for one container. `since_time` is epoch seconds; None: not given."""

    container: str
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since_time: float | None = None
    stream: str = "All"  # All, Stdout or Stderr


@dataclass(frozen=True, slots=True)
class LinkHealth:
    """State of one account's channel. `since` is when `connected` last flipped."""

    connected: bool
    since: float
    message: str = ""
    rtt_ms: float | None = None


class Cluster(Protocol):
    """One PBS cluster. Every method may raise any of `pbs_adapter.errors`; none blocks the event loop."""

    async def submit(self, job: JobRequest) -> str:
        """Return the PBS job id. Idempotent by `job.ref`: a second call returns the first one's id."""

    async def write(self, ref: JobRef, files: tuple[PodFile, ...], volumes: tuple[VolumeFiles, ...]) -> None:
        """Replace files and volumes of a pod that is queued or runs (tokens, ConfigMaps)."""

    async def cancel(self, ref: JobRef, grace: int, *, force: bool = False) -> None:
        """Ask podrun to stop within `grace` seconds; qdel at once when it never started, or when `force`."""

    async def remove(self, ref: JobRef) -> None:
        """Remove the pod directory. Refused (`Permanent`) while the job may still exist."""

    async def jobs(self, account: str, after: str, wait: float) -> JobsReport:
        """Long poll: return at once when something changed since `after` (`""`: everything), else after `wait` s."""

    async def census(self, *, quick: bool = False) -> Census:
        """Ask PBS for queues, vnodes and server. `quick`: queues and vnodes alone, and no long wait for the budget."""

    def logs(self, ref: JobRef, query: LogQuery) -> AsyncIterator[bytes]:
        """Stream the log as kubectl shows it. `Permanent` when there is no such container or run."""

    def health(self) -> Mapping[str, LinkHealth]:
        """By account."""

    async def aclose(self) -> None:
        """Close every channel; no thread or process is left behind."""
