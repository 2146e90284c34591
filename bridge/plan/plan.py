"""The plan of a pod: everything that its spec and the cluster's settings alone decide.

`plan` never raises, whatever the pod looks like: what cannot be read is a refusal too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bridge.api import reasons
from bridge.api.settings import Cluster
from bridge.plan import downward, fields, resources, sources, texts, volumes
from bridge.plan.containers import Runtime, runtime, variable_problem
from bridge.plan.environment import named
from bridge.plan.model import Json, Plan, Refusal
from pbs_adapter.models import JobOptions

_MIRROR = "kubernetes.io/config.mirror"
_HOST_COMMAND = "the runtime host has no image to take a command from; give the container a command"


def plan(pod: Json, cluster: Cluster) -> Plan:
    """What the pod needs from this cluster. A plan with refusals must not be submitted."""
    pod = pod if isinstance(pod, dict) else {}
    metadata, broken = _metadata(pod)
    spec: Json = pod["spec"] if isinstance(pod.get("spec"), dict) else {}
    refused, malformed = fields.examine(spec)
    if not spec.get("containers") and not malformed:
        malformed.append(Refusal("spec.containers", "is missing"))
    unsafe = list(texts.problems(spec))
    malformed = malformed or resources.bad_quantities(pod)
    if broken or malformed or unsafe:
        return _build(metadata, {}, JobOptions(1, 0, 1), [*broken, *malformed, *unsafe, *refused], cluster)
    options, unfit = resources.options(pod, cluster)
    refused = [*_owner(metadata), *refused, *unfit, *_containers(pod, cluster), *_volumes(pod, cluster)]
    result = _build(metadata, spec, options, refused, cluster)
    return _with_inputs(result, pod, cluster)  # a pod that runs is refreshed although it would be refused today


def _build(metadata: Json, spec: Json, options: JobOptions, refused: list[Refusal], cluster: Cluster) -> Plan:
    return Plan(
        uid=str(metadata.get("uid") or ""),
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or ""),
        options=options,
        refusals=tuple(refused),
        deadline=resources.deadline(spec),
        grace=resources.grace(spec),
        numa=resources.numa(metadata),
        # Within the margin, so that a pod gets all of the time it asked for.
        end_margin=max(1, min(20, int(cluster.walltime_margin) // 3)),
    )


def _with_inputs(bare: Plan, pod: Json, cluster: Cluster) -> Plan:
    every = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
    ids = {c["name"]: how.image_id for c in every if (how := runtime(c.get("image") or "", cluster)) is not None}
    refreshed = any(volumes.is_files(volume) for volume in pod["spec"].get("volumes") or [])
    notes = tuple(_notes(pod, cluster))
    return replace(bare, inputs=sources.references(pod), refreshed=refreshed, image_ids=ids, notes=notes)


def _notes(pod: Json, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """A ServiceAccount of its own has only a pod that means to use it; every pod has the default one's token."""
    account = pod["spec"].get("serviceAccountName") or "default"
    if cluster.api_server is None and account != "default":
        yield (
            reasons.NO_API_ADDRESS,
            f"runs as ServiceAccount {account}, and cluster {cluster.name} has no address of the API server for pods: "
            "a program that asks Kubernetes for something will fail there; its admin can set apiServer",
        )


def _metadata(pod: Json) -> tuple[Json, list[Refusal]]:
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        return {}, [Refusal("metadata", "is missing")]
    maps = ("labels", "annotations")
    odd = [key for key in maps if metadata.get(key) is not None and not isinstance(metadata[key], dict)]
    texts = ("name", "namespace", "uid")
    wrong = [key for key in texts if metadata.get(key) is not None and not isinstance(metadata[key], str)]
    return metadata, [
        *(Refusal(f"metadata.{key}", "must be a mapping") for key in odd),
        *(Refusal(f"metadata.{key}", "must be text (quote it)") for key in wrong),
    ]


def _owner(metadata: Json) -> Iterator[Refusal]:
    owners: list[Any] = metadata.get("ownerReferences") or []
    if any(isinstance(owner, dict) and owner.get("kind") == "DaemonSet" for owner in owners):
        text = "DaemonSet pods do not run on virtual nodes; add nodeAffinity `hpc-bridge.io/cluster DoesNotExist`"
        yield Refusal("metadata.ownerReferences", text)
    if _MIRROR in (metadata.get("annotations") or {}):
        yield Refusal("metadata.annotations", "static pods do not run on virtual nodes")


