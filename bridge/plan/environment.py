"""A container's variables, in the kubelet's order: envFrom first, then env, each seeing what came before it.

No variables of Services are given: a compute node has no route to cluster IPs, and a client that found them would hang
instead of saying that it is not configured. Those of the API server are given where the settings have an address that
compute nodes reach (`apiServer`).
"""

from __future__ import annotations

from bridge.api.settings import ApiServer
from bridge.plan import downward
from bridge.plan.model import Json, MissingInput, NodeFacts, Plan
from bridge.plan.sources import Sources
from bridge.plan.values import LONGEST, Value, bounded, cost, expand, plain

_VARIABLE = 32  # bytes that a variable costs besides name and value


def hostname(pod: Json) -> str:
    """The name that the container sees as its host's, as the kubelet makes it."""
    spec = pod["spec"]
    name: str = spec.get("hostnameOverride") or spec.get("hostname") or pod["metadata"]["name"][:63].rstrip("-.")
    return name


def variables(
    pod: Json, container: Json, plan: Plan, sources: Sources, node: NodeFacts, api: ApiServer | None = None
) -> dict[str, Value]:
    """Name to value, without HOSTNAME. api: where pods find the API server. Raises MissingInput, TooLarge too."""
    result: dict[str, Value] = {}

    def give(name: str, value: Value) -> None:
        what = f"variable {name[:80]} of container {container['name']}"
        if b"\0" in value.data:
            raise MissingInput(f"{what} has a NUL byte; mount it as a file")
        size = len(name.encode("utf-8", "surrogatepass"))
        bounded(size + 1 + len(value.data), LONGEST, what)
        sources.texts.spend(size + _VARIABLE + cost(value))
        result[name] = value

    if api is not None:  # first, so that the pod's own win, and may refer to them
        give("KUBERNETES_SERVICE_HOST", plain(api.host))
        give("KUBERNETES_SERVICE_PORT", plain(str(api.port)))
    for source in container.get("envFrom") or []:
        found, prefix = _from_object(source, sources), source.get("prefix") or ""
        for key in sorted(found):
            give(prefix + key, found[key])
    for variable in container.get("env") or []:
        name = variable["name"]
        if variable.get("value"):
            what = f"variable {name[:80]} of container {container['name']}"
            give(name, expand(plain(variable["value"]), result, what=what)[0])
        elif variable.get("valueFrom"):
            value = _from_field(pod, container, variable["valueFrom"], plan, sources, node)
            if value is not None:
                give(name, value)
        else:
            give(name, plain(""))
    return result


def _from_object(source: Json, sources: Sources) -> dict[str, Value]:
    if source.get("configMapRef") is not None:
        return sources.text_data("ConfigMap", source["configMapRef"])
    if source.get("secretRef") is not None:
        return sources.text_data("Secret", source["secretRef"])
    return {}


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
