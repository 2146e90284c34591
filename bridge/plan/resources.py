"""What a pod asks of PBS: the table of DESIGN 7 as code.

Everything a pod author writes that ends in a qsub option passes a strict pattern here; what does not is refused with
a text that says what is allowed. The admin's settings are trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

from bridge.api import names, qsub, reasons
from bridge.api.settings import Cluster, parse_duration
from bridge.plan import quantity
from bridge.plan.model import Json, Refusal
from bridge.plan.placement import NumaWish
from pbs_adapter.models import JobOptions

JOB_OVERHEAD = 256 << 20  # podrun, bubblewrap and page cache of logs count as the job's memory
LONGEST = 10 * 365 * 86400
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=-]{0,63}", re.ASCII)
_NUMA = re.compile("|".join(get_args(NumaWish)))
_SHARING = "(?:excl|exclhost|shared)"
_GROUP = "group=[A-Za-z][A-Za-z0-9_-]{0,63}"
_PLACE = re.compile(
    f"(?:free|pack|scatter|vscatter)(?::{_SHARING})?(?::{_GROUP})?|{_SHARING}(?::{_GROUP})?|{_GROUP}", re.ASCII
)


def containers(pod: Json, key: str) -> list[Json]:
    """The containers under `key` ("containers" or "initContainers")."""
    return pod.get("spec", {}).get(key) or []


def asked(container: Json, resource: str, *, limit_first: bool) -> Fraction | None:
    """One container's request or limit, whichever of the two is preferred and there."""
    declared = container.get("resources") or {}
    order = ("limits", "requests") if limit_first else ("requests", "limits")
    for side in order:
        value = (declared.get(side) or {}).get(resource)
        if value is not None:
            return quantity.parse(value)
    return None


def memory(container: Json, cluster: Cluster) -> int:
    """Bytes one container may use: its limit, else its request, else the cluster's default."""
    value = asked(container, "memory", limit_first=True)
    return cluster.memory if value is None else quantity.ceil(value)


def cpu_millis(container: Json) -> int:
    """Thousandths of a CPU one container asks for; 0 when it does not say."""
    return quantity.ceil((asked(container, "cpu", limit_first=False) or Fraction(0)) * 1000)


def _together(pod: Json, each: Callable[[Json], Fraction | int]) -> Fraction:
    """App containers run side by side, init containers one after the other before them."""
    apps = sum((Fraction(each(c)) for c in containers(pod, "containers")), Fraction(0))
    return max([apps, *(Fraction(each(c)) for c in containers(pod, "initContainers"))])


def _overhead(pod: Json, resource: str) -> Fraction:
    return quantity.parse((pod["spec"].get("overhead") or {}).get(resource, 0))


def ncpus(pod: Json) -> int:
    """CPUs of the chunk; PBS counts whole ones, and a job has at least one."""
    millis = _together(pod, cpu_millis) + _overhead(pod, "cpu") * 1000
    return max(1, quantity.ceil(millis / 1000))


def mem_bytes(pod: Json, cluster: Cluster) -> int:
    """Memory of the chunk in bytes, and what the job itself needs.

    What is written to an emptyDir of medium Memory counts within the memory of the containers that mount it, as with
    any kubelet. It is added only where none of them says how much memory it may use.
    """
    every = [*containers(pod, "initContainers"), *containers(pod, "containers")]
    within = {m["name"] for c in every if _says_memory(c) for m in c.get("volumeMounts") or []}
    ram_disks = sum(
        quantity.parse(volume["emptyDir"].get("sizeLimit") or 0)
        for volume in pod["spec"].get("volumes") or []
        if in_memory(volume) and volume["name"] not in within
    )
    total = _together(pod, lambda c: memory(c, cluster)) + _overhead(pod, "memory") + ram_disks
    return quantity.ceil(total) + JOB_OVERHEAD


def in_memory(volume: Json) -> bool:
    """Whether the volume is an emptyDir that lies in the node's memory."""
    return (volume.get("emptyDir") or {}).get("medium") == "Memory"


def _says_memory(container: Json) -> bool:
    return asked(container, "memory", limit_first=True) is not None


def _declared(pod: Json) -> Iterable[tuple[str, str, object]]:
    for key in ("initContainers", "containers"):
        for index, container in enumerate(containers(pod, key)):
            for side in ("requests", "limits"):
                for resource, value in ((container.get("resources") or {}).get(side) or {}).items():
                    yield f"spec.{key}[{index}].resources.{side}", resource, value


