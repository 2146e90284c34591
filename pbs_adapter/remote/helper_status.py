"""podrun's status.json, which the pod's own processes could have forged: believed only as far as its shape is right."""

import json
import math
from typing import Any, Dict, Optional, Tuple

from . import helper_files as files

LIMIT = 256 * 1024
PHASES = ("Starting", "Initializing", "Running", "Stopping", "Ended")
STATES = ("waiting", "running", "terminated")
_MAX_DEPTH = 8
_MAX_DIGITS = 18
_NUMBER = (int, float)
#: Field → types it may have. A missing field is left to the reader's default.
_FIELDS: Dict[str, Tuple[Any, ...]] = {
    "seq": (int,),
    "written_at": _NUMBER,
    "started_at": _NUMBER + (type(None),),
    "host": (str,),
    "host_ip": (str,),
    "job_id": (str, type(None)),
    "reason": (str,),
    "message": (str,),
}
_RUN_FIELDS: Dict[str, Tuple[Any, ...]] = {
    "reason": (str,),
    "message": (str,),
    "started_at": _NUMBER + (type(None),),
    "finished_at": _NUMBER + (type(None),),
    "exit_code": (int, type(None)),
    "signal": (int, type(None)),
    "run": (int,),
}
_CONTAINER_FIELDS: Dict[str, Tuple[Any, ...]] = dict(
    _RUN_FIELDS, kind=(str,), pid=(int, type(None)), restart_count=(int,), last=(dict, type(None))
)


def read_status(pod: int, uid: str) -> Tuple[Optional[Dict[str, Any]], str]:
    """(status, problem) of the pod directory open as `pod`: (None, "") when there is none yet."""
    try:
        text = files.read_bounded("status.json", pod, LIMIT)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, "status.json: {}".format(error.strerror)
    return parse_status(text, uid)


def parse_status(text: bytes, uid: str) -> Tuple[Optional[Dict[str, Any]], str]:
    """(status, "") or (None, what is wrong). Further fields are passed on."""
    try:
        status = json.loads(text.decode("utf-8"), parse_constant=_refuse, parse_int=_integer, parse_float=_float)
        json.dumps(status, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        return None, "status.json is not JSON: {}".format(str(error)[:200])
    problem = _problem(status, uid)
    return (None, "status.json: " + problem) if problem else (status, "")


def _problem(status: Any, uid: str) -> str:
    if not isinstance(status, dict) or not isinstance(status.get("containers"), dict):
        return "not an object with containers"
    if status.get("version") != 1 or isinstance(status["version"], bool):
        return "version {!r} is not known".format(status.get("version"))[:200]
    if status.get("uid") != uid:
        return "it belongs to another pod"
    if status.get("phase") not in PHASES or status.get("result") not in (None, "Succeeded", "Failed"):
        return "phase {!r}, result {!r}".format(status.get("phase"), status.get("result"))[:200]
    if _depth(status) > _MAX_DEPTH:
        return "too deeply nested"
    wrong = _wrong(status, _FIELDS)
    for name, container in status["containers"].items():
        wrong = wrong or _wrong_container(name, container)
    return wrong or _false_success(status)


def _false_success(status: Dict[str, Any]) -> str:
    """podrun says Succeeded only when every app container has exited with 0."""
    apps = [container for container in status["containers"].values() if container.get("kind", "app") == "app"]
    well = apps and all(app["state"] == "terminated" and app.get("exit_code") == 0 for app in apps)
    return "" if well or status.get("result") != "Succeeded" else "a success that its containers do not show"


def _wrong_container(name: str, container: Any) -> str:
    if not isinstance(container, dict) or container.get("state") not in STATES:
        return "container {!r} has no state".format(name[:80])
    wrong = _wrong(container, _CONTAINER_FIELDS) or _wrong(container.get("last") or {}, _RUN_FIELDS)
    return "container {!r}: {}".format(name[:80], wrong) if wrong else ""


def _wrong(tree: Dict[str, Any], fields: Dict[str, Tuple[Any, ...]]) -> str:
    for name, kinds in fields.items():
        if name in tree and (not isinstance(tree[name], kinds) or isinstance(tree[name], bool)):
            return "{} is {!r}".format(name, tree[name])[:200]
    return ""


def _depth(tree: Any) -> int:
    if isinstance(tree, dict):
        return 1 + max([_depth(value) for value in tree.values()] or [0])
    if isinstance(tree, list):
        return 1 + max([_depth(value) for value in tree] or [0])
    return 0


def _refuse(name: str) -> None:
    raise ValueError("{} is not JSON".format(name))


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number of {} digits".format(len(text)))
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number that is too large")
    return number
