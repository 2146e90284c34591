"""Performs the actions that `decide` returned, and notes in the pod's record what came of them.

Errors of the cluster become waiting reasons or failures of the pod here, by one table; errors of the API server pass
to the caller, who tries again later.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from bridge import faultpoints
from bridge.api import names, reasons
from bridge.api.settings import Cluster as ClusterSettings
from bridge.kube import Kubernetes, paths
from bridge.kube.clock import Clock
from bridge.kube.errors import Conflict, Forbidden, KubeError, NotFound, Unavailable
from bridge.kube.events import EventSink
from bridge.plan.freeze import freeze, refresh
from bridge.plan.model import Json, MissingInput, NodeFacts, Plan, TooLarge
from bridge.pods import decide as d
from bridge.pods import live
from bridge.pods.containers import Waiting
from bridge.pods.inputs import InputSource
from bridge.pods.record import Failure, Record
from bridge.pods.status import wire
from pbs_adapter.errors import Backlog, Fenced, OutcomeUnknown, Permanent, Retry, SiteFault, Unreachable
from pbs_adapter.models import Census, JobRef, JobRequest, Observation, PodFile, VolumeFiles

log = structlog.get_logger(__name__)

CONFIG_RETRY = 3.0  # seconds until a missing ConfigMap is looked for again
TOO_LARGE_RETRY = 60.0  # the same for ConfigMaps that are too large together: it takes memory to see
CANCELS = 12  # of one account at the same time: one that answers none must leave workers for the others
BACKLOG_RETRY = 15.0
REJECTED_RETRY = 300.0  # as long as a kubelet's longest pause between two tries to pull an image
FAULT_RETRY = 2.0
FAULT_RETRY_MOST = 60.0
HOLD_EVERY = 300.0  # seconds between Events that tell why the same kind of hold lasts
MOST_ANNOUNCED = 64  # keys remembered of a pod
REFUSED_RETRY = 10.0  # seconds until a status that was refused is sent again, reduced; doubles up to the next
REFUSED_RETRY_MOST = 600.0
UNNOTICED = 1.0  # seconds that a submission may take before the pod's status tells of it


class Link(Protocol):
    """What of a cluster's connection is used here; `bridge.clusters` provides it."""

    async def submit(self, job: JobRequest) -> str: ...
    async def write(self, ref: JobRef, files: tuple[PodFile, ...], volumes: tuple[VolumeFiles, ...]) -> None: ...
    async def cancel(self, ref: JobRef, grace: int, *, force: bool = False) -> None: ...


