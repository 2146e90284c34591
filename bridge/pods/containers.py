"""containerStatuses from podrun's view of each container. Pure; podrun's data is untrusted and checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.api import reasons
from bridge.kube.clock import rfc3339
from pbs_adapter.models import Json

_MESSAGE_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why containers that have not started wait."""

    reason: str
    message: str = ""


_MOST = {"exit_code": 255, "signal": 64, "run": 2**31 - 1, "restart_count": 2**31 - 1}  # the API's are of 32 bits


def _number(seen: Json, key: str, default: int = 0) -> int:
    """A number of podrun's, within what it can be."""
    value = seen.get(key)
    return max(0, min(value, _MOST[key])) if isinstance(value, int) and not isinstance(value, bool) else default


def _time(value: object, fallback: float) -> str:
    usable = isinstance(value, (int, float)) and 0 < value < 4e9
    return rfc3339(value if usable else fallback)  # type: ignore[arg-type]  # checked by `usable`


def _text(value: object, limit: int = _MESSAGE_LIMIT) -> str:
    return value[:limit] if isinstance(value, str) else ""


def terminated(seen: Json, container_id: str, fallback: float) -> Json:
    """The `terminated` state of one run; exit codes are kept within 0…255 as the API shows them."""
    code = _number(seen, "exit_code", 137)
    state: Json = {
        "exitCode": code,
        "reason": _text(seen.get("reason"), 128) or ("Completed" if code == 0 else "Error"),
        "startedAt": _time(seen.get("started_at"), fallback),
        "finishedAt": _time(seen.get("finished_at"), fallback),
        "containerID": container_id,
    }
    if message := _text(seen.get("message")):
        state["message"] = message
    if signal := _number(seen, "signal"):
        state["signal"] = signal
    return state


def lost(container_id: str, fallback: float) -> Json:
    """The state of a container that ran and whose end nobody saw."""
    return {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": None,
        "finishedAt": rfc3339(fallback),
        "containerID": container_id,
    }


def never_ran(status: Json, now: float) -> Json:
    """`status` in a pod that has ended: nothing waits any more. What waits to run again has the last run's end."""
    if "waiting" not in status["state"]:
        return status
    last = status["lastState"].get("terminated") or {k: v for k, v in lost("", now).items() if v}
    return status | {"state": {"terminated": last}, "lastState": {}}


_WALLS = ("apptainer", "bubblewrap", "none")


def isolation(seen: Json | None) -> str:
    """What stands between the pod's containers and the account, by podrun's word; "" while nothing is known.

    >>> isolation({"isolation": "apptainer,bubblewrap"}), isolation({"isolation": "a wall"}), isolation(None)
    ('apptainer+bubblewrap', '', '')
    """
    told = _text((seen or {}).get("isolation"), 64).split(",")
    return "+".join(told) if all(each in _WALLS for each in told) else ""


def container_status(
    spec: Json,
    seen: Json | None,
    waiting: Waiting,
    *,
    job: str,
    ended: bool,
    now: float,
    init: bool = False,
    wall: str = "",
) -> Json:
    """Status of one container. An init container is ready once it has ended with 0, as a kubelet tells it.

    `spec`: the name, the image that it was made of, and the imageID to show once it has run.
    `seen` is its entry in status.json; `waiting` applies while it has none; `ended`: the job is gone, so that a
    container last seen running is lost. `wall`: what `isolation` says of the job, shown in the containers' ids.
    """
    name, image = spec["name"], spec["image"]
    image_id = spec.get("imageID") or f"pbs://{image}"
    status: Json = {"name": name, "image": image, "imageID": "", "ready": False, "started": False, "restartCount": 0}
    if not isinstance(seen, dict):
        return status | {"state": {"waiting": _waiting(waiting)}, "lastState": {}}
    run = _number(seen, "run")
    made = f"pbs+{wall}" if wall else "pbs"
    container_id = f"{made}://{job}/{name}/{run}"
    status |= {"restartCount": _number(seen, "restart_count"), "lastState": {}}
    last = seen.get("last")
    if isinstance(last, dict):
        last_id = f"{made}://{job}/{name}/{_number(last, 'run')}"
        status["lastState"] = {"terminated": terminated(last, last_id, now)}
        status |= {"containerID": last_id, "imageID": image_id}
    state = seen.get("state")
    if state == "terminated":
        status["state"] = {"terminated": terminated(seen, container_id, now)}
        status["ready"] = init and status["state"]["terminated"]["exitCode"] == 0
    elif state == "running" and ended:
        status["state"] = {"terminated": lost(container_id, now)}
    elif state == "running":
        status["state"] = {"running": {"startedAt": _time(seen.get("started_at"), now)}}
        status |= {"ready": not init, "started": True}
    else:
        own = Waiting(_text(seen.get("reason"), 128), _text(seen.get("message"))) if seen.get("reason") else waiting
        return status | {"state": {"waiting": _waiting(own)}}
    return status | {"containerID": container_id, "imageID": image_id}


def _waiting(waiting: Waiting) -> Json:
    state: Json = {"reason": waiting.reason or reasons.PENDING_SUBMIT}
    if waiting.message:
        state["message"] = waiting.message
    return state


def keep_monotonic(new: Json, old: Json | None) -> Json:
    """Never let a restart count go down, nor a terminated state of the same run go back, against what was written."""
    if old is None:
        return new
    same = new.get("containerID") == old.get("containerID") and new["restartCount"] <= old.get("restartCount", 0)
    if same and "terminated" in old.get("state", {}) and "running" in new["state"]:
        new = new | {key: old[key] for key in ("state", "ready", "started") if key in old}
    count = max(new["restartCount"], old.get("restartCount") or 0)
    if count == new["restartCount"]:
        return new
    kept: dict[str, Any] = new | {"restartCount": count}
    return kept
