"""What the agent remembers of a pod between two looks, and the whole situation that a decision is made from.

A record is a cache and a diary of this process only: after a restart it starts empty and nothing is lost, because the
pod, the pod directory and PBS hold the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bridge.api import names
from bridge.plan.numa import Span
from bridge.pods.containers import Waiting
from bridge.pods.outcome import Outcome, Stage, outcome
from pbs_adapter.models import Json, Observation


@dataclass(frozen=True, slots=True)
class Failure:
    """The bridge's own decision that the pod ends as Failed. `rejected`: as a kubelet's admission does it."""

    reason: str
    message: str
    rejected: bool = False
    disruption: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """What a job was made of, by container: the pod's spec may say something else by now."""

    images: Mapping[str, str]
    resources: Mapping[str, Json]


@dataclass(slots=True)
class Record:
    """Mutable diary of one pod; only `bridge.pods.act` and the loop change it. Times are epoch seconds."""

    hold: Waiting | None = None  # why nothing is submitted
    failure: Failure | None = None
    retry_at: float = 0.0  # no submit before
    attempts: int = 0
    misfit_since: float = 0.0  # no host is large enough since then; 0: one is
    fault_since: float = 0.0  # a program of the site fails on the submission since then; 0: it does not
    held_since: float = 0.0  # the job is held in PBS since then; 0: it is not
    over: str = ""  # limits of queue and server that the job is over, with numbers, which PBS's own text lacks
    annotated: bool = False
    cancel_grace: int | None = None  # the shortest grace asked so far
    cancel_failed_at: float = 0.0  # the cluster first answered that it cannot ask the pod (its spool is full)
    forced_at: float = 0.0  # last qdel asked for
    refresh_at: float = 0.0  # next look at ConfigMaps, Secrets and tokens; 0: nothing to refresh
    written: str = ""  # digest of the volumes' content on the cluster
    wrote: Json | None = None  # last status sent
    wrote_at: float = 0.0
    message_at: float = 0.0  # last time that only a message changed
    counts_numa: bool = False  # submitted by this process: its NUMA span is counted once
    numa_expected: tuple[int, int] | None = None  # fewest and most domains expected when it was submitted
    span: Span | None = None  # the domains it has
    span_written: bool = False
    announced: dict[str, float] = field(default_factory=dict)  # key of an Event to when it was last written
    account: str = ""  # whose job it is, once there is one; empty: there is none yet
    claimed: bool = False  # only the account itself says so, and others may be served by it: it is told nothing
    refusals: int = 0  # times in a row that the API server refused the status: the next one says less
    refused_until: float = 0.0  # no status before
    answered: Json | None = None  # the status as the API server made it of what was last sent
    made: Made | None = None  # what the job was made of, where this process submitted it
    noted: str = ""  # digest of what files on the cluster tell of the pod's object; empty: not known
    limited: int = -1  # the activeDeadlineSeconds that podrun was told; 0: none; -1: not known


@dataclass(frozen=True)
class Situation:
    """Everything that is known of a pod at `now`.

    sure: the pod directories and PBS have been read completely, so a missing observation means that nothing is there.
    reachable: the account's channel works; `trouble` says why not.
    misfit: what the pod asks and the most that any host has, where that is less; None: the cluster's size is not known
    yet. patience: seconds that such a pod waits for a larger host. held_limit: seconds that its job may be held in PBS.
    numa: the annotation that tells its NUMA span; empty: it needs none (yet). pod_networks: CIDRs that can be dialled.
    image_ids: by container, what its image stands for on this cluster.
    """

    pod: Json
    record: Record
    seen: Observation | None
    sure: bool
    reachable: bool
    trouble: str
    host_ip: str
    now: float
    misfit: str | None = ""
    patience: float = 600.0
    held_limit: float = 86400.0
    numa: str = ""
    pod_networks: tuple[str, ...] = ()
    image_ids: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def result(self) -> Outcome:
        """What the observation means."""
        return outcome(self.seen)

    @property
    def held_until(self) -> float:
        """When a job that is held has been for too long."""
        return (self.record.held_since or self.now) + self.held_limit

    @property
    def phase(self) -> str:
        """The phase in the API server."""
        return str(self.pod.get("status", {}).get("phase", "Pending"))

    @property
    def deleting(self) -> bool:
        """Has somebody asked for the pod's deletion?"""
        return bool(self.pod["metadata"].get("deletionTimestamp"))

    @property
    def has_run(self) -> bool:
        """Does the pod's own record in Kubernetes say that it was submitted or ran before?"""
        return was_submitted(self.pod)

    @property
    def began(self) -> bool:
        """Was the pod ever accepted: is there a job, or was there one? A refused qsub leaves a directory only."""
        return self.has_run or self.result.stage not in (Stage.NONE, Stage.SUBMITTING)

    @property
    def has_started(self) -> bool:
        """Does the status in Kubernetes say that a container started?"""
        return has_started(self.pod)


def has_started(pod: Json) -> bool:
    """Does the status in Kubernetes say that a container started?"""
    status = pod.get("status", {})
    every = status.get("containerStatuses", []) + status.get("initContainerStatuses", [])
    return any(c.get(part, {}).keys() & {"running", "terminated"} for c in every for part in ("state", "lastState"))


def was_submitted(pod: Json) -> bool:
    """Does the pod's own record in Kubernetes say that it was submitted? Such a pod is never judged again."""
    meta = pod["metadata"]
    return has_started(pod) or (meta.get("annotations") or {}).get(names.SUBMITTED) == meta["uid"]
