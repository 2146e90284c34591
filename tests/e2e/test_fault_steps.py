"""Killed or cut off between each pair of steps of a submission and of a deletion: one job a pod, none lost, none left.

Each pod stops the product at a point of its own (see `bridge.faultpoints` and `pbs_adapter.remote.helper_faults`), all
at the same time; then one thing is killed, and the product must bring every pod to its right end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faultkit import (
    Points,
    await_phases,
    counting,
    cut_ssh,
    gated,
    history,
    kill_agent,
    kill_helper,
    living,
    open_gates,
    runs,
)
from world import World, condition, container, until

# Before the directory, after it, after the lock, after qsub, after the id, before the annotation, before the status.
SUBMIT = (
    "submit.before",
    "submit.begin",
    "submit.staged",
    "submit.locked",
    "submit.queued",
    "submit.known",
    "submit.answered",
    "status.terminal",
)
# point → does the pod run when it is deleted? The others wait in a queue that runs nothing.
DELETE = {
    "cancel.before": True,
    "cancel.begin": True,
    "cancel.asked": False,
    "qdel.before": False,
    "qdel.after": False,
    "status.terminal": True,
    "delete.before": True,
}
HITS: dict[str, Callable[[World], None]] = {"agent": kill_agent, "ssh": cut_ssh, "helper": kill_helper}


@pytest.mark.parametrize("hit", HITS)
def test_one_job_for_each_pod_whatever_is_hit(bridge: World, points: Points, hit: str) -> None:
    starts = {f"{hit}-{point.replace('.', '-')}": point for point in SUBMIT}
    leaves = {f"{hit}-del-{point.replace('.', '-')}": point for point in DELETE}
    running = [name for name, point in leaves.items() if DELETE[point]]
    queued = [name for name, point in leaves.items() if not DELETE[point]]
    bystander = f"{hit}-bystander"
    try:
        # Those that are to be deleted, and one that nothing may happen to.
        stay = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
        bridge.apply(
            *(counting(bridge, name, stay) for name in (*running, bystander)),
            *(counting(bridge, name, "true", queue="stopped") for name in queued),
        )
        for name in (*running, bystander):
            bridge.wait_phase(name, "Running")
        for name in queued:
            bridge.wait_reason(name, "PBSQueued")
        uids = {name: bridge.pod(name)["metadata"]["uid"] for name in (*leaves, bystander)}
        # Those that start; every other one fails.
        exits = {name: index % 2 * 3 for index, name in enumerate(starts)}
        uids |= gated(bridge, *(counting(bridge, name, f"exit {code}") for name, code in exits.items()))
        for name, point in (starts | leaves).items():
            points.arm(point, uids[name])
        open_gates(bridge, starts)
        bridge.kubectl("delete", "pod", *leaves, "--wait=false")
        for name, point in (starts | leaves).items():
            until(lambda point=point, name=name: points.reached(point, uids[name]), f"{name} stands at {point}")  # type: ignore[misc]
        HITS[hit](bridge)
    finally:
        points.release()
    if hit == "agent":
        bridge.agent.start()
        bridge.agent.wait_ready(90)
    await_phases(bridge, {name: "Failed" if code else "Succeeded" for name, code in exits.items()})
    for name in leaves:
        bridge.wait_gone(name)
    jobs, alive = history(bridge), living(bridge)
    assert {name: len(jobs.get(uid, [])) for name, uid in uids.items()} == dict.fromkeys(uids, 1)
    assert {name: runs(bridge, name) for name in uids} == {name: 0 if name in queued else 1 for name in uids}
    assert [name for name, uid in uids.items() if uid in alive] == [bystander]
    for name, code in exits.items():
        ended = bridge.pod(name)
        assert container(ended)["state"]["terminated"]["exitCode"] == code
        assert ended["metadata"]["annotations"]["status.hpc-bridge.io/job-id"] == jobs[uids[name]][0]
    unharmed = bridge.wait(bystander, lambda p: condition(p, "Ready")["status"] == "True", what="ready")
    assert unharmed["metadata"]["uid"] == uids[bystander]
    assert container(unharmed)["restartCount"] == 0
    bridge.kubectl("delete", "pod", bystander, *starts, "--wait=false")
    bridge.wait_gone(bystander)
