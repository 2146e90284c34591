"""Pods, clusters and inputs for the tests of plans."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

from bridge.api.settings import Cluster
from bridge.plan import InputRef, NodeFacts, freeze, plan
from pbs_adapter.models import JobRequest, VolumeFiles

Json = dict[str, Any]
UID = "6a0ff6f4-6a3e-4a86-9a51-0a4c1f9d8b0e"
INSTANCE = "0d8f4f9e-1111-2222-3333-444455556666"
NODE = NodeFacts("pbs-alpha", "192.0.2.7")


def cluster(**changes: Any) -> Cluster:
    """A cluster that runs busybox images; `changes` are fields as in bridge.yaml."""
    base: Json = {
        "name": "alpha",
        "accounts": [{"transport": {"type": "local"}, "sharedTrust": True}],
        "images": [{"image": "busybox:*"}],
    }
    return Cluster.model_validate(base | changes)


def container(name: str = "main", **fields: Any) -> Json:
    """One container that could run."""
    return {"name": name, "image": "busybox:1.36", "command": ["true"]} | fields


def pod(*, containers: list[Json] | None = None, metadata: Json | None = None, **spec: Any) -> Json:
    """A bound pod; other keywords are fields of its spec."""
    own = {"name": "hello", "namespace": "default", "uid": UID} | (metadata or {})
    return copy.deepcopy({"metadata": own, "spec": {"containers": containers or [container()]} | spec})


def annotated(**annotations: str) -> Json:
    """A pod with hpc-bridge.io annotations."""
    return pod(metadata={"annotations": {f"hpc-bridge.io/{key}": value for key, value in annotations.items()}})


def config_map(name: str = "cm", data: Json | None = None, binary: dict[str, bytes] | None = None) -> Json:
    """A ConfigMap as the API server gives it."""
    return {"metadata": {"name": name}, "data": data, "binaryData": _encoded(binary or {})}


def secret(name: str = "s", **data: bytes) -> Json:
    """A Secret as the API server gives it."""
    return {"metadata": {"name": name}, "data": _encoded(data)}


def _encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(content).decode() for key, content in data.items()}


def inputs(*objects: Json, token: str | None = None, refs: tuple[InputRef, ...] = ()) -> dict[InputRef, Json | None]:
    """Inputs by name: what has binaryData is a ConfigMap, the rest Secrets. `token` answers Tokens among `refs`."""
    found: dict[InputRef, Json | None] = {}
    for thing in objects:
        kind: Any = "ConfigMap" if "binaryData" in thing else "Secret"
        found[InputRef(kind, thing["metadata"]["name"])] = thing
    if token is not None:
        found |= {ref: {"status": {"token": token}} for ref in refs if ref.kind == "Token"}
    return found


def frozen(thing: Json, *objects: Json, token: str | None = None, **settings: Any) -> JobRequest:
    """Plan and freeze a pod that must not be refused."""
    where = cluster(**settings)
    planned = plan(thing, where)
    if planned.refusals:
        raise AssertionError(planned.message)
    given = inputs(*objects, token=token, refs=planned.inputs)
    return freeze(thing, planned, given, node=NODE, instance=INSTANCE, cluster=where, account="default")


def file(request: JobRequest, path: str) -> bytes:
    """The content of one file of the pod directory."""
    return next(f.content for f in request.files if f.path == path)


def document(request: JobRequest) -> Json:
    """pod.json."""
    parsed: Json = json.loads(file(request, "pod.json"))
    return parsed


def first(request: JobRequest) -> Json:
    """The first container in pod.json."""
    entry: Json = document(request)["containers"][0]
    return entry


def shown(request: JobRequest, value: Any) -> bytes:
    """The bytes that podrun makes of a VALUE."""
    if isinstance(value, str):
        return value.encode()
    values = json.loads(file(request, "secrets/values.json"))
    return base64.b64decode(values[value["secret"]])


def environment(request: JobRequest) -> dict[str, bytes]:
    """Variables of the first container as podrun sets them, without HOSTNAME."""
    pairs = {name: shown(request, value) for name, value in first(request)["env"]}
    del pairs["HOSTNAME"]
    return pairs


def volume(request: JobRequest, name: str) -> VolumeFiles:
    """The files of one volume."""
    return next(v for v in request.volumes if v.root.rpartition("/")[2] == name)


def contents(files: VolumeFiles) -> dict[str, bytes]:
    """Path to content."""
    return {f.path: f.content for f in files.files}


def reasons(thing: Json, **settings: Any) -> list[tuple[str, str]]:
    """Field and reason of each refusal."""
    return [(r.field, r.reason) for r in plan(thing, cluster(**settings)).refusals]
