"""What of a pod may change after its job was submitted, and what comes of it. Pure but for the pod's record.

A job runs with what its pod was when it was submitted. Later changes either reach it as files (labels and annotations,
a deadline), or they cannot, and then the status says what is true and an Event says why.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bridge.api import reasons
from bridge.plan.downward import field_value
from bridge.plan.model import NodeFacts, Plan
from bridge.pods.record import Made, Record
from pbs_adapter.models import Json, PodFile

SPREAD = 30.0  # seconds over which pods that an earlier process submitted are looked at first
UNKNOWN = -1  # of `Record.limited`
_LIVE = ("metadata.labels", "metadata.annotations")
_OTHER_IMAGE = (
    "container {name} goes on with image {made}, not {now}: a job cannot change what it runs; make the pod anew"
)
_RESIZE = "the resources of a PBS job are fixed when it is submitted; make the pod anew with the new ones"
_DEBUG = "a debug container cannot be added to a PBS job; run the tool in a pod of its own"


@dataclass(frozen=True, slots=True)
class Ignored:
    """A change that does not reach the job. `key` tells it from others of the pod."""

    key: str
    message: str


def made_of(pod: Json) -> Made:
    """What a job that is submitted now is made of."""
    every = list(_containers(pod))
    images = {c["name"]: c["image"] for c in every}
    return Made(images, {c["name"]: c.get("resources") or {} for c in every})


def told_by(pod: Json) -> Made:
    """The same of a job that an earlier process submitted, as far as the pod's own status tells; else as it is now."""
    now, status = made_of(pod), pod.get("status", {})
    told = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    images = {c["name"]: c["image"] for c in told if c.get("image")}
    resources = {c["name"]: c["resources"] for c in told if c.get("resources")}
    return Made({**now.images, **images}, {**now.resources, **resources})


def other_images(pod: Json, made: Made) -> tuple[Ignored, ...]:
    """Images that were changed."""
    return tuple(
        Ignored(f"image:{c['name']}", _OTHER_IMAGE.format(name=c["name"], made=had, now=c["image"]))
        for c in _containers(pod)
        if (had := made.images.get(c["name"], c["image"])) != c["image"]
    )


def resized(pod: Json, made: Made) -> str:
    """Why a change of resources that somebody asked for is not made; empty when none was asked for."""
    other = [c["name"] for c in _containers(pod) if not _same(c.get("resources"), made.resources.get(c["name"]))]
    return f"container {', '.join(other)}: {_RESIZE}" if other else ""


def _same(wanted: Mapping[str, object] | None, made: Mapping[str, object] | None) -> bool:
    """Whether requests and limits are the same; what the API server adds besides does not count."""
    sides = ("requests", "limits")
    return all(((wanted or {}).get(side) or {}) == ((made or {}).get(side) or {}) for side in sides)


def ignored(pod: Json, made: Made) -> tuple[Ignored, ...]:
    """All changes that do not reach the job."""
    found = list(other_images(pod, made))
    if text := resized(pod, made):
        found.append(Ignored("resize", text))
    found += [Ignored(f"debug:{c['name']}", f"container {c['name']}: {_DEBUG}") for c in _debuggers(pod)]
    return tuple(found)


def debug_statuses(pod: Json) -> list[Json]:
    """ephemeralContainerStatuses: each waits, and says that it always will."""
    waiting = {"waiting": {"reason": reasons.UNSUPPORTED, "message": _DEBUG}}
    bare: Json = {"imageID": "", "ready": False, "restartCount": 0, "state": waiting, "lastState": {}}
    return [{"name": c["name"], "image": c["image"]} | bare for c in _debuggers(pod)]


def deadline(pod: Json) -> int:
    """activeDeadlineSeconds; 0: none."""
    return int(pod["spec"].get("activeDeadlineSeconds") or 0)


def untold(pod: Json, record: Record) -> bool:
    """Whether podrun has yet to be told of a deadline."""
    return bool(deadline(pod)) and record.limited != deadline(pod)


def limits_file(pod: Json) -> PodFile:
    """What podrun reads while the pod runs, as it reads stop.json."""
    content = {"version": 1, "activeDeadlineSeconds": deadline(pod)}
    return PodFile("limits.json", json.dumps(content).encode())


def submitted(pod: Json, record: Record) -> None:
    """The pod's job is on the cluster, made of the pod as it is here."""
    record.made, record.limited, record.noted = made_of(pod), deadline(pod), _noted(pod)


def note(pod: Json, plan: Plan, record: Record, now: float) -> None:
    """Set when files of a pod that has a job are next to be looked at: at once after a change that they tell of.

    The first look at a job that an earlier process submitted, or whose submission was not answered, comes soon: what it
    has, and until when its tokens are good, is not known.
    """
    noted = _noted(pod)
    if record.noted == noted:
        return
    first, record.noted = not record.noted, noted
    if first and pod["metadata"].get("generation") == 1:
        record.limited = deadline(pod)
    if not first:
        record.refresh_at = now
    elif plan.refreshed or untold(pod, record):
        record.refresh_at = now + zlib.crc32(plan.uid.encode()) % 1000 / 1000 * SPREAD


def _noted(pod: Json) -> str:
    """Digest of what files on the cluster tell of the pod's object."""
    total = hashlib.sha256(str(deadline(pod)).encode())
    for path in dict.fromkeys(_live_fields(pod)):  # each once: one may be 256 KiB, and be named a thousand times
        total.update(f"\0{path}\0{field_value(pod, path, NodeFacts(''))}".encode("utf-8", "surrogatepass"))
    return total.hexdigest()


def _live_fields(pod: Json) -> Iterator[str]:
    """Paths of labels and annotations in the pod's downwardAPI files."""
    for volume in pod["spec"].get("volumes") or []:
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            for item in (source.get("downwardAPI") or {}).get("items") or []:
                path = (item.get("fieldRef") or {}).get("fieldPath") or ""
                if path.startswith(_LIVE):
                    yield path


def _containers(pod: Json) -> Iterator[Json]:
    yield from pod["spec"].get("initContainers") or []
    yield from pod["spec"].get("containers") or []


def _debuggers(pod: Json) -> list[Json]:
    return list(pod["spec"].get("ephemeralContainers") or [])
