"""A container as podrun runs it: final argv, variables and mounts, with nothing left to interpret on the cluster."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bridge.api.settings import Cluster
from bridge.plan import resources
from bridge.plan.environment import hostname, variables
from bridge.plan.model import Json, MissingInput, NodeFacts, Plan
from bridge.plan.sources import Sources
from bridge.plan.values import Value, Vault, cost, expand, plain
from bridge.plan.volumes import mount, safe_path


@dataclass(frozen=True, slots=True)
class Runtime:
    """How an image is run: podrun's runtime, and for `apptainer` the SIF file or directory on the compute nodes."""

    name: str
    path: str | None = None

    @property
    def image_id(self) -> str:
        """What the container's status shows as imageID."""
        return self.path or self.name


def runtime(image: str, cluster: Cluster) -> Runtime | None:
    """The first matching rule's; for a path below one of `imagePaths`, the file there; None when nothing allows it."""
    for rule in cluster.images:
        if fnmatchcase(image, rule.image):
            return Runtime(rule.runtime, rule.path)
    allowed = any(image.startswith(folder.rstrip("/") + "/") for folder in cluster.image_paths)
    if allowed and posixpath.normpath(image) == image and "\0" not in image:
        return Runtime("apptainer", image)
    return None


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LONGEST_PATH = 4095  # bytes: Linux's PATH_MAX
_FIXED = ("UID", "EUID", "GID", "APPTAINER_NAME", "APPTAINER_CONTAINER", "APPTAINER_INSTANCE")


def variable_problem(name: str, how: Runtime | None) -> str | None:
    """Why a variable of this name cannot be given to the container; None: it can."""
    if "=" in name or "\0" in name:
        return "a variable's name cannot hold = or NUL"
    if how is not None and how.name == "apptainer" and (not _VARIABLE.fullmatch(name) or name in _FIXED):
        return f"apptainer cannot set a variable {name[:80]!r}: letters, digits and _ only, none of {', '.join(_FIXED)}"
    return None


def gpus(container: Json) -> str:
    """Whose GPUs the container asks for: nvidia, amd, or nothing."""
    declared = container.get("resources") or {}
    asked = [name for side in ("limits", "requests") for name, value in (declared.get(side) or {}).items() if value]
    return next((maker for maker in ("nvidia", "amd") for name in asked if name.startswith(f"{maker}.com/")), "")


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
        env = variables(self._pod, container, self._plan, self._sources, self._node, self._cluster.api_server)
        how = runtime(container["image"], self._cluster)
        if how is None:
            raise MissingInput(f"image {container['image'][:200]} of container {container['name']} is mapped no more")
        for name in env:
            if problem := variable_problem(name, how):
                raise MissingInput(f"container {container['name']}: {problem}")
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        argv = [self._argument(container, word, env) for word in words]
        if any(b"\0" in word.data for word in argv):
            raise MissingInput(f"an argument of container {container['name']} has a NUL byte")
        shown = {"HOSTNAME": plain(hostname(self._pod))} | env
        return {
            "name": container["name"],
            "kind": kind,
            "runtime": how.name,
            "image": container["image"],
            "image_id": how.image_id,
            "image_path": how.path,
            "image_command": not container.get("command"),
            "gpus": gpus(container),
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

    def _argument(self, container: Json, word: str, env: dict[str, Value]) -> Value:
        value, _ = expand(plain(word), env, what=f"an argument of container {container['name']}")
        self._sources.texts.spend(cost(value))
        return value

    def _mount(self, container: Json, declared: Json, env: dict[str, Value]) -> Json:
        sub_path = declared.get("subPath")
        if declared.get("subPathExpr"):
            sub_path = _expanded(container["name"], declared["subPathExpr"], env)
            self._sources.texts.spend(cost(plain(sub_path)))
        return mount(self._volumes[declared["name"]], declared, sub_path, self._cluster)


def _expanded(container: str, expression: str, env: dict[str, Value]) -> str:
    where = f"subPathExpr of container {container}"
    value, unknown = expand(plain(expression), env, _LONGEST_PATH, where)
    if unknown:
        raise MissingInput(f"{where}: missing value for {unknown[0]}")
    if value.secret:
        raise MissingInput(f"{where} would show a Secret in a path; use a variable that does not come from one")
    path = value.data.decode("utf-8", "surrogateescape")
    if not safe_path(path):
        raise MissingInput(f"{where} gives {path[:120]!r}, which is not a relative path without ..")
    return path
