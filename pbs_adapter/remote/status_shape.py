"""What status.json may say, and how much of it: known fields, each of one type and within bounds, and nothing else.

The pod's own processes could have written it, and the helper could be anybody's: so the helper reduces it before it is
reported, and the agent once more before it is believed. What is too long is cut, a number that is too large becomes the
largest; another type makes the whole status unbelievable. Pure.
"""

from typing import Any, Dict, Optional, Tuple

VERSION = 1
PHASES = ("Starting", "Initializing", "Running", "Stopping", "Ended")
STATES = ("waiting", "running", "terminated")
RESULTS = (None, "Succeeded", "Failed")
MAX_CONTAINERS = 256
MAX_WORDS = 32 * 1024  # characters of all messages; podrun itself keeps to a third of it
_MAX_NAME = 63
_MAX_INT = (1 << 31) - 1  # what Kubernetes' fields hold

#: Kinds of fields: ("text", longest), ("words", longest): out of MAX_WORDS, ("int", least, most), ("time",), ("flag",).
_REASON, _WORDS = ("text", 128), ("words", 4096)
_TIME, _COUNT, _FLAG = ("time",), ("int", 0, _MAX_INT), ("flag",)
#: Field → (kind, whether it may be null). A missing field is left to the reader's default.
_FIELDS = {
    "seq": (("int", 0, 1 << 53), False),
    "written_at": (_TIME, False),
    "started_at": (_TIME, True),
    "host": (("text", 255), False),
    "host_ip": (("text", 64), False),
    "job_id": (("text", 300), True),
    "reason": (_REASON, False),
    "message": (_WORDS, False),
    "runtime": (("text", 64), True),
    "isolation": (("text", 64), True),
}  # type: Dict[str, Tuple[Tuple[Any, ...], bool]]
_NUMA = {
    "cpus": (("text", 200), False),
    "mems": (("text", 200), False),
    "domains": (_COUNT, False),
    "of": (_COUNT, False),
    "confined": (_FLAG, False),
}  # type: Dict[str, Tuple[Tuple[Any, ...], bool]]
_RUN = {
    "reason": (_REASON, False),
    "message": (_WORDS, False),
    "started_at": (_TIME, True),
    "finished_at": (_TIME, True),
    "exit_code": (("int", 0, 255), True),
    "signal": (("int", 0, 255), True),
    "run": (_COUNT, False),
}  # type: Dict[str, Tuple[Tuple[Any, ...], bool]]
_CONTAINER = dict(_RUN, kind=(("text", 16), False), pid=(_COUNT, True), restart_count=(_COUNT, False))


class _Wrong(Exception):
    """Why it is not to be believed."""


def reduce_status(status: Any, uid: str) -> Tuple[Optional[Dict[str, Any]], str]:
    """(what is believed, "") or (None, why nothing is). The result is made anew: nothing of `status` lives in it."""
    try:
        return _Reader().status(status, uid), ""
    except _Wrong as wrong:
        return None, "status.json: {}".format(wrong)[:300]


class _Reader:
    """Keeps count of the words."""

    def __init__(self) -> None:
        self._words = MAX_WORDS

    def status(self, status: Any, uid: str) -> Dict[str, Any]:
        if not isinstance(status, dict):
            raise _Wrong("not an object")
        if type(status.get("version")) is not int or status["version"] != VERSION:
            raise _Wrong("version {} is not known".format(_shown(status.get("version"))))
        if status.get("uid") != uid:
            raise _Wrong("it belongs to another pod")
        phase, result = status.get("phase"), status.get("result")
        if phase not in PHASES or result not in RESULTS:
            raise _Wrong("phase {}, result {}".format(_shown(phase), _shown(result)))
        containers = status.get("containers")
        if not isinstance(containers, dict):
            raise _Wrong("not an object with containers")
        if len(containers) > MAX_CONTAINERS:
            raise _Wrong("it has {} containers".format(len(containers)))
        found = self._fields(status, _FIELDS)
        found.update(version=VERSION, uid=uid, phase=phase, result=result)
        if isinstance(status.get("numa"), dict):
            found["numa"] = self._fields(status["numa"], _NUMA)
        found["containers"] = {name: self._container(name, each) for name, each in containers.items()}
        if result == "Succeeded" and not _all_well(found["containers"]):
            raise _Wrong("a success that its containers do not show")
        return found

    def _container(self, name: Any, container: Any) -> Dict[str, Any]:
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or clean(name) != name:
            raise _Wrong("{} is no container's name".format(_shown(name)))
        if not isinstance(container, dict) or container.get("state") not in STATES:
            raise _Wrong("container {} has no state".format(_shown(name)))
        try:
            found = self._fields(container, _CONTAINER)
            last = container.get("last")
            if last is not None and not isinstance(last, dict):
                raise _Wrong("last is {}".format(_shown(last)))
            found.update(state=container["state"], last=None if last is None else self._fields(last, _RUN))
        except _Wrong as wrong:
            raise _Wrong("container {}: {}".format(_shown(name), wrong)) from wrong
        return found

    def _fields(self, tree: Dict[str, Any], fields: Dict[str, Tuple[Tuple[Any, ...], bool]]) -> Dict[str, Any]:
        found = {}
        for name, (kind, nullable) in fields.items():
            if name in tree:
                value = tree[name]
                found[name] = None if value is None and nullable else self._value(name, value, kind)
        return found

    def _value(self, name: str, value: Any, kind: Tuple[Any, ...]) -> Any:
        if kind[0] in ("text", "words") and isinstance(value, str):
            text = value[: kind[1] if kind[0] == "text" else min(kind[1], self._words)]
            self._words -= len(text) if kind[0] == "words" else 0
            return clean(text)
        if kind[0] == "int" and type(value) is int:
            return value if kind[1] <= value <= kind[2] else kind[2]
        if kind[0] == "time" and type(value) in (int, float) and value == value:  # not NaN
            return min(max(value, 0), 1e11)
        if kind[0] == "flag" and isinstance(value, bool):
            return value
        raise _Wrong("{} is {}".format(name, _shown(value)))


def clean(text: str) -> str:
    """The text without halves of surrogate pairs, which no encoding has."""
    return text.encode("utf-8", "replace").decode("utf-8") if any("\ud800" <= c <= "\udfff" for c in text) else text


def _all_well(containers: Dict[str, Dict[str, Any]]) -> bool:
    """podrun says Succeeded only when every app container has exited with 0."""
    apps = [container for container in containers.values() if container.get("kind", "app") == "app"]
    return bool(apps) and all(app["state"] == "terminated" and app.get("exit_code") == 0 for app in apps)


def _shown(value: Any) -> str:
    """For a message: of a container (which may be deep or endless) its type alone."""
    if isinstance(value, (dict, list)):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:80] if not isinstance(value, int) or abs(value) < 1 << 62 else "a number"
