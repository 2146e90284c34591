"""A container's variables, in the kubelet's order: envFrom first, then env, each seeing what came before it.

No variables of Services (KUBERNETES_SERVICE_HOST and the like) are given: a compute node has no route to cluster IPs,
and a client that found them would hang instead of saying that it is not configured.
"""

from __future__ import annotations

from bridge.plan import downward
from bridge.plan.model import Json, MissingInput, NodeFacts, Plan
from bridge.plan.sources import Sources, text_data
from bridge.plan.values import Value, expand, plain


def hostname(pod: Json) -> str:
    """The name that the container sees as its host's, as the kubelet makes it."""
    spec = pod["spec"]
    name: str = spec.get("hostnameOverride") or spec.get("hostname") or pod["metadata"]["name"][:63].rstrip("-.")
    return name


def variables(pod: Json, container: Json, plan: Plan, sources: Sources, node: NodeFacts) -> dict[str, Value]:
    """Name to value, without HOSTNAME. Raises MissingInput."""
    result: dict[str, Value] = {}
    for source in container.get("envFrom") or []:
        result.update(_from_object(source, sources))
    for variable in container.get("env") or []:
        if variable.get("value"):
            result[variable["name"]], _ = expand(plain(variable["value"]), result)
        elif variable.get("valueFrom"):
            value = _from_field(pod, container, variable["valueFrom"], plan, sources, node)
            if value is not None:
                result[variable["name"]] = value
        else:
            result[variable["name"]] = plain("")
    for name, value in result.items():
        if b"\0" in value.data:
            raise MissingInput(f"variable {name} of container {container['name']} has a NUL byte; mount it as a file")
    return result


def _from_object(source: Json, sources: Sources) -> dict[str, Value]:
    found: dict[str, Value] = {}
    prefix = source.get("prefix") or ""
    if source.get("configMapRef") is not None:
        raw = sources.find("ConfigMap", source["configMapRef"])
        found = {} if raw is None else text_data("ConfigMap", raw)
    elif source.get("secretRef") is not None:
        raw = sources.find("Secret", source["secretRef"])
        found = {} if raw is None else text_data("Secret", raw)
    return {prefix + key: found[key] for key in sorted(found)}


def _from_field(
    pod: Json, container: Json, origin: Json, plan: Plan, sources: Sources, node: NodeFacts
) -> Value | None:
    if origin.get("configMapKeyRef"):
        return sources.key("ConfigMap", origin["configMapKeyRef"])
    if origin.get("secretKeyRef"):
        return sources.key("Secret", origin["secretKeyRef"])
    if origin.get("fieldRef"):
        return plain(downward.field_value(pod, origin["fieldRef"]["fieldPath"], node))
    if origin.get("resourceFieldRef"):
        ref = origin["resourceFieldRef"]
        return plain(downward.resource_value(ref, named(pod, ref.get("containerName")) or container, plan.options))
    return None


def named(pod: Json, name: str | None) -> Json | None:
    """The container of that name, app or init."""
    spec = pod["spec"]
    every = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return next((c for c in every if c.get("name") == name), None)
