"""The pod status that the API server should show. Pure: the same inputs always give the same status.

A literal table maps the stage of the job to the phase; everything else follows from podrun's container states, as a
kubelet derives it (kubernetes/pkg/kubelet/status/generate.go).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from bridge.api import reasons
from bridge.kube.clock import parse_rfc3339, rfc3339
from bridge.pods import live
from bridge.pods.conditions import condition, merge, own_conditions
from bridge.pods.containers import Waiting, container_status, isolation, keep_monotonic, never_ran
from bridge.pods.outcome import Outcome, Stage
from bridge.pods.record import Failure, Made, Situation
from pbs_adapter.models import Json


def status(
    s: Situation, *, result: Outcome | None = None, hold: Waiting | None = None, failure: Failure | None = None
) -> Json:
    """Return the fields of PodStatus that the node owns.

    `result` overrides what the observation means; `hold` says why nothing has been submitted; `failure` is a final
    decision of the bridge. A key with None is to be removed from the API server's status.
    """
    if failure is not None and failure.rejected:
        return _rejected(s, failure)
    result = s.result if result is None else result
    ended = failure is not None or result.stage is Stage.ENDED
    inits, apps = _containers(s, _waiting(result, hold, failure, ended), ended)
    initialized = all(c["state"].get("terminated", {}).get("exitCode") == 0 for c in inits)
    phase = "Failed" if failure is not None else _phase(apps, initialized, result)
    started = any("waiting" not in c["state"] or c["lastState"] for c in inits + apps)
    if phase == "Failed" and (initialized or not started):  # else the init container that failed says why
        inits, apps = ([never_ran(c, s.now) for c in each] for each in (inits, apps))
    refused = failure is not None and not s.began  # as a kubelet's: its containers never came to be
    blocked = result.reason if result.stage is Stage.SUSPENDED else ""
    wanted = own_conditions(
        s.pod, phase, inits, apps, network=started and not ended, initialized=initialized, blocked=blocked
    )
    cause = failure or result
    if phase == "Failed" and cause.disruption:
        text = f"{cause.reason}: {cause.message}"
        wanted.append(condition("DisruptionTarget", True, reasons.DISRUPTION_TARGET_REASON, text))
    if s.began and not ended:
        wanted += _resize(s)
    generation = _observed(s)
    fields = _addresses(s, started) | {
        "phase": phase,
        "conditions": merge(s.pod, wanted, s.now, generation),
        "containerStatuses": None if refused else apps,
        "reason": (cause.reason or None) if phase == "Failed" else None,
        "message": (cause.message or None) if phase == "Failed" else None,
    }
    if inits:
        fields["initContainerStatuses"] = None if refused else inits
    if debuggers := live.debug_statuses(s.pod):
        shown = [never_ran(c, s.now) for c in debuggers] if ended else debuggers
        fields["ephemeralContainerStatuses"] = None if refused else shown
    return fields | ({} if generation is None else {"observedGeneration": generation})


def made(s: Situation) -> Made:
    """What the pod's job was made of; while there is none, what it would be made of now."""
    if s.record.made is not None and s.began:
        return s.record.made
    return live.told_by(s.pod) if s.has_run else live.made_of(s.pod)


def _resize(s: Situation) -> list[Json]:
    """A kubelet's condition for a resize that it cannot do; False once nobody asks for it any more."""
    if text := live.resized(s.pod, made(s)):
        return [condition("PodResizePending", True, "Infeasible", text)]
    shown = any(c["type"] == "PodResizePending" for c in s.pod.get("status", {}).get("conditions", []))
    return [condition("PodResizePending", False)] if shown else []


def _observed(s: Situation) -> int | None:
    """The generation that the status tells of: not a newer one while podrun has yet to be told what it changed."""
    generation: int | None = s.pod["metadata"].get("generation")
    old: int | None = s.pod.get("status", {}).get("observedGeneration")
    waits = s.began and s.result.stage is not Stage.ENDED and live.untold(s.pod, s.record)
    return old if waits and generation is not None and old is not None else generation


