"""Every field of PodSpec: honoured, refused with a message, or ignored with a reason. Nothing is silently dropped.

A verdict covers everything below its path; deeper rows make exceptions. A field without a row, which a newer Kubernetes
may bring, is refused: better no job than one that does something else. `[]` marks lists, `{}` maps with free keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from bridge.plan.container_fields import CONTAINER
from bridge.plan.model import Json, Refusal
from bridge.plan.pod_fields import POD
from bridge.plan.verdicts import Honoured, Ignored, Refused, Verdict
from bridge.plan.volume_fields import VOLUME

_SHAPE = "unit/test_plan_containers.py::test_order_and_kinds"

TABLE: dict[str, Verdict] = {
    **POD,
    "containers[]": Honoured(_SHAPE, dict, ("name", "image")),
    "initContainers[]": Honoured(_SHAPE, dict, ("name", "image")),
    "volumes[]": Honoured("unit/test_plan_mounts.py::test_paths", dict, ("name",)),
    **{f"containers[].{path}": verdict for path, verdict in CONTAINER.items()},
    **{f"initContainers[].{path}": verdict for path, verdict in CONTAINER.items()},
    **{f"volumes[].{path}": verdict for path, verdict in VOLUME.items()},
}
# Paths that have rows below them: looked into whatever their own row says.
_PARENTS = {path[:at] for path in TABLE for at, char in enumerate(path) if char == "."}
_KINDS = {str: "text (quote it)", int: "a whole number", bool: "true or false", dict: "a mapping", list: "a list"}


def verdict(path: str) -> Verdict | None:
    """The row that covers a schema path such as `containers[].env[].name`: its own, or that of the nearest parent
    which settles everything below it. None: no row, so a pod that uses the field is refused."""
    if path in TABLE:
        return TABLE[path]
    parent = path.rpartition(".")[0]
    while parent:
        row = TABLE.get(parent)
        if row is not None:
            return None if isinstance(row, Honoured) else row
        parent = parent.rpartition(".")[0]
    return None


def is_group(path: str) -> bool:
    """Whether a path has no row of its own because each field below it has one."""
    return path in _PARENTS and path not in TABLE


def examine(spec: Json) -> tuple[list[Refusal], list[Refusal]]:
    """What a spec asks for and cannot have, in the spec's order; and what in it cannot even be read (a wrong type, a
    missing name), which the API server never lets through but a file given to `render` may hold."""
    refused: list[Refusal] = []
    malformed: list[Refusal] = []
    for readable, refusal in _object(spec, "", "spec"):
        (refused if readable else malformed).append(refusal)
    return refused, malformed


_Found = Iterator[tuple[bool, Refusal]]


def _object(value: Json, pattern: str, path: str) -> _Found:
    for key, child in value.items():
        stem = f"{pattern}.{key}" if pattern else str(key)
        place = f"{path}.{str(key)[:80]}"
        known = next((stem + s for s in ("", "[]", "{}") if stem + s in TABLE or stem + s in _PARENTS), None)
        if child is None:
            continue
        if known is not None:
            yield from _settle(child, known, place)
        elif not isinstance(TABLE.get(pattern), Ignored):
            message = "hpc-bridge does not know this field, so it cannot promise what it asks; leave it out"
            yield True, Refusal(place, message)


def _settle(value: object, pattern: str, path: str) -> _Found:
    row = TABLE.get(pattern)
    if isinstance(row, Refused):
        # Empty is what the API server leaves where nothing was set.
        if value not in row.accepts and value not in ({}, [], ""):
            yield True, Refusal(path, row.message, row.reason)
    elif isinstance(row, Ignored) and pattern not in _PARENTS:
        return
    elif pattern.endswith("[]"):
        if not isinstance(value, list):
            yield False, Refusal(path, "must be a list")
        else:
            for index, item in enumerate(value):
                yield from _element(item, pattern, f"{path}[{index}]")
    elif pattern.endswith("{}"):
        if not isinstance(value, dict):
            yield False, Refusal(path, "must be a mapping")
    else:
        yield from _element(value, pattern, path)


def _element(value: object, pattern: str, path: str) -> _Found:
    row = TABLE.get(pattern)
    kind = row.kind if isinstance(row, Honoured) else dict
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        yield False, Refusal(path, f"must be {_KINDS.get(kind, '') if isinstance(kind, type) else 'a quantity'}")
    elif isinstance(value, dict):
        for key in row.required if isinstance(row, Honoured) else ():
            if not value.get(key):
                yield False, Refusal(f"{path}.{key}", "is missing")
        yield from _object(value, pattern, path)
