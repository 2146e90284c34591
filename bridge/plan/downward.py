"""What a pod may learn about itself: fieldRef and resourceFieldRef, in variables and in files.

The forms are the kubelet's (pkg/fieldpath, pkg/api/v1/resource): labels as sorted `key="value"` lines with Go's
quoting, resources divided by the divisor and rounded up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bridge.plan import quantity
from bridge.plan.model import Json, NodeFacts
from bridge.plan.resources import JOB_OVERHEAD
from pbs_adapter.models import JobOptions

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_SCALARS = ("metadata.name", "metadata.namespace", "metadata.uid")
_ENV_ONLY = ("spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs")
_FILE_ONLY = ("metadata.labels", "metadata.annotations")
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPES |= {"\\": "\\\\", '"': '\\"'}
_ODD = re.compile(r"[^ !#-\[\]-~]")


def field_problem(path: str, *, env: bool) -> str | None:
    """Why this fieldPath cannot be given; None when it can."""
    if path in _SCALARS or _SUBSCRIPT.fullmatch(path) or path in (_ENV_ONLY if env else _FILE_ONLY):
        return None
    if path in ("status.podIP", "status.podIPs"):
        return f"{path} is not known before the job runs; read the compute node's address inside the container"
    return f"{path[:80]} is not a field that pods can refer to here"


def resource_problem(ref: Json, container: Json | None) -> str | None:
    """Why this resourceFieldRef cannot be given; None when it can."""
    resource = str(ref.get("resource", ""))
    side, _, name = resource.partition(".")
    if container is None:
        return f"there is no container {str(ref.get('containerName', ''))[:80]!r}"
    if side not in ("limits", "requests") or name not in ("cpu", "memory", "ephemeral-storage"):
        return f"{resource[:80]} is not one of limits or requests of cpu, memory and ephemeral-storage"
    if side == "limits" and name == "ephemeral-storage" and _declared(container, side, name) is None:
        return "the container sets no limit on ephemeral-storage, and PBS gives none"
    try:
        return None if quantity.parse(ref.get("divisor") or 1) >= 0 else "the divisor is negative"
    except ValueError as error:
        return f"divisor: {error}"


def field_value(pod: Json, path: str, node: NodeFacts) -> str:
    """The text of one field. The path has passed `field_problem`."""
    metadata, spec = pod["metadata"], pod["spec"]
    match = _SUBSCRIPT.fullmatch(path)
    if match:
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in _FILE_ONLY:
        return _lines(metadata.get(path.partition(".")[2]) or {})
    scalars: dict[str, str] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": node.name,
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.hostIP": node.host_ip,
        "status.hostIPs": node.host_ip,
    }
    return scalars[path]


def resource_value(ref: Json, container: Json, options: JobOptions) -> str:
    """The number for one resourceFieldRef, rounded up.

    A limit that the container does not set is what PBS gives the job, not the virtual node's allocatable: the node
    stands for a whole cluster, and a program that sizes itself by it would be killed.
    """
    side, _, name = ref["resource"].partition(".")
    value = _declared(container, side, name)
    if value is None:
        job = {"cpu": options.ncpus, "memory": options.mem_bytes - JOB_OVERHEAD}
        value = job.get(name, 0) if side == "limits" else 0
    divisor = quantity.parse(ref.get("divisor") or 1) or 1
    return str(quantity.ceil(quantity.parse(value) / divisor))


def _declared(container: Json, side: str, name: str) -> object:
    declared = container.get("resources") or {}
    value = (declared.get(side) or {}).get(name)
    # The API server copies limits to missing requests; a pod that did not pass it is read the same way.
    return value if value is not None or side == "limits" else (declared.get("limits") or {}).get(name)


def _lines(items: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={_quoted(str(items[key]))}" for key in sorted(items))


def _quoted(text: str) -> str:
    """Go's %q: printable characters stay, the rest are escaped."""
    return '"' + _ODD.sub(lambda match: _escaped(match[0]), text) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