def _rejected(s: Situation, failure: Failure) -> Json:
    return {
        "phase": "Failed",
        "reason": failure.reason,
        "message": f"Pod was rejected: {failure.message}",
        "startTime": s.pod.get("status", {}).get("startTime") or rfc3339(s.now),
    } | ({} if (generation := _observed(s)) is None else {"observedGeneration": generation})


def _phase(apps: list[Json], initialized: bool, result: Outcome) -> str:
    if result.stage is Stage.ENDED:
        return "Succeeded" if result.succeeded else "Failed"
    ran = all("waiting" not in c["state"] or c["lastState"] for c in apps)
    return "Running" if initialized and ran else "Pending"


def _waiting(result: Outcome, hold: Waiting | None, failure: Failure | None, ended: bool) -> Waiting:
    """What containers that never started show."""
    if failure is not None:
        return Waiting(failure.reason, failure.message)
    if ended or result.stage in (Stage.QUEUED, Stage.HELD, Stage.SUSPENDED):
        return Waiting(result.reason, result.message)
    return hold or Waiting(reasons.PENDING_SUBMIT)


def _containers(s: Situation, waiting: Waiting, ended: bool) -> tuple[list[Json], list[Json]]:
    view = s.seen.status.get("containers") if s.seen is not None and s.seen.status is not None else None
    # A podrun that has started no container yet says nothing that is worth a patch of its own.
    by_name = view if isinstance(view, dict) and s.result.stage is not Stage.QUEUED else {}
    job = (s.seen.job_id if s.seen is not None else None) or "none"
    wall = isolation(s.seen.status if s.seen is not None else None)
    spec, old, job_of = s.pod["spec"], s.pod.get("status", {}), made(s)

    def made_container(c: Json, before: Json | None) -> Json:
        """The container as the job has it: image, and resources where they are other than the spec says now."""
        name, image = c["name"], job_of.images.get(c["name"], c["image"])
        ran_before = before is not None and before.get("image") == image and before.get("imageID")
        image_id = before["imageID"] if before and ran_before else f"pbs://{s.image_ids.get(name) or image}"
        return {"name": name, "image": image, "imageID": image_id}

    def statuses(key: str, old_key: str) -> list[Json]:
        before = {c["name"]: c for c in old.get(old_key, [])}
        return [
            keep_monotonic(
                container_status(
                    made_container(c, before.get(c["name"])),
                    by_name.get(c["name"]),
                    waiting,
                    job=job,
                    wall=wall,
                    ended=ended,
                    now=s.now,
                    init=key == "initContainers",
                )
                | _resources(c, job_of),
                before.get(c["name"]),
            )
            for c in spec.get(key, [])
        ]

    inits = statuses("initContainers", "initContainerStatuses")
    apps = sorted(statuses("containers", "containerStatuses"), key=lambda c: str(c["name"]))
    return inits, apps


def _resources(container: Json, job_of: Made) -> Json:
    """What the job really has, where the spec asks for something else by now."""
    had = job_of.resources.get(container["name"], {})
    return {} if not had or had == (container.get("resources") or {}) else {"resources": had}


def _addresses(s: Situation, started: bool) -> Json:
    """startTime once; hostIP is the node's address; podIP the compute node's, since containers use its network."""
    old = s.pod.get("status", {})
    fields: Json = {"startTime": old.get("startTime") or rfc3339(s.now)}
    if host := _address(s.host_ip):
        fields |= {"hostIP": host, "hostIPs": [{"ip": host}]}
    reported = s.seen.status.get("host_ip") if s.seen is not None and s.seen.status is not None else None
    for ip in (_address(old.get("podIP")), _address(reported) if started else None):
        if ip is not None and _routable(ip, s.pod_networks):
            return fields | {"podIP": ip, "podIPs": [{"ip": ip}]}
    return fields | ({"podIP": None, "podIPs": []} if old.get("podIP") else {})


