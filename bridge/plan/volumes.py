"""A pod's volumes as files below its directory, and the mounts that put them into containers.

Files of configMap, secret, downwardAPI and projected volumes are worked out here, whole, so that the cluster side only
swaps them in. Volumes that hold anything from a Secret or a token live below `secrets/`, which podrun removes when it
ends.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from bridge.api.settings import Cluster, HostPath
from bridge.plan import downward, quantity
from bridge.plan.environment import named
from bridge.plan.model import Json, MissingInput, NodeFacts, Plan
from bridge.plan.resources import in_memory
from bridge.plan.sources import Kind, Sources, token_ref
from bridge.plan.texts import control
from pbs_adapter.models import PodFile, VolumeFiles

_FILES = ("configMap", "secret", "downwardAPI", "projected")
_DEFAULT_MODE = 0o644
_FILE = 128  # bytes that a file costs besides its content


def is_files(volume: Json) -> bool:
    """Whether the bridge writes this volume's content (as opposed to emptyDir and hostPath)."""
    return any(volume.get(kind) is not None for kind in _FILES)


def root(volume: Json) -> str:
    """The volume's folder below the pod directory."""
    sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
    secret = any(s.get("secret") is not None or s.get("serviceAccountToken") is not None for s in sources)
    return f"{'secrets/' if secret else ''}volumes/{volume['name']}"


def safe_path(path: str) -> bool:
    """Whether a path given by the pod stays below the folder it is relative to, and can stand in an option."""
    return safe_file(path) and not control(path)


def safe_file(path: str) -> bool:
    """The same for a file that the bridge writes: the API server, and any file system, take a newline in its name."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def files(pod: Json, volume: Json, plan: Plan, sources: Sources, node: NodeFacts) -> VolumeFiles:
    """The whole content of one volume that the bridge writes. Raises MissingInput."""
    writer = _Writer(pod, plan, sources, node)
    mode = next((volume[kind].get("defaultMode") for kind in _FILES if volume.get(kind)), None)
    merged: dict[str, PodFile] = {}
    for source in (volume.get("projected") or {}).get("sources") or [volume]:
        for file in writer.source(source, _DEFAULT_MODE if mode is None else mode):
            sources.files.spend(len(file.content) + len(file.path) + _FILE)
            merged[file.path] = file
    return VolumeFiles(root(volume), tuple(merged[path] for path in sorted(merged)), managed=True)


class _Writer:
    def __init__(self, pod: Json, plan: Plan, sources: Sources, node: NodeFacts) -> None:
        self._pod, self._plan, self._sources, self._node = pod, plan, sources, node

    def source(self, source: Json, mode: int) -> Iterator[PodFile]:
        if source.get("configMap") is not None:
            yield from self._object("ConfigMap", source["configMap"], mode)
        elif source.get("secret") is not None:
            yield from self._object("Secret", source["secret"], mode)
        elif source.get("downwardAPI") is not None:
            for item in source["downwardAPI"].get("items") or []:
                yield _file(item["path"], self._own(item).encode("utf-8", "surrogatepass"), item, mode)
        elif source.get("serviceAccountToken") is not None:
            ref = token_ref(self._pod, source["serviceAccountToken"])
            yield _file(source["serviceAccountToken"]["path"], self._sources.token(ref), {}, mode)

    def _object(self, kind: Kind, ref: Json, mode: int) -> Iterator[PodFile]:
        data = self._sources.file_data(kind, ref)
        for item in ref.get("items") or [{"key": key, "path": key} for key in data]:
            if item["key"] in data:
                yield _file(item["path"], data[item["key"]].data, item, mode)
            elif not ref.get("optional"):
                name = ref.get("name") or ref.get("secretName") or ""
                raise MissingInput(f"{kind} {name} of a volume references non-existent key: {item['key']}")

    def _own(self, item: Json) -> str:
        if item.get("fieldRef"):
            return downward.field_value(self._pod, item["fieldRef"]["fieldPath"], self._node)
        ref = item["resourceFieldRef"]
        return downward.resource_value(ref, named(self._pod, ref.get("containerName")) or {}, self._plan.options)


def _file(path: str, content: bytes, item: Json, mode: int) -> PodFile:
    own = item.get("mode")
    return PodFile(posixpath.normpath(path), content, mode if own is None else own)


def mount(volume: Json, declared: Json, sub_path: str | None, cluster: Cluster) -> Json:
    """One entry of a container's `mounts` in pod.json. `sub_path` is expanded already.

    A hostPath carries the allowed directory that it matched, because only the compute node can see where links lead.
    """
    read_only = bool(declared.get("readOnly")) or is_files(volume)
    entry: Json = {
        "source": root(volume),
        "absolute": False,
        "path": "/" + declared["mountPath"].lstrip("/"),  # a kubelet takes relative ones so
        "read_only": read_only,
        "sub_path": sub_path or None,
    }
    if in_memory(volume):
        limit = volume["emptyDir"].get("sizeLimit")
        entry |= {"medium": "Memory", "size": None if limit is None else quantity.ceil(quantity.parse(limit))}
    if volume.get("hostPath"):
        kind, source = volume["hostPath"].get("type") or "", posixpath.normpath(volume["hostPath"]["path"])
        roots = [h.path for h in _above(source, cluster) if read_only or not h.read_only]
        if not roots:  # the settings have changed since the pod was planned
            raise MissingInput(f"hostPath {source[:120]} may be mounted no more on cluster {cluster.name}")
        allowed = posixpath.normpath(max(roots, key=len))
        entry |= {"source": source, "absolute": True, "type": kind, "allowed": allowed}
    return entry


def host_path_problem(path: str, *, writes: bool, cluster: Cluster) -> str | None:
    """Why the admin's allow-list does not let this hostPath in; None when it does."""
    wanted = posixpath.normpath(path)
    if ".." in path.split("/") or not wanted.startswith("/") or control(path):
        return f"{path[:120]!r} is not an absolute path without .."
    above = _above(wanted, cluster)
    if not above:
        known = ", ".join(h.path for h in cluster.host_paths) or "none"
        return f"{path[:120]} is not below a directory that cluster {cluster.name} lets pods mount ({known})"
    if writes and all(h.read_only for h in above):
        return f"{path[:120]} may only be mounted read-only on cluster {cluster.name}; set readOnly: true on each mount"
    return None


def _above(path: str, cluster: Cluster) -> list[HostPath]:
    """The allowed directories that hold `path`, by its text alone."""
    return [h for h in cluster.host_paths if _below(path, posixpath.normpath(h.path))]


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