def bad_quantities(pod: Json) -> list[Refusal]:
    """Quantities that cannot be read. The API server lets none through; `render` sees what people typed."""
    spec = pod["spec"]
    places = [(f"{path}[{name}]", value) for path, name, value in _declared(pod)]
    places += [(f"spec.overhead[{name}]", value) for name, value in (spec.get("overhead") or {}).items()]
    for index, volume in enumerate(spec.get("volumes") or []):
        limit = (volume.get("emptyDir") or {}).get("sizeLimit")
        if limit is not None:
            places.append((f"spec.volumes[{index}].emptyDir.sizeLimit", limit))
    found = []
    for path, value in places:
        try:
            quantity.parse(value)
        except ValueError as error:
            found.append(Refusal(path, str(error)))
    return found


def chunk_resources(pod: Json, cluster: Cluster) -> tuple[dict[str, int | str], list[Refusal]]:
    """Further resources of the chunk by the cluster's map; those without a place in PBS are refused."""
    wanted: dict[str, str] = {}
    for path, resource, value in _declared(pod):
        if resource not in ("cpu", "memory") and quantity.parse(value):
            wanted.setdefault(resource, path)
    chunk: dict[str, int | str] = {}
    refused = []
    for resource, path in wanted.items():
        if resource in cluster.resources:
            total = _together(pod, lambda c, r=resource: asked(c, r, limit_first=True) or 0)  # type: ignore[misc]
            sized = resource == "ephemeral-storage"  # bytes; PBS writes them with a unit
            chunk[cluster.resources[resource]] = f"{quantity.ceil(total / 1024)}kb" if sized else quantity.ceil(total)
        else:
            known = ", ".join(sorted(cluster.resources)) or "none"
            text = f"{resource} has no PBS resource on cluster {cluster.name} (mapped: {known}); leave it out"
            refused.append(Refusal(path, text))
    return chunk, refused


def _for(given: Mapping[str, qsub.ByNamespace], namespace: str) -> dict[str, int | str]:
    """The resources that the settings fix for a namespace."""
    found = {name: qsub.of(value, namespace) for name, value in given.items()}
    return {name: value for name, value in found.items() if value is not None}


class Annotations:
    """Reads the author's annotations; collects a refusal for each that may not be passed to PBS."""

    def __init__(self, pod: Json) -> None:
        self._values: Mapping[str, Any] = pod.get("metadata", {}).get("annotations") or {}
        self.refused: list[Refusal] = []
        known = ", ".join(names.AUTHOR_ANNOTATIONS)
        for name in self._values:
            if str(name).startswith(names.PREFIX) and name not in names.AUTHOR_ANNOTATIONS:
                self._refuse(name, f"is not known; known are {known}")

    def _refuse(self, name: str, message: str) -> None:
        path = f"metadata.annotations[{name[:80]}]"
        self.refused.append(Refusal(path, message, reasons.INVALID_ANNOTATION))

    def get(self, name: str, pattern: re.Pattern[str], allowed: str, *, permitted: bool = True) -> str | None:
        """The value where it is there, permitted and matches; `allowed` tells the author what would."""
        value = self._values.get(name)
        if value is None:
            return None
        if not permitted:
            self._refuse(name, "this cluster's settings do not let pods choose it (allowProjectAnnotation)")
        elif not isinstance(value, str):
            self._refuse(name, "must be text; quote it")
        elif not pattern.fullmatch(value):
            self._refuse(name, f"{value[:60]!r} is not accepted; {allowed}")
        else:
            return value
        return None

    def queue(self, cluster: Cluster) -> str | None:
        """The queue chosen, which the cluster's settings must list."""
        choices = sorted({*cluster.queues, *([cluster.queue] if cluster.queue else [])})
        pattern = re.compile("|".join(map(re.escape, choices)) or r"(?!)")
        return self.get(names.QUEUE, pattern, f"queues that pods may name here: {', '.join(choices) or 'none'}")

    def place(self, cluster: Cluster) -> str | None:
        """The placement chosen, which the cluster's settings must allow."""
        value = self.get(names.PLACE, _PLACE, "write free, pack, scatter or vscatter, then :excl, :group=RESOURCE")
        wrong = None if value is None else qsub.place_problem(value, cluster.placements)
        if wrong:
            self._refuse(names.PLACE, f"{wrong} on cluster {cluster.name}")
        return None if wrong else value

    def walltime(self) -> int | None:
        """Seconds asked for."""
        allowed = "write seconds, 90s, 15m, 2h, 1h30m or HH:MM:SS, at most ten years"
        text = self.get(names.WALLTIME, re.compile(r"[0-9hmsd:]{1,32}", re.ASCII), allowed)
        if text is None:
            return None
        try:
            seconds = int(parse_duration(text))  # type: ignore[call-overload]  # a str gives a number or ValueError
        except ValueError:
            seconds = 0
        if 0 < seconds <= LONGEST:
            return int(seconds)
        self._refuse(names.WALLTIME, f"{text!r} is not accepted; {allowed}")
        return None