class ObservedLink(Link, Protocol):
    """The link as the loop reads it."""

    @property
    def census(self) -> Census | None: ...
    def seen(self, account: str, uid: str) -> Observation | None: ...
    def holders(self, uid: str) -> tuple[str, ...]: ...
    def complete(self, account: str) -> bool: ...
    def all_complete(self) -> bool: ...
    def trouble(self, account: str) -> str: ...
    def account_for(self, namespace: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Scene:
    """What actions on one node's pods need; made once."""

    kube: Kubernetes
    link: Link
    events: EventSink
    inputs: InputSource
    clock: Clock
    cluster: ClusterSettings
    instance: str
    facts: Callable[[], NodeFacts]
    observe_submit: Callable[[float], None]
    observe_numa: Callable[[str, int], None] = lambda kind, domains: None
    cancelling: dict[str, int] = field(default_factory=dict)  # by account, how many wait for an answer


async def act(scene: Scene, action: d.Action, pod: Json, plan: Plan, ref: JobRef, record: Record) -> Json | None:
    """Perform one action; return the pod as the API server now has it when it changed."""
    match action:
        case d.WriteStatus():
            return await _write_status(scene, action, pod, record)
        case d.Annotate():
            return await _annotate_job(scene, action, pod, ref, record)
        case d.AnnotateSpan():
            return await _annotate_span(scene, action, pod, record)
        case d.Submit(dict(shown)):
            return await _submit_shown(scene, shown, pod, plan, ref, record)
        case d.Submit():
            await _submit(scene, pod, plan, ref, record)
        case d.Refresh():
            await _refresh(scene, pod, plan, ref, record)
        case d.Cancel():
            await cancel(scene, ref, record, grace=action.grace, force=action.force)
        case d.Delete():
            await _delete(scene, pod)
        case d.Announce():
            announce(scene, pod, record, action.kind, action.reason, action.message, action.once, every=action.every)
    return None


async def _write_status(scene: Scene, action: d.WriteStatus, pod: Json, record: Record) -> Json | None:
    meta = pod["metadata"]
    body = {"metadata": {"uid": meta["uid"]}, "status": wire(action.fields)}
    if action.fields.get("phase") in d.TERMINAL:
        await faultpoints.reach("status.terminal", meta["uid"])
    record.wrote, record.wrote_at = action.fields, scene.clock.time()
    try:
        changed = await scene.kube.patch(paths.pod_status(meta["namespace"], meta["name"]), body)
    except (Conflict, NotFound, Unavailable):
        record.wrote = None
        raise
    except KubeError as error:
        _refused(scene, pod, record, error)
        return None
    if action.message_only:
        record.message_at = record.wrote_at
    record.refusals, record.answered = 0, changed.get("status")
    return changed


def _refused(scene: Scene, pod: Json, record: Record, error: KubeError) -> None:
    """The API server takes no such status: it is tried again later, with less in it, and nothing waits for it."""
    pause = min(REFUSED_RETRY_MOST, REFUSED_RETRY * 2 ** min(record.refusals, 10))
    record.refusals += 1
    record.refused_until = scene.clock.time() + max(pause, error.retry_after or 0.0)
    log.warning("pod.status_refused", pod_uid=pod["metadata"]["uid"], error=str(error), times=record.refusals)
    text = f"the API server refuses the pod's status: {error}"
    announce(scene, pod, record, "Warning", reasons.STATUS_REFUSED, text[:1000], "refused", every=HOLD_EVERY)


async def _annotate(scene: Scene, pod: Json, record: Record, annotations: dict[str, str]) -> Json | None:
    """Write annotations with the status: a node may patch `pods/status` of its pods, and no pod itself.

    One that is refused is told once and left out: the status must not wait for it.
    """
    meta = pod["metadata"]
    body = {"metadata": {"uid": meta["uid"], "annotations": annotations}}
    try:
        return await scene.kube.patch(paths.pod_status(meta["namespace"], meta["name"]), body)
    except (Conflict, NotFound, Unavailable):
        raise
    except KubeError as error:
        text = f"the API server refuses the pod's annotations: {error}"
        announce(scene, pod, record, "Warning", reasons.STATUS_REFUSED, text[:1000], "annotations")
        return None


async def _annotate_job(scene: Scene, action: d.Annotate, pod: Json, ref: JobRef, record: Record) -> Json | None:
    uid = pod["metadata"]["uid"]
    written = {names.JOB_ID: action.job_id, names.CLUSTER: scene.cluster.name, names.SUBMITTED: uid}
    written[names.BOUND_ACCOUNT] = ref.account
    changed = await _annotate(scene, pod, record, written)
    record.annotated = True
    return changed


async def _annotate_span(scene: Scene, action: d.AnnotateSpan, pod: Json, record: Record) -> Json | None:
    changed = await _annotate(scene, pod, record, {names.NUMA_SPAN: action.text})
    record.span_written = True
    return changed


async def _submit_shown(scene: Scene, shown: Json, pod: Json, plan: Plan, ref: JobRef, record: Record) -> Json | None:
    work = asyncio.ensure_future(_submit(scene, pod, plan, ref, record))
    timer = asyncio.ensure_future(scene.clock.sleep(UNNOTICED))
    changed = None
    try:
        await asyncio.wait({work, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            changed = await _write_status(scene, d.WriteStatus(shown), pod, record)
    except asyncio.CancelledError:
        work.cancel()
        raise
    finally:
        timer.cancel()
        await asyncio.gather(work, timer, return_exceptions=True)
    work.result()
    return changed


async def _submit(scene: Scene, pod: Json, plan: Plan, ref: JobRef, record: Record) -> None:
    try:
        async with scene.inputs.slot() as slot:
            inputs = await scene.inputs.gather(pod, plan.inputs, slot)
            request = await slot.within(
                lambda: freeze(
                    pod, plan, inputs,
                    node=scene.facts(), instance=scene.instance, cluster=scene.cluster, account=ref.account,
                ),
                lambda made: _weight(made.files, made.volumes),
            )  # fmt: skip
            started = scene.clock.monotonic()
            await faultpoints.reach("submit.before", ref.uid)
            job_id = await scene.link.submit(request)
            await faultpoints.reach("submit.answered", ref.uid)
    except MissingInput as missing:
        pause = TOO_LARGE_RETRY if isinstance(missing, TooLarge) else CONFIG_RETRY
        _hold(scene, pod, record, Waiting(reasons.CONFIG_ERROR, str(missing)), pause)
        return
    except Forbidden as error:
        record.attempts += 1
        if record.attempts > 1:  # the first: the API server may not have heard yet that the pod is bound to this node
            text = f"the API server does not let this node read what the pod refers to: {error.message}"
            _hold(scene, pod, record, Waiting(reasons.CONFIG_ERROR, text[:1000]), _growing(record.attempts))
        else:
            record.retry_at = scene.clock.time() + 1.0
        return
    except OutcomeUnknown as error:
        _hold(scene, pod, record, Waiting(reasons.PENDING_SUBMIT, str(error)), FAULT_RETRY)
        return
    except Backlog as error:
        _hold(scene, pod, record, Waiting(reasons.PBS_BACKLOG, str(error)), BACKLOG_RETRY)
        return
    except SiteFault as error:
        _site_fault(scene, pod, record, str(error))
        return
    except (Retry, Fenced) as error:
        record.attempts += 1
        _hold(scene, pod, record, Waiting(reasons.CLUSTER_UNREACHABLE, str(error)), _growing(record.attempts))
        return
    except Permanent as error:
        text = f"{error} ({record.over})" if record.over else str(error)
        if d.replaced_at_once(pod):
            _hold(scene, pod, record, Waiting(reasons.PBS_REJECTED, text), REJECTED_RETRY)
        else:
            record.failure = Failure(reasons.PBS_REJECTED, text)
        return
    scene.observe_submit(scene.clock.monotonic() - started)
    record.hold, record.attempts, record.fault_since = None, 0, 0.0
    live.submitted(pod, record)
    if plan.refreshed:
        record.refresh_at = scene.inputs.refresh_at(pod, plan.inputs)
        record.written = _digest(request.volumes)
    queue = request.options.queue
    scene.events.event(
        pod,
        "Normal",
        reasons.SUBMITTED,
        f"Submitted to cluster {scene.cluster.name} as job {job_id}"
        + (f" to queue {queue}" if queue else " to the default queue"),
    )
    for reason, text in plan.notes:
        scene.events.event(pod, "Warning", reason, text)
    log.info("pod.submitted", pod_uid=ref.uid, job_id=job_id, cluster=scene.cluster.name)


def _site_fault(scene: Scene, pod: Json, record: Record, text: str) -> None:
    """Nobody's request is wrong: wait for the site's admin, longer each time, but not for ever."""
    now = scene.clock.time()
    record.attempts += 1
    record.fault_since = record.fault_since or now
    if now - record.fault_since >= scene.cluster.site_fault_limit and not d.replaced_at_once(pod):
        limit = f"the settings allow {scene.cluster.site_fault_limit:.0f} s (siteFaultLimit)"
        record.failure = Failure(reasons.SITE_FAULT, f"{text}; {limit}")
    else:
        _hold(scene, pod, record, Waiting(reasons.SITE_FAULT, text), _growing(record.attempts))


def _growing(attempts: int) -> float:
    return float(min(FAULT_RETRY_MOST, FAULT_RETRY * 2 ** min(attempts, 6)))


def _hold(scene: Scene, pod: Json, record: Record, waiting: Waiting, pause: float) -> None:
    record.hold = waiting
    record.retry_at = scene.clock.time() + pause
    log.info(
        "pod.submit_later", pod_uid=pod["metadata"]["uid"], reason=waiting.reason, text=waiting.message, pause=pause
    )
    announce(scene, pod, record, "Warning", waiting.reason, waiting.message, f"hold:{waiting.reason}", every=HOLD_EVERY)


def announce(
    scene: Scene, pod: Json, record: Record, kind: str, reason: str, message: str, once: str, *, every: float = 0.0
) -> None:
    """Write an Event, if none with the key `once` was written before, or not for `every` seconds (0: never again)."""
    now, last = scene.clock.time(), record.announced.get(once)
    if last is not None and (not every or now < last + every):
        return
    record.announced.pop(once, None)
    while len(record.announced) >= MOST_ANNOUNCED:
        del record.announced[next(iter(record.announced))]
    record.announced[once] = now
    scene.events.event(pod, kind, reason, message)


async def _refresh(scene: Scene, pod: Json, plan: Plan, ref: JobRef, record: Record) -> None:
    record.refresh_at = scene.clock.time() + CONFIG_RETRY
    try:
        await _tell_limit(scene, pod, ref, record)
        if not plan.refreshed:
            record.refresh_at = 0.0
            return
        async with scene.inputs.slot() as slot:
            inputs = await scene.inputs.gather(pod, plan.inputs, slot)
            volumes = await slot.within(
                lambda: refresh(pod, plan, inputs, node=scene.facts()), lambda made: _weight((), made)
            )
            digest = _digest(volumes)
            if digest != record.written:
                await scene.link.write(ref, (), volumes)
                record.written = digest
    except (Retry, Fenced, OutcomeUnknown):
        return
    except Forbidden as error:
        text = f"what the pod's volumes are made of can no longer be read, they stay as they are: {error.message}"
        announce(scene, pod, record, "Warning", reasons.CONFIG_ERROR, text[:1000], "refresh", every=HOLD_EVERY)
    except TooLarge as error:  # what the pod has stays as it is
        log.warning("pod.refresh_refused", pod_uid=ref.uid, error=str(error))
    except Permanent as error:
        log.warning("pod.refresh_refused", pod_uid=ref.uid, error=str(error))
    record.refresh_at = scene.inputs.refresh_at(pod, plan.inputs)


def _weight(files: tuple[PodFile, ...], volumes: tuple[VolumeFiles, ...]) -> int:
    return sum(len(file.content) for file in (*files, *(file for volume in volumes for file in volume.files)))


async def _tell_limit(scene: Scene, pod: Json, ref: JobRef, record: Record) -> None:
    """Tell podrun of a deadline that was changed. Raises what `Link.write` does, but for a refusal."""
    if not live.untold(pod, record):
        return
    try:
        await scene.link.write(ref, (live.limits_file(pod),), ())
    except Permanent as error:
        text = f"activeDeadlineSeconds: {error}"
        announce(scene, pod, record, "Warning", reasons.CHANGE_IGNORED, text[:1000], "limit", every=HOLD_EVERY)
    record.limited = live.deadline(pod)


def _digest(volumes: tuple[VolumeFiles, ...]) -> str:
    total = hashlib.sha256()
    for volume in volumes:
        if not volume.managed:
            continue
        total.update(f"{volume.root}\0{len(volume.files)}\0".encode())  # emptied is not the same as left out
        for file in volume.files:
            total.update(f"{volume.root}\0{file.path}\0{file.mode}\0{len(file.content)}\0".encode())
            total.update(file.content)
    return total.hexdigest()


async def cancel(scene: Scene, ref: JobRef, record: Record, *, grace: int, force: bool) -> None:
    """Ask the cluster to stop the job; a fault is tried again by the next decision. Nobody gets less than 2 s."""
    grace, waiting = max(grace, d.LEAST_GRACE), scene.cancelling.get(ref.account, 0)
    if waiting >= CANCELS:
        return
    await faultpoints.reach("cancel.before", ref.uid)
    scene.cancelling[ref.account] = scene.cancelling.get(ref.account, 0) + 1
    try:
        await scene.link.cancel(ref, grace, force=force)
    except (Retry, Fenced, OutcomeUnknown) as error:
        log.info("pod.cancel_later", pod_uid=ref.uid, error=str(error))
        if not isinstance(error, Unreachable | Fenced | OutcomeUnknown):
            record.cancel_failed_at = record.cancel_failed_at or scene.clock.time()
        return
    except Permanent as error:
        log.warning("pod.cancel_refused", pod_uid=ref.uid, error=str(error))
    finally:
        scene.cancelling[ref.account] -= 1
    record.forced_at = scene.clock.time() if force else record.forced_at
    record.cancel_grace = grace


async def _delete(scene: Scene, pod: Json) -> None:
    meta = pod["metadata"]
    await faultpoints.reach("delete.before", meta["uid"])
    try:
        await scene.kube.delete(paths.pod(meta["namespace"], meta["name"]), uid=meta["uid"], grace=0)
    except (NotFound, Conflict):
        pass  # gone already, or another pod has the name now
