"""Deleting pods in every state (checks 23 to 27 of a kubelet): nothing lives on, nothing is deleted too early."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from world import World, condition, pod, until

from bridge.testbed.agent import NAMESPACE, SERVICE_ACCOUNT

AGENT = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
# Says on its volume and in its log that it was asked to stop, and takes its time.
SLOW_TO_STOP = "trap 'echo asked; sleep 2; echo leaving; exit 0' TERM; echo up; while :; do sleep 0.1; done"
STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.2; done"


def alive(bridge: World, uid: str) -> bool:
    """Does any process of the pod's job run? (qsub's background process shows the arguments of its first job.)"""
    found = subprocess.run(["pgrep", "-a", "-f", uid], capture_output=True, text=True, check=False)
    return any("/qsub " not in line for line in found.stdout.splitlines())


def test_a_running_pod_is_asked_first(bridge: World) -> None:
    bridge.apply(pod("asked", SLOW_TO_STOP, terminationGracePeriodSeconds=20))
    running = bridge.wait_phase("asked", "Running")
    until(lambda: "up" in bridge.logs("asked"), "the trap is set")
    uid = running["metadata"]["uid"]
    bridge.kubectl("delete", "pod", "asked", "--wait=false")
    until(lambda: "asked" in bridge.logs("asked", check=False), "SIGTERM seen")
    started = time.monotonic()
    bridge.wait_gone("asked", timeout=20)
    assert time.monotonic() - started < 15
    log = bridge.clusters["alpha"].run("cat", f"{bridge.directory(uid)}/logs/main/0.log").stdout
    assert "leaving" in log
    until(lambda: not alive(bridge, uid), "its processes gone")


def test_a_stubborn_pod_is_killed_after_its_grace(bridge: World) -> None:
    bridge.apply(pod("stubborn", STUBBORN, terminationGracePeriodSeconds=2))
    uid = bridge.wait_phase("stubborn", "Running")["metadata"]["uid"]
    until(lambda: "up" in bridge.logs("stubborn"), "the trap is set")
    bridge.kubectl("delete", "pod", "stubborn", "--wait=false")
    bridge.wait_gone("stubborn", timeout=25)
    until(lambda: not alive(bridge, uid), "its processes gone")


def test_the_terminal_phase_is_written_before_the_object_goes(bridge: World) -> None:
    bridge.apply(pod("watched", "echo up; exec sleep 300", terminationGracePeriodSeconds=3))
    uid = bridge.wait_phase("watched", "Running")["metadata"]["uid"]
    bridge.kubectl("delete", "pod", "watched")
    until(lambda: _agent_deletes(bridge, "watched"), "the agent's DELETE in the audit log")
    deletes = _agent_deletes(bridge, "watched")
    bodies = [d["requestObject"] for d in deletes if d["requestObject"].get("preconditions", {}).get("uid") == uid]
    assert len(bodies) == 1
    assert bodies[0]["gracePeriodSeconds"] == 0
    phases = _phases_before_delete(bridge, "watched", deletes[0])
    assert phases[-1] in ("Failed", "Succeeded")


def _agent_deletes(bridge: World, name: str) -> list[dict[str, Any]]:
    events = bridge.control_plane.audit_events(user=AGENT, verbs=["delete"])
    return [e for e in events if e["objectRef"].get("name") == name and e["objectRef"]["resource"] == "pods"]


def _phases_before_delete(bridge: World, name: str, delete: dict[str, Any]) -> list[str]:
    events = bridge.control_plane.audit_events(user=AGENT, verbs=["patch"])
    mine = [
        e for e in events
        if e["objectRef"].get("name") == name and "status" in e["requestObject"]
        and e["requestReceivedTimestamp"] < delete["requestReceivedTimestamp"]
    ]  # fmt: skip
    told = [e["requestObject"].get("status", {}).get("phase") for e in mine]  # some carry our annotations alone
    return [phase for phase in told if phase]


def test_a_pod_recreated_under_the_same_name_is_not_harmed(bridge: World) -> None:
    bridge.apply(pod("twin", SLOW_TO_STOP, terminationGracePeriodSeconds=20))
    first = bridge.wait_phase("twin", "Running")["metadata"]["uid"]
    bridge.kubectl("delete", "pod", "twin", "--force", "--grace-period=0")
    bridge.apply(pod("twin", "sleep 4; echo second"))
    second = bridge.wait_phase("twin", "Succeeded")
    assert second["metadata"]["uid"] != first
    assert bridge.logs("twin") == "second\n"
    until(lambda: not alive(bridge, first), "the first one stopped")


def test_force_delete_kills_the_job(bridge: World) -> None:
    bridge.apply(pod("forced", STUBBORN))
    uid = bridge.wait_phase("forced", "Running")["metadata"]["uid"]
    job = bridge.job_of("forced")
    bridge.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    until(lambda: not alive(bridge, uid), "processes gone")
    until(lambda: job not in bridge.jobs(), "job gone from PBS")


def test_force_delete_while_the_agent_is_down_kills_the_job_later(bridge: World) -> None:
    bridge.apply(pod("forced-later", STUBBORN))
    uid = bridge.wait_phase("forced-later", "Running")["metadata"]["uid"]
    bridge.stop_agent()
    bridge.kubectl("delete", "pod", "forced-later", "--force", "--grace-period=0")
    assert alive(bridge, uid)
    bridge.restart_agent()
    until(lambda: not alive(bridge, uid), "swept", timeout=60)


def test_a_queued_pod_leaves_pbs(bridge: World) -> None:
    bridge.apply(pod("queued", "true", queue="stopped"))
    bridge.wait_reason("queued", "PBSQueued")
    job = bridge.job_of("queued")
    assert job in bridge.jobs()
    bridge.kubectl("delete", "pod", "queued", "--wait=false")
    bridge.wait_gone("queued", timeout=30)
    assert job not in bridge.jobs()


def test_a_pod_without_a_job_goes_at_once(bridge: World) -> None:
    thing = pod("no-job", "true")
    source = {"configMapKeyRef": {"name": "never-there", "key": "x"}}
    thing["spec"]["containers"][0]["env"] = [{"name": "X", "valueFrom": source}]
    bridge.apply(thing)
    bridge.wait_reason("no-job", "CreateContainerConfigError")
    bridge.kubectl("delete", "pod", "no-job", "--wait=false")
    bridge.wait_gone("no-job", timeout=15)


def test_a_finished_pod_goes_at_once_and_stays_until_then(bridge: World) -> None:
    bridge.apply(pod("finished", "echo over"))
    bridge.wait_phase("finished", "Succeeded")
    assert bridge.logs("finished") == "over\n"
    bridge.kubectl("delete", "pod", "finished", "--wait=false")
    bridge.wait_gone("finished", timeout=10)


def test_eviction_keeps_its_condition(bridge: World) -> None:
    bridge.apply(pod("evicted", SLOW_TO_STOP, terminationGracePeriodSeconds=20))
    bridge.wait_phase("evicted", "Running")
    until(lambda: "up" in bridge.logs("evicted"), "the trap is set")
    eviction = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted", "namespace": "default"},
    }  # fmt: skip
    path = "/api/v1/namespaces/default/pods/evicted/eviction"
    bridge.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    leaving = bridge.wait("evicted", lambda p: p["metadata"].get("deletionTimestamp"), what="being deleted")
    assert condition(leaving, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    bridge.wait_gone("evicted", timeout=25)


def test_drain_finishes(bridge: World) -> None:
    replicas = {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "drained"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "drained"}},
            "template": {
                "metadata": {"labels": {"app": "drained"}},
                "spec": pod("x", "sleep 300", restartPolicy="Always", terminationGracePeriodSeconds=1)["spec"],
            },
        },
    }  # fmt: skip
    bridge.apply(replicas)

    def running() -> int:
        pods = bridge.get("pods", "-l", "app=drained")["items"]
        return sum(p["status"].get("phase") == "Running" for p in pods)

    until(lambda: running() == 2, "both run")
    bridge.kubectl("cordon", "pbs-alpha")
    bridge.kubectl(
        "drain", "pbs-alpha", "--ignore-daemonsets", "--pod-selector=app=drained", "--timeout=60s", timeout=90
    )
    bridge.kubectl("delete", "replicaset", "drained")
    bridge.kubectl("uncordon", "pbs-alpha")
    until(lambda: not bridge.get("pods", "-l", "app=drained")["items"], "all gone")
