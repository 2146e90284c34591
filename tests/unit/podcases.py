"""Builders of pods, observations and situations for the tables of decisions and statuses."""

from __future__ import annotations

import copy
from typing import Any

from bridge.kube.clock import rfc3339
from bridge.pods.record import Record, Situation
from pbs_adapter.models import Observation, PbsView, Seen

NOW = 1_796_030_800.0
UID = "6a0ff6f4-6a3e-4a86-9a51-0a4c1f9d8b0e"


def pod(*, phase: str = "Pending", deleting: float | None = None, grace: int = 30, **changes: Any) -> dict[str, Any]:
    """A bound pod of one container; `deleting` is the deletionTimestamp; `changes` replace keys of spec or status."""
    thing: dict[str, Any] = {
        "metadata": {"name": "hello", "namespace": "default", "uid": UID, "generation": 1, "annotations": {}},
        "spec": {"nodeName": "pbs-alpha", "restartPolicy": "Never", "containers": [{"name": "main", "image": "sh"}]},
        "status": {"phase": phase},
    }
    if deleting is not None:
        thing["metadata"] |= {"deletionTimestamp": rfc3339(deleting), "deletionGracePeriodSeconds": grace}
    for key, value in changes.items():
        part = thing[key.split("__")[0]]
        part[key.split("__")[1]] = copy.deepcopy(value)
    return thing


def container(state: str = "running", **fields: Any) -> dict[str, Any]:
    """One container's entry in status.json."""
    base: dict[str, Any] = {"kind": "app", "state": state, "restart_count": 0, "run": 0, "started_at": NOW - 50}
    if state == "terminated":
        base |= {"finished_at": NOW - 5, "exit_code": 0, "reason": "Completed"}
    return base | fields


def podrun(phase: str = "Running", **fields: Any) -> dict[str, Any]:
    """A status.json with one running container unless told otherwise."""
    base: dict[str, Any] = {"version": 1, "phase": phase, "result": None, "reason": "", "message": ""}
    return base | {"containers": {"main": container()}} | fields


def ended(result: str = "Succeeded", **fields: Any) -> dict[str, Any]:
    """A final status.json."""
    code = 0 if result == "Succeeded" else 3
    done = container("terminated", exit_code=code, reason="Completed" if code == 0 else "Error")
    return podrun("Ended", result=result, containers={"main": done}) | fields


def seen(letter: str = "", status: dict[str, Any] | None = None, **fields: Any) -> Observation:
    """An observation; `letter` is the PBS state, empty: PBS was not asked."""
    pbs = PbsView(Seen.PRESENT if letter else Seen.UNKNOWN, NOW, letter, queue="workq" if letter else "")
    return Observation(**{"uid": UID, "job_id": "12.alpha", "pbs": pbs, "status": status} | fields)


def absent(**fields: Any) -> PbsView:
    """PBS certainly has no such job."""
    return PbsView(Seen.ABSENT, NOW, **fields)


def situation(thing: dict[str, Any], observation: Observation | None = None, **fields: Any) -> Situation:
    """The situation at NOW; `record` is given as a dictionary of its fields."""
    record = Record(**fields.pop("record", {}))
    base: dict[str, Any] = {"sure": True, "reachable": True, "trouble": "", "host_ip": "127.0.0.1", "now": NOW}
    return Situation(pod=thing, record=record, seen=observation, **base | fields)
