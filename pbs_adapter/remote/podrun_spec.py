"""What podrun is asked to run: `pod.json` read and checked, so that the rest of podrun works with typed values only.

pod.json is written by the bridge (version 1, docs/explanation/on-the-cluster.md); values that derive from Secrets, and
values that are not UTF-8, are looked up in `secrets/values.json` by key. Every value becomes bytes here, exactly as the
container will get it. A mistake raises `SpecError` with the path of the field; nothing has been started by then.

The bridge refuses what is dangerous before it submits, and so does this: no text but arguments, values of variables and
setup lines may hold a control character, since options of runtimes are joined by NUL and newline.
"""

import base64
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import podrun_files as files

VERSION = 1
LARGEST = 32 << 20  # bytes of pod.json or secrets/values.json; the bridge's own bounds are a few MiB
MOST_CONTAINERS = 256  # so that their states fit into status.json
MINIMUM_GRACE = 2.0  # seconds between SIGTERM and SIGKILL, whatever is asked; a kubelet's minimum too
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
DEFAULT_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
ISOLATIONS = ("required", "optional")
HOST_TYPES = (
    "",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
RESTART_POLICIES = ("Never", "OnFailure", "Always")


class SpecError(Exception):
    """pod.json or its secrets cannot be used; the text names the field."""


class Mount(NamedTuple):
    """One bind: `source` is relative to the pod directory, or a path of the cluster when `absolute` (hostPath).

    `allowed`: the directory of the settings that a hostPath must stay in. `in_memory`: an emptyDir of medium Memory.
    """

    source: str
    absolute: bool
    path: str
    read_only: bool
    sub_path: Optional[str]
    host_type: str
    allowed: str = ""
    in_memory: bool = False


class Container(NamedTuple):
    """One container with its final argv and environment (later entries win). `cwd` None: the runtime's default."""

    name: str
    kind: str  # init or app
    runtime: str
    argv: Tuple[bytes, ...]
    env: Tuple[Tuple[bytes, bytes], ...]
    cwd: Optional[str]
    mounts: Tuple[Mount, ...]
    message_path: str
    message_policy: str
    read_only_root: bool
    image_path: Optional[str] = None  # runtime apptainer: SIF file or directory
    image_command: bool = False  # argv are arguments of the image's own command
    gpus: str = ""  # nvidia, amd: the container asks for such


class Backoff(NamedTuple):
    """CrashLoopBackOff: nothing before the first restart, then `base`, doubling to `max`; forgotten after `reset`."""

    base: float = 10.0
    max: float = 300.0
    reset: float = 600.0


class Pod(NamedTuple):
    """The whole pod; durations in seconds, containers in order of the spec, init containers first."""

    uid: str
    namespace: str
    name: str
    hostname: str
    restart_policy: str
    grace: float
    deadline: Optional[float]
    walltime: Optional[float]
    end_margin: float
    setup: Tuple[str, ...]
    backoff: Backoff
    containers: Tuple[Container, ...]
    numa_required: bool = False  # run within one NUMA domain or not at all
    numa_by_vnodes: bool = False  # PBS keeps the job on one vnode, and vnodes are domains
    wall_required: bool = True  # a container runs behind a wall or not at all
    kill_delay: Optional[float] = None  # seconds between PBS's SIGTERM and SIGKILL, where the queue says it


class _Fields:
    """Typed access to one JSON object; `where` is its path for messages."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise SpecError("%s: an object is needed" % where)
        self.value, self.where = value, where

    def get(self, key: str, kind: Any, default: Any = None, required: bool = False) -> Any:
        value = self.value.get(key)
        if value is None:
            if required:
                raise SpecError("%s.%s is missing" % (self.where, key))
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise SpecError("%s.%s has a wrong type: %s" % (self.where, key, type(value).__name__))
        if isinstance(value, str) and _CONTROL.search(value):
            raise SpecError("%s.%s has a control character in it" % (self.where, key))
        return value

    def text(self, key: str, default: Optional[str] = None) -> str:
        return str(self.get(key, str, default, required=default is None))

    def number(self, key: str, default: Optional[float]) -> Optional[float]:
        value = self.get(key, (int, float), default)
        return None if value is None else float(value)

    def seconds(self, key: str, default: float) -> float:
        return max(0.0, self.number(key, default) or 0.0)

    def items(self, key: str) -> List[Any]:
        return list(self.get(key, list, []))


def load(directory: str) -> Pod:
    """Read `directory`/pod.json and the secret values it names."""
    fields = _Fields(_read_json(directory, "pod.json"), "pod.json")
    if fields.get("version", int, required=True) != VERSION:
        raise SpecError("pod.json has version %s, this podrun knows %d" % (fields.value["version"], VERSION))
    return parse(fields.value, _secrets(directory))


def parse(document: Dict[str, Any], secrets: Dict[str, bytes]) -> Pod:
    """Turn the decoded pod.json into a `Pod`."""
    fields = _Fields(document, "pod.json")
    policy = fields.text("restart_policy")
    if policy not in RESTART_POLICIES:
        raise SpecError("pod.json.restart_policy is none of %s" % ", ".join(RESTART_POLICIES))
    isolation = fields.text("isolation", "required")
    if isolation not in ISOLATIONS:
        raise SpecError("pod.json.isolation is none of %s" % ", ".join(ISOLATIONS))
    name = fields.text("name")
    backoff = _Fields(fields.get("crash_backoff", dict, {}), "pod.json.crash_backoff")
    containers = tuple(
        _container(_Fields(item, "pod.json.containers[%d]" % index), secrets)
        for index, item in enumerate(fields.items("containers"))
    )
    numa = _Fields(fields.get("numa", dict, {}), "pod.json.numa")
    names = [container.name for container in containers]
    if not any(container.kind == "app" for container in containers) or len(set(names)) != len(names):
        raise SpecError("pod.json.containers: at least one app container and unique names are needed")
    if len(containers) > MOST_CONTAINERS:
        raise SpecError("pod.json.containers: more than %d" % MOST_CONTAINERS)
    return Pod(
        uid=fields.text("uid"),
        namespace=fields.text("namespace", "default"),
        name=name,
        hostname=fields.text("hostname", name),
        restart_policy=policy,
        grace=max(MINIMUM_GRACE, fields.seconds("grace", 30.0)),
        deadline=fields.number("active_deadline", None),
        walltime=fields.number("walltime", None),
        end_margin=fields.seconds("end_margin", 20.0),
        setup=tuple(_line(line) for line in fields.items("setup")),
        backoff=Backoff(*(backoff.seconds(key, default) for key, default in zip(Backoff._fields, Backoff()))),
        containers=containers,
        numa_required=numa.get("require", bool, False),
        numa_by_vnodes=numa.get("vnodes", bool, False),
        wall_required=isolation == "required",
        kill_delay=fields.number("kill_delay", None),
    )


def _line(line: Any) -> str:
    if not isinstance(line, str) or "\0" in line:
        raise SpecError("pod.json.setup: a line is no text, or has a NUL")
    return line


def _container(fields: _Fields, secrets: Dict[str, bytes]) -> Container:
    name, kind = fields.text("name"), fields.text("kind", "app")
    if not name or "/" in name or name.startswith(".") or kind not in ("init", "app"):
        raise SpecError("%s: bad name or kind" % fields.where)
    argv = tuple(_value(item, secrets, fields.where + ".argv") for item in fields.items("argv"))
    image_path, image_command = fields.get("image_path", str), fields.get("image_command", bool, False)
    if image_path is not None and not image_path.startswith("/"):
        raise SpecError("%s.image_path is not absolute" % fields.where)
    if not argv and not image_command:
        raise SpecError("%s.argv is empty" % fields.where)
    cwd = fields.get("cwd", str)
    if cwd is not None and not cwd.startswith("/"):
        raise SpecError("%s.cwd is not absolute" % fields.where)
    return Container(
        name=name,
        kind=kind,
        runtime=fields.text("runtime", "host"),
        argv=argv,
        env=tuple(_variable(item, secrets, fields.where + ".env") for item in fields.items("env")),
        cwd=cwd,
        mounts=tuple(_mount(_Fields(item, fields.where + ".mounts")) for item in fields.items("mounts")),
        message_path=fields.text("termination_message_path", ""),
        message_policy=fields.text("termination_message_policy", "File"),
        read_only_root=fields.get("read_only_root", bool, False),
        image_path=image_path,
        image_command=image_command,
        gpus=fields.text("gpus", ""),
    )


def _mount(fields: _Fields) -> Mount:
    source, path = fields.text("source"), os.path.normpath(fields.text("path"))
    absolute = fields.get("absolute", bool, False)
    sub_path = fields.get("sub_path", str) or None
    if not path.startswith("/") or path == "/":
        raise SpecError("%s.path must be absolute and not /" % fields.where)
    odd = set(source.strip("/").split("/")) & {"..", "."} or ("" in source.split("/") and not absolute)
    if absolute != source.startswith("/") or odd:
        raise SpecError("%s.source: %r does not fit absolute=%s" % (fields.where, source, absolute))
    if sub_path and (sub_path.startswith("/") or ".." in sub_path.split("/")):
        raise SpecError("%s.sub_path must be relative and without .." % fields.where)
    host_type, allowed = fields.text("type", ""), os.path.normpath(fields.text("allowed", "/") if absolute else "/")
    if absolute and not (fields.value.get("allowed") and (source + "/").startswith(allowed.rstrip("/") + "/")):
        raise SpecError("%s.allowed: %r does not hold %r" % (fields.where, allowed, source))
    if host_type not in HOST_TYPES:
        raise SpecError("%s.type is none of %s" % (fields.where, ", ".join(HOST_TYPES[1:])))
    in_memory = fields.text("medium", "") == "Memory" and not absolute
    return Mount(
        source,
        absolute,
        path.replace("//", "/"),
        fields.get("read_only", bool, False),
        sub_path,
        host_type,
        allowed if absolute else "",
        in_memory,
    )


def _variable(item: Any, secrets: Dict[str, bytes], where: str) -> Tuple[bytes, bytes]:
    if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
        raise SpecError("%s: pairs of name and value are needed" % where)
    name = item[0].encode("utf-8")
    if not name or b"=" in name or b"\0" in name:
        raise SpecError("%s: %r cannot be the name of a variable" % (where, item[0]))
    return name, _value(item[1], secrets, where)


def _value(item: Any, secrets: Dict[str, bytes], where: str) -> bytes:
    if isinstance(item, str):
        value = item.encode("utf-8", "surrogateescape")
    elif isinstance(item, dict) and isinstance(item.get("secret"), str):
        if item["secret"] not in secrets:
            raise SpecError("%s: secrets/values.json has no key %r" % (where, item["secret"]))
        value = secrets[item["secret"]]
    else:
        raise SpecError("%s: a string or a secret is needed" % where)
    if b"\0" in value:
        raise SpecError("%s: a value with a NUL byte cannot be passed to a program" % where)
    return value


def _secrets(directory: str) -> Dict[str, bytes]:
    name = "secrets/values.json"
    if not os.path.lexists(os.path.join(directory, name)):
        return {}
    document = _Fields(_read_json(directory, name), name)
    try:
        return {key: base64.b64decode(document.text(key), validate=True) for key in document.value}
    except ValueError:
        raise SpecError("secrets/values.json: a value is not base64") from None


def _read_json(directory: str, name: str) -> Any:
    try:
        return json.loads(files.read_bounded(directory, name, LARGEST).decode("utf-8"))
    except OSError as error:
        raise SpecError("%s cannot be read: %s" % (os.path.basename(name), error.strerror)) from error
    except (ValueError, RecursionError) as error:
        raise SpecError("%s is not JSON: %s" % (os.path.basename(name), error)) from error
