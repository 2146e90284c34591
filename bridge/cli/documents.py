"""The pods in a file of Kubernetes objects: pods themselves, and the templates of what makes pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from bridge.api.names import TRANSFER
from bridge.plan.model import Json

_TEMPLATE = ("spec", "template")
# Where each kind keeps the template of its pods.
_KINDS: dict[str, tuple[str, ...]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"), _TEMPLATE
    ),
}
# What only the API server decides; they show where they stand in paths and names.
UNKNOWN_SUFFIX = "xxxxx"
UNKNOWN_UID = "POD-UID"


class Unreadable(Exception):
    """The text is not YAML, or holds something that is no Kubernetes object; the message has the line."""


def pods(text: str) -> tuple[list[Json], list[str]]:
    """The pods in one YAML or JSON text, and the names of objects that make none. Raises Unreadable."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise Unreadable(f"{where}not YAML: {getattr(error, 'problem', None) or error}") from None
    found: list[Json] = []
    others: list[str] = []
    for item in _objects(documents):
        pod = _pod(item)
        if pod is None:
            others.append(f"{item.get('kind') or 'object without kind'} {_metadata(item).get('name') or ''}".strip())
        else:
            found.append(pod)
    return found, others


def _objects(documents: list[Any]) -> Iterator[Json]:
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise Unreadable(f"{str(document)[:60]!r} is not a Kubernetes object")
        if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
            yield from _objects(document["items"])
        else:
            yield document


def _metadata(item: Json) -> Json:
    metadata = item.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _pod(item: Json) -> Json | None:
    """The object as the pod it is or makes, with a name, namespace and UID as the API server would give."""
    kind = str(item.get("kind", ""))
    if kind not in _KINDS:
        return None
    template: Any = item
    for key in _KINDS[kind]:
        template = template.get(key) if isinstance(template, dict) else None
    template = template if isinstance(template, dict) else {}
    own, inner = _metadata(item), _metadata(template)
    base = str(own.get("name") or str(own.get("generateName") or "pod-").rstrip("-"))
    named = kind == "Pod" and own.get("name")
    metadata = {
        **inner,
        "name": base if named else f"{base}-{UNKNOWN_SUFFIX}",
        "namespace": str(own.get("namespace") or inner.get("namespace") or "default"),
        "uid": str(inner.get("uid") or UNKNOWN_UID),
    }
    label = (own.get("labels") or {}).get(TRANSFER)
    if kind == "Job" and label and TRANSFER not in (inner.get("labels") or {}):  # as the admission policy does
        metadata["labels"] = {**(inner.get("labels") or {}), TRANSFER: label}
    if kind == "DaemonSet":
        metadata["ownerReferences"] = [{"kind": kind, "name": base}]
    return {"metadata": metadata, "spec": template.get("spec")}
