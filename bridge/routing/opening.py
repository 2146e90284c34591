"""Carries a verdict out: one patch, tried again on a fresh copy of the pod when somebody else was faster."""

from __future__ import annotations

import json
from typing import Any

import structlog

from bridge.api import names
from bridge.faultpoints import reach
from bridge.kube import Kubernetes, paths
from bridge.kube.errors import Conflict, Invalid, NotFound
from bridge.routing import gate
from bridge.routing.decide import gates
from bridge.routing.explain import Outcome

log = structlog.get_logger(__name__)

Json = dict[str, Any]
ATTEMPTS = 4
BURST, AT_ONCE = 100, 8


async def carry_out(kube: Kubernetes, pod: Json, outcome: Outcome) -> Json | None:
    """The pod as it is afterwards; None if there is nothing left to do: it is gone, replaced, or opened already.

    Raises KubeError when the API server does not answer or refuses the patch for another reason than a change.
    """
    metadata = pod["metadata"]
    uid, path = metadata["uid"], paths.pod(metadata["namespace"], metadata["name"])
    written = outcome.annotation()
    for attempt in range(ATTEMPTS):
        await reach("route.before", uid)
        try:
            changed = await kube.patch(path, _patch(pod, outcome, written), kind="json")
        except NotFound:
            return None
        except (Conflict, Invalid) as error:
            fresh = await _fresh(kube, path, uid)
            if fresh is None or not _still(fresh, outcome):
                return None
            same = fresh["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
            if same or attempt == ATTEMPTS - 1:
                log.warning("routing.patch_refused", pod=outcome.pod, error=str(error))
                raise
            pod = fresh
        else:
            await reach("route.after", uid)
            return changed
    return None


async def _fresh(kube: Kubernetes, path: str, uid: str) -> Json | None:
    try:
        found = await kube.get(path)
    except NotFound:
        return None
    return found if found["metadata"]["uid"] == uid else None


def _still(pod: Json, outcome: Outcome) -> bool:
    """Whether the verdict still holds for the pod as it is now."""
    if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return False
    gated, others = gates(pod)
    return gated and not others if outcome.verdict.step == "open" else not gated


def _patch(pod: Json, outcome: Outcome, written: str) -> gate.Patch:
    to = outcome.verdict.to
    if to is None:
        return gate.patch(pod, None, written)
    rule = outcome.match.rule
    one_domain = rule is not None and rule.spec.numa == "require"
    return gate.patch(
        pod, to.cluster, written, selector=outcome.verdict.selector, queue=to.queue, one_domain=one_domain
    )


def at_once(second: str, before: str, pods: int) -> int:
    """How many gates of one rule may be opened at the same time: one, so that nobody is overtaken.

    In a burst that would take the API server twice as long as it needs. Where more than a hundred `pods` are to be
    opened, those of the same second (`creationTimestamp`; `before`: that of the pod before) go eight at a time: nobody
    overtakes a pod of an earlier second, and no more than seven one of the same.

    >>> at_once("09:26:40", "09:26:40", 1000), at_once("09:26:41", "09:26:40", 1000), at_once("09:26:40", "09:26:40", 5)
    (8, 1, 1)
    """
    return AT_ONCE if pods > BURST and second == before else 1


def released(pod: Json) -> bool:
    """Whether the router has opened this pod's gate and no cluster has been named to it yet."""
    gated, _ = gates(pod)
    routed = names.ROUTED in (pod["metadata"].get("annotations") or {})
    return not gated and routed and not gate.tolerated(pod)


def recorded(pod: Json) -> Json | None:
    """What was decided about the pod, from its annotation; for display."""
    try:
        found = json.loads((pod["metadata"].get("annotations") or {}).get(names.ROUTED) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def as_gated(pod: Json) -> Json:
    """The pod with the gate, for asking what would be decided: a pod of a file, or one that was released before.

    What the router itself has added is taken away again.
    """
    spec = dict(pod.get("spec") or {})
    gated, _ = gates(pod)
    if not gated:
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), {"name": names.GATE}]
    if recorded(pod) is not None:
        selector = spec.get("nodeSelector") or {}
        spec["nodeSelector"] = {
            key: value for key, value in selector.items() if key not in (names.NODE_TYPE_LABEL, names.CLUSTER_LABEL)
        }
    return {**pod, "spec": spec}