def _containers(pod: Json, cluster: Cluster) -> Iterator[Refusal]:
    mountable = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    for key in ("initContainers", "containers"):
        for index, container in enumerate(resources.containers(pod, key)):
            path = f"spec.{key}[{index}]"
            how = runtime(container["image"], cluster)
            if how is None:
                yield Refusal(f"{path}.image", _unmapped(container["image"], cluster), reasons.IMAGE_NOT_MAPPED)
            if not container.get("command") and (how is None or how.name == "host"):
                yield Refusal(f"{path}.command", _HOST_COMMAND)
            if container.get("workingDir") and not container["workingDir"].startswith("/"):
                yield Refusal(f"{path}.workingDir", "must be an absolute path")
            yield from _variables(pod, container, path, how)
            yield from _mounts(container, mountable, path)


def _unmapped(image: str, cluster: Cluster) -> str:
    text = (
        f"no rule of cluster {cluster.name} maps image {image[:200]}, and images are not pulled from registries yet; "
    )
    allowed = f", or name a SIF file or image directory below {' or '.join(cluster.image_paths)}"
    return text + "ask its admin to map it to a file" + (allowed if cluster.image_paths else "")


def _variables(pod: Json, container: Json, path: str, how: Runtime | None) -> Iterator[Refusal]:
    for index, variable in enumerate(container.get("env") or []):
        origin = variable.get("valueFrom") or {}
        problem = variable_problem(variable["name"], how) or _own_problem(pod, origin, container, env=True)
        if problem:
            yield Refusal(f"{path}.env[{index}]", problem)


def _own_problem(pod: Json, source: Json, container: Json | None, *, env: bool) -> str | None:
    if source.get("fieldRef"):
        return downward.field_problem(source["fieldRef"]["fieldPath"], env=env)
    if source.get("resourceFieldRef"):
        ref = source["resourceFieldRef"]
        target = named(pod, ref["containerName"]) if ref.get("containerName") else container
        return downward.resource_problem(ref, target)
    return None


def _mounts(container: Json, mountable: dict[str, Json], path: str) -> Iterator[Refusal]:
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount["name"] not in mountable:
            yield Refusal(f"{path}.volumeMounts[{index}].name", f"there is no volume {mount['name'][:80]!r}")
        if posixpath.normpath("/" + mount["mountPath"]).strip("/") == "":
            yield Refusal(f"{path}.volumeMounts[{index}].mountPath", "must be a path below /")
        if mount.get("subPath") and not volumes.safe_path(mount["subPath"]):
            yield Refusal(f"{path}.volumeMounts[{index}].subPath", "must be a relative path without ..")


def _volumes(pod: Json, cluster: Cluster) -> Iterator[Refusal]:
    every = [*resources.containers(pod, "initContainers"), *resources.containers(pod, "containers")]
    mounts = [mount for container in every for mount in container.get("volumeMounts") or []]
    written = {mount["name"] for mount in mounts if not mount.get("readOnly")}
    for index, volume in enumerate(pod["spec"].get("volumes") or []):
        path = f"spec.volumes[{index}]"
        if volume.get("hostPath"):
            writes = volume["name"] in written
            problem = volumes.host_path_problem(volume["hostPath"]["path"], writes=writes, cluster=cluster)
            if problem:
                yield Refusal(f"{path}.hostPath.path", problem)
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            yield from _items(pod, source, path)


def _items(pod: Json, source: Json, path: str) -> Iterator[Refusal]:
    for kind in ("configMap", "secret", "downwardAPI"):
        for item in (source.get(kind) or {}).get("items") or []:
            problem = _own_problem(pod, item, None, env=False)
            if kind == "downwardAPI" and not (item.get("fieldRef") or item.get("resourceFieldRef")):
                problem = "needs fieldRef or resourceFieldRef"
            if not volumes.safe_file(item["path"]):
                problem = "a path must be relative and without .."
            if problem:
                yield Refusal(f"{path}.{kind}.items[{texts.escaped(item['path'][:80])}]", problem)
    token = source.get("serviceAccountToken")
    if token and not volumes.safe_path(token["path"]):
        yield Refusal(f"{path}.serviceAccountToken.path", "must be a relative path without ..")