def _address(text: object) -> str | None:
    """The address in its canonical form, as the API server wants it; None for anything else (a name, a scope id)."""
    try:
        address = ipaddress.ip_address(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if address is None or "%" in str(address) else str(address)


def _routable(ip: str, networks: Iterable[str]) -> bool:
    return any(ipaddress.ip_address(ip) in ipaddress.ip_network(network) for network in networks)


def reduced(fields: Json) -> Json:
    """The least that must be told of a pod where the API server refuses the rest: phase, why, container states."""
    least: Json = {key: fields[key] for key in ("phase", "reason", "message", "observedGeneration") if key in fields}
    for key in ("containerStatuses", "initContainerStatuses"):
        if fields.get(key):
            least[key] = [_least(container) for container in fields[key]]
    return least


def _least(container: Json) -> Json:
    state = {
        kind: {k: v for k, v in value.items() if k in ("reason", "exitCode", "startedAt", "finishedAt")}
        for kind, value in container["state"].items()
    }
    kept = {key: container[key] for key in ("name", "image", "ready", "restartCount")}
    return kept | {"imageID": "", "state": state}


def wire(fields: Json) -> Json:
    """The fields as a strategic merge patch: lists of addresses replace what is there, or an old one would stay."""
    return {
        key: [{"$patch": "replace"}, *value] if key in ("hostIPs", "podIPs") and value is not None else value
        for key, value in fields.items()
    }


def differs(wanted: Json, current: Json) -> bool:
    """Does `current` (the API server's status) lack anything of `wanted`? Conditions of others do not count.

    Nor does an observedGeneration that the API server does not keep: Kubernetes before 1.34 drops it.
    """
    for key, value in wanted.items():
        if key == "observedGeneration" and key not in current:
            continue
        if key == "conditions":
            if _conditions_differ(value, current.get("conditions", [])):
                return True
        elif value is None:
            if current.get(key):
                return True
        elif key.lower().endswith("containerstatuses"):
            have = {s["name"]: s for s in current.get(key, [])}
            if any(_lacks(s, have.get(s["name"], {})) for s in value):
                return True
        elif (current.get(key) or []) != (value or []):
            return True
    return False


def _lacks(wanted: Json, current: Json) -> bool:
    return any(
        (current.get(k) or {}) != (v or {}) if isinstance(v, dict) else current.get(k, _EMPTY.get(k)) != v
        for k, v in wanted.items()
    )


_EMPTY = {"imageID": "", "ready": False, "started": False, "restartCount": 0}


def _conditions_differ(wanted: list[Json], current: list[Json]) -> bool:
    have = {c["type"]: c for c in current}
    return any(
        (old := have.get(new["type"])) is None
        or any(
            (old.get(k) or None) != (new.get(k) or None)
            for k in ("status", "reason", "message", "observedGeneration")
            if k != "observedGeneration" or k in old
        )
        for new in wanted
    )


def waits_unsatisfiable(pod: Json) -> float | None:
    """Since when the pod is known to wait for a larger host (its startTime), where its status says that it does."""
    status = pod.get("status", {})
    states = [c.get("state", {}) for c in status.get("initContainerStatuses", []) + status.get("containerStatuses", [])]
    waits = any(state.get("waiting", {}).get("reason") == reasons.UNSATISFIABLE for state in states)
    return parse_rfc3339(status.get("startTime")) if waits else None


def shown_state(pod: Json) -> str:
    """One word for the pod, as in kubectl's STATUS column: a waiting reason, else the pod's reason, else its phase."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("reason"):
        return str(status["reason"])
    for container in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
        if reason := container.get("state", {}).get("waiting", {}).get("reason"):
            return str(reason)
    return "Completed" if status.get("phase") == "Succeeded" else str(status.get("phase", "Pending"))
