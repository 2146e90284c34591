"""A container as podrun runs it: final argv, variables and mounts, with nothing left to interpret on the cluster."""

from __future__ import annotations

from fnmatch import fnmatchcase

from bridge.api.settings import Cluster
from bridge.plan import resources
from bridge.plan.environment import hostname, variables
from bridge.plan.model import Json, MissingInput, NodeFacts, Plan
from bridge.plan.sources import Sources
from bridge.plan.values import Value, Vault, expand, plain
from bridge.plan.volumes import mount, safe_path


def runtime(image: str, cluster: Cluster) -> str | None:
    """The runtime that the first matching rule gives an image; None when no rule matches."""
    return next((rule.runtime for rule in cluster.images if fnmatchcase(image, rule.image)), None)


class Freezer:
    """Turns one pod's containers into entries of pod.json, keeping secret values in one vault."""

    def __init__(self, pod: Json, plan: Plan, sources: Sources, node: NodeFacts, cluster: Cluster) -> None:
        self.vault = Vault()
        self._pod, self._plan, self._sources, self._node, self._cluster = pod, plan, sources, node, cluster
        self._volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}

    def all(self) -> list[Json]:
        """Init containers first, each list in the spec's order. Raises MissingInput."""
        spec = self._pod["spec"]
        init = [self._one(container, "init") for container in spec.get("initContainers") or []]
        return init + [self._one(container, "app") for container in spec["containers"]]

    def _one(self, container: Json, kind: str) -> Json:
        env = variables(self._pod, container, self._plan, self._sources, self._node)
        argv = [expand(plain(word), env)[0] for word in [*container["command"], *(container.get("args") or [])]]
        if any(b"\0" in word.data for word in argv):
            raise MissingInput(f"an argument of container {container['name']} has a NUL byte")
        shown = {"HOSTNAME": plain(hostname(self._pod))} | env
        return {
            "name": container["name"],
            "kind": kind,
            "runtime": runtime(container["image"], self._cluster),
            "image": container["image"],
            "image_id": "host",
            "argv": [self.vault.put(word) for word in argv],
            "env": [[name, self.vault.put(value)] for name, value in shown.items()],
            "cwd": container.get("workingDir") or None,
            "mounts": [self._mount(container, declared, env) for declared in container.get("volumeMounts") or []],
            "termination_message_path": container.get("terminationMessagePath") or "/dev/termination-log",
            "termination_message_policy": container.get("terminationMessagePolicy") or "File",
            "read_only_root": bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem")),
            "resources": {
                "cpu_millis": resources.cpu_millis(container) or self._plan.options.ncpus * 1000,
                "memory": resources.memory(container, self._cluster),
            },
        }

    def _mount(self, container: Json, declared: Json, env: dict[str, Value]) -> Json:
        sub_path = declared.get("subPath")
        if declared.get("subPathExpr"):
            sub_path = _expanded(container["name"], declared["subPathExpr"], env)
        return mount(self._volumes[declared["name"]], declared, sub_path)


def _expanded(container: str, expression: str, env: dict[str, Value]) -> str:
    value, unknown = expand(plain(expression), env)
    where = f"subPathExpr of container {container}"
    if unknown:
        raise MissingInput(f"{where}: missing value for {unknown[0]}")
    if value.secret:
        raise MissingInput(f"{where} would show a Secret in a path; use a variable that does not come from one")
    path = value.data.decode("utf-8", "surrogateescape")
    if not safe_path(path):
        raise MissingInput(f"{where} gives {path[:120]!r}, which is not a relative path without ..")
    return path