def deadline(spec: Json) -> int | None:
    """activeDeadlineSeconds; the API server lets only positive ones through."""
    return max(1, _whole(spec["activeDeadlineSeconds"])) if spec.get("activeDeadlineSeconds") is not None else None


def grace(spec: Json) -> int:
    """terminationGracePeriodSeconds; a negative one means one second, as with any kubelet."""
    value = spec.get("terminationGracePeriodSeconds")
    return 30 if value is None else _whole(value) if _whole(value) >= 0 else 1


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0  # plan() refuses what is no number


def numa(metadata: Json) -> NumaWish | None:
    """What the author wrote of NUMA; `options` refuses what is none of the words."""
    annotations = metadata.get("annotations")
    wish = annotations.get(names.NUMA) if isinstance(annotations, dict) else None
    return next((word for word in get_args(NumaWish) if word == wish), None)


def site_options(cluster: Cluster, namespace: str) -> JobOptions:
    """What the settings alone ask for with every job of a namespace: the smallest job, which a site should take."""
    return JobOptions(
        ncpus=1,
        mem_bytes=JOB_OVERHEAD,
        walltime=60,
        resources=_for(cluster.chunk_resources, namespace),
        queue=cluster.queue,
        project=cluster.projects.get(namespace),
        accounting=cluster.accounting.get(namespace),
        job_resources={name: str(value) for name, value in _for(cluster.job_resources, namespace).items()},
        group=qsub.of(cluster.groups, namespace),
    )


def options(pod: Json, cluster: Cluster) -> tuple[JobOptions, list[Refusal]]:
    """The job's options, and what of the pod cannot become one."""
    spec, namespace = pod["spec"], pod.get("metadata", {}).get("namespace") or "default"
    annotations = Annotations(pod)
    wished = annotations.walltime()
    seconds = Fraction(deadline(spec) or wished or cluster.walltime)
    total = seconds + grace(spec) + Fraction(cluster.walltime_margin)
    chosen = cluster.allow_project_annotation
    words = "letters, digits and _.@=- (at most 64, not starting with a sign)"
    chunk, refused = chunk_resources(pod, cluster)
    annotations.get(names.NUMA, _NUMA, "write ignore, prefer or require")
    site = site_options(cluster, namespace)
    built = replace(
        site,
        ncpus=ncpus(pod),
        mem_bytes=mem_bytes(pod, cluster),
        walltime=quantity.ceil(total),
        resources={**site.resources, **chunk},
        place=annotations.place(cluster),
        queue=annotations.queue(cluster) or site.queue,
        project=annotations.get(names.PROJECT, _WORD, words, permitted=chosen) or site.project,
        accounting=annotations.get(names.ACCOUNT, _WORD, words, permitted=chosen) or site.accounting,
        priority=cluster.priority_classes.get(spec.get("priorityClassName") or ""),
    )
    return built, [*annotations.refused, *refused, *_too_long(spec, wished, cluster)]


def _too_long(spec: Json, wished: int | None, cluster: Cluster) -> Iterator[Refusal]:
    """More time than the settings let a pod have: by its deadline, by the annotation, or by its grace period."""
    most, own = cluster.longest_walltime, deadline(spec)
    asked_for = (own or wished or cluster.walltime) + grace(spec)
    if most is None or asked_for <= most:
        return
    field = "spec.activeDeadlineSeconds" if own else f"metadata.annotations[{names.WALLTIME}]"
    if not own and not wished:
        field = "spec.terminationGracePeriodSeconds"
    text = f"asks for {asked_for:.0f} s with the grace period, cluster {cluster.name} lets pods have {most:.0f} s"
    yield Refusal(field, text, reasons.UNSUPPORTED if own or not wished else reasons.INVALID_ANNOTATION)
