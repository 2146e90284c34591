"""Pods from binding to their end, as users see them (checks 9 to 12, 15, 17 to 21, 28 and 30 of a kubelet)."""

from __future__ import annotations

import json
import re
import time

import pytest
from world import World, condition, container, pod, until, waiting_reasons

from bridge.kube.clock import parse_rfc3339
from bridge.pods.conditions import OWNED


def test_a_pod_runs_as_a_pbs_job_and_shows_its_log(bridge: World) -> None:
    bridge.apply(pod("hello", "echo hello from $(id -u); sleep 1"))
    done = bridge.wait_phase("hello", "Succeeded")
    assert bridge.logs("hello") == f"hello from {bridge.clusters['alpha'].account.uid}\n"
    message = bridge.wait_event("hello", "PBSSubmitted")
    job = bridge.job_of("hello")
    assert (job.endswith(".alpha"), f"job {job} to queue workq" in message) == (True, True)
    main = container(done)
    assert f"://{job}/main/" in main["containerID"]
    ended = main["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], main["restartCount"]) == (0, "Completed", 0)
    started, finished = (parse_rfc3339(ended[key]) for key in ("startedAt", "finishedAt"))
    assert started is not None
    assert finished is not None
    assert started <= finished
    for kind in ("Initialized", "Ready", "ContainersReady"):
        assert condition(done, kind)["reason"] == "PodCompleted"


def test_the_first_status_after_binding(bridge: World) -> None:
    """A queue that does not start jobs keeps the pod waiting, so that the first states can be seen."""
    bridge.apply(pod("first", "true", cluster="beta", nodeSelector={"no-such-label": "yet"}))
    bridge.apply(pod("first-bound", "sleep 1"))
    bound = bridge.wait("first-bound", lambda p: p["status"].get("startTime"))
    assert bound["status"]["hostIP"] == bridge.agent.address
    assert condition(bound, "PodScheduled")["status"] == "True"
    scheduled = parse_rfc3339(condition(bound, "PodScheduled")["lastTransitionTime"])
    started = parse_rfc3339(bound["status"]["startTime"])
    assert scheduled is not None
    assert started is not None
    assert started - scheduled <= 2
    assert "startTime" not in bridge.pod("first")["status"]
    bridge.kubectl("delete", "pod", "first", "--wait=false")


def test_a_queued_pod_shows_pbs_own_reason(bridge: World) -> None:
    bridge.clusters["beta"].keep_busy(12)
    bridge.apply(pod("waits", "echo ran", cluster="beta"))
    bridge.wait_reason("waits", "PBSQueued")
    waiting = bridge.wait(
        "waits", lambda p: "Not Running" in str(p["status"]["containerStatuses"]), what="PBS's comment"
    )
    assert condition(waiting, "Ready")["status"] == "False"
    assert "Insufficient amount of resource: ncpus" in bridge.wait_event("waits", "PBSWaiting")
    bridge.wait_phase("waits", "Succeeded")


def test_a_running_pod_looks_like_one(bridge: World) -> None:
    bridge.apply(pod("runs", "sleep 300"))
    running = bridge.wait_phase("runs", "Running")
    assert {c["type"] for c in running["status"]["conditions"]} >= set(OWNED)
    assert all(condition(running, kind)["status"] == "True" for kind in OWNED)
    main = container(running)
    assert (main["ready"], main["started"], "startedAt" in main["state"]["running"]) == (True, True, True)
    assert re.match(r"pbs\+(bubblewrap|none)://", main["containerID"])
    assert main["imageID"]
    assert "podIP" not in running["status"]  # nobody has said that compute nodes can be reached
    assert running["status"]["observedGeneration"] == running["metadata"]["generation"]
    limited = [t for t in running["spec"]["tolerations"] if "tolerationSeconds" in t]
    assert limited == []
    bridge.kubectl("delete", "pod", "runs")


def test_observed_generation_follows_a_change_of_the_spec(bridge: World) -> None:
    bridge.apply(pod("generation", "sleep 300"))
    before = bridge.wait_phase("generation", "Running")
    added = [*before["spec"]["tolerations"], {"key": "later", "operator": "Exists"}]
    patch = {"spec": {"tolerations": added}}
    bridge.kubectl("patch", "pod", "generation", "--type=merge", "-p", json.dumps(patch))
    after = bridge.wait(
        "generation", lambda p: p["status"]["observedGeneration"] > before["status"]["observedGeneration"]
    )
    assert after["status"]["observedGeneration"] == after["metadata"]["generation"]
    assert all(
        c["observedGeneration"] == after["metadata"]["generation"]
        for c in after["status"]["conditions"]
        if c["type"] in OWNED
    )
    bridge.kubectl("delete", "pod", "generation")


def _init(name: str, line: str) -> dict[str, object]:
    return {"name": name, "image": "busybox:1.36", "command": ["/bin/sh", "-c", line],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}  # fmt: skip


def test_init_containers_run_in_order(bridge: World) -> None:
    thing = pod("inits", "cat /shared/order", volumes=[{"name": "shared", "emptyDir": {}}])
    thing["spec"]["initContainers"] = [
        _init("one", "sleep 3; echo one >> /shared/order"),
        _init("two", "echo two >> /shared/order"),
    ]
    thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "shared", "mountPath": "/shared"}]
    bridge.apply(thing)
    waiting = bridge.wait("inits", lambda p: "PodInitializing" in waiting_reasons(p), what="initialising")
    initialized = condition(waiting, "Initialized")
    assert (initialized["status"], initialized["reason"]) == ("False", "ContainersNotInitialized")
    assert "one" in initialized["message"]
    bridge.wait_phase("inits", "Succeeded")
    assert bridge.logs("inits", "-c", "main") == "one\ntwo\n"


def test_a_failing_init_container_fails_the_pod(bridge: World) -> None:
    thing = pod("init-fails", "echo never", volumes=[{"name": "shared", "emptyDir": {}}])
    thing["spec"]["initContainers"] = [_init("one", "exit 4")]
    bridge.apply(thing)
    failed = bridge.wait_phase("init-fails", "Failed")
    assert container(failed, "one")["state"]["terminated"]["exitCode"] == 4
    assert "waiting" in container(failed)["state"]


def test_an_exit_code_reaches_the_pod_and_its_job(bridge: World) -> None:
    template = pod("unused", "exit 3")["spec"]
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "three"},
        "spec": {"backoffLimit": 0, "template": {"spec": template}},
    }  # fmt: skip
    bridge.apply(job)
    until(lambda: bridge.get("job", "three")["status"].get("failed") == 1, "one failure counted")
    name = bridge.get("pods", "-l", "job-name=three")["items"][0]["metadata"]["name"]
    failed = bridge.wait_phase(name, "Failed")
    ended = container(failed)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    bridge.kubectl("delete", "job", "three")


def test_a_signal_is_told_apart_from_an_exit(bridge: World) -> None:
    bridge.apply(pod("killed", "kill -9 $$$$"))
    ended = container(bridge.wait_phase("killed", "Failed"))["state"]["terminated"]
    assert (ended["exitCode"], ended["signal"]) == (137, 9)


def test_restart_on_failure_backs_off_and_keeps_the_last_state(bridge: World) -> None:
    bridge.apply(pod("flaps", "echo try; exit 7", restartPolicy="Always"))
    looping = bridge.wait(
        "flaps", lambda p: "CrashLoopBackOff" in waiting_reasons(p) and container(p)["restartCount"] >= 1
    )
    main = container(looping)
    assert main["lastState"]["terminated"]["exitCode"] == 7
    assert "back-off" in main["state"]["waiting"]["message"]
    assert looping["status"]["phase"] == "Running"
    assert bridge.logs("flaps", "--previous") == "try\n"
    bridge.kubectl("delete", "pod", "flaps")


def test_on_failure_ends_with_success(bridge: World) -> None:
    thing = pod(
        "second-time", "test -e /shared/tried && exit 0; touch /shared/tried; exit 1",
        restartPolicy="OnFailure", volumes=[{"name": "shared", "emptyDir": {}}],
    )  # fmt: skip
    thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "shared", "mountPath": "/shared"}]
    bridge.apply(thing)
    done = bridge.wait_phase("second-time", "Succeeded")
    assert container(done)["restartCount"] == 1


def test_a_deadline_ends_the_pod(bridge: World) -> None:
    bridge.apply(pod("late", "sleep 300", activeDeadlineSeconds=3, terminationGracePeriodSeconds=1))
    started = time.monotonic()
    late = bridge.wait_phase("late", "Failed", timeout=30)
    assert late["status"]["reason"] == "DeadlineExceeded"
    assert time.monotonic() - started < 3 + 15


def test_a_walltime_end_is_named(bridge: World) -> None:
    thing = pod("short", "sleep 300", terminationGracePeriodSeconds=1)
    thing["metadata"]["annotations"] = {"hpc-bridge.io/walltime": "3s"}
    bridge.apply(thing)
    ended = bridge.wait_phase("short", "Failed", timeout=90)
    assert ended["status"]["reason"] == "PBSWalltimeExceeded"


def test_a_missing_config_map_is_waited_for(bridge: World) -> None:
    thing = pod("needs", "echo $COLOUR")
    source = {"configMapKeyRef": {"name": "colours", "key": "main"}}
    thing["spec"]["containers"][0]["env"] = [{"name": "COLOUR", "valueFrom": source}]
    bridge.apply(thing)
    bridge.wait_reason("needs", "CreateContainerConfigError")
    assert "colours" in bridge.wait_event("needs", "CreateContainerConfigError")
    bridge.kubectl("create", "configmap", "colours", "--from-literal=main=green")
    bridge.wait_phase("needs", "Succeeded")
    assert bridge.logs("needs") == "green\n"


def test_what_others_write_survives(bridge: World) -> None:
    bridge.apply(pod("shared-status", "sleep 4"))
    bridge.wait_phase("shared-status", "Running")
    foreign = {"type": "example.com/seen", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}
    bridge.kubectl(
        "patch", "pod", "shared-status", "--subresource=status", "-p",
        json.dumps({"status": {"conditions": [foreign]}}),
    )  # fmt: skip
    bridge.kubectl("label", "pod", "shared-status", "mine=yes")
    bridge.kubectl("annotate", "pod", "shared-status", "example.com/mine=yes")
    done = bridge.wait_phase("shared-status", "Succeeded")
    assert condition(done, "example.com/seen")["status"] == "True"
    assert done["metadata"]["labels"]["mine"] == "yes"
    assert done["metadata"]["annotations"]["example.com/mine"] == "yes"


def test_readiness_gates_of_others_are_respected(bridge: World) -> None:
    bridge.apply(pod("gated", "sleep 300", readinessGates=[{"conditionType": "example.com/open"}]))
    running = bridge.wait_phase("gated", "Running")
    assert condition(running, "Ready")["reason"] == "ReadinessGatesNotReady"
    assert condition(running, "ContainersReady")["status"] == "True"
    gate = {"type": "example.com/open", "status": "True"}
    bridge.kubectl(
        "patch", "pod", "gated", "--subresource=status", "-p",
        json.dumps({"status": {"conditions": [gate]}}),
    )  # fmt: skip
    bridge.wait("gated", lambda p: condition(p, "Ready")["status"] == "True", what="ready")
    bridge.kubectl("delete", "pod", "gated")


def test_a_pod_that_never_fits_and_was_not_scheduled_is_rejected(bridge: World) -> None:
    thing = pod("too-big", "true", nodeName="pbs-alpha")
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1000"}}
    bridge.apply(thing)
    rejected = bridge.wait_phase("too-big", "Failed")
    assert rejected["status"]["reason"] == "OutOfcpu"
    message = rejected["status"]["message"]
    assert message.startswith("Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: ")
    assert "OutOfcpu" in [reason for reason, _ in bridge.events("too-big")]
    assert "containerStatuses" not in rejected["status"]


def test_a_daemon_set_that_tolerates_everything_makes_no_loop(bridge: World) -> None:
    labels = {"app": "everywhere"}
    spec = pod("unused", "sleep 300")["spec"] | {"restartPolicy": "Always", "tolerations": [{"operator": "Exists"}]}
    del spec["runtimeClassName"]
    template = {"metadata": {"labels": labels}, "spec": spec}
    daemons = {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "everywhere", "labels": {"hpc-bridge.io/daemonset": "allowed"}},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    bridge.apply(daemons)

    def reasons() -> list[str]:
        return [r for p in bridge.get("pods", "-l", "app=everywhere")["items"] for r in waiting_reasons(p)]

    until(lambda: reasons() == ["DaemonSetOnVirtualNode"] * 2, "both pods left waiting")
    first = {p["metadata"]["uid"] for p in bridge.get("pods", "-l", "app=everywhere")["items"]}
    bridge.kubectl("patch", "daemonset", "everywhere", '--patch={"spec":{"minReadySeconds":1}}')

    def looked() -> bool:
        """Has its controller, who would replace pods that failed, come by since they wait?"""
        found = bridge.get("daemonset", "everywhere")
        return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"] > 1)

    until(looked, "the DaemonSet controller's next look")
    assert {p["metadata"]["uid"] for p in bridge.get("pods", "-l", "app=everywhere")["items"]} == first
    bridge.kubectl("delete", "daemonset", "everywhere")
    until(lambda: not bridge.get("pods", "-l", "app=everywhere")["items"], "daemon pods gone")


@pytest.mark.parametrize(
    ("field", "value"),
    [("hostPID", True), ("volumes", [{"name": "x", "nfs": {"server": "a", "path": "/b"}}])],
)
def test_what_is_not_supported_is_refused_with_a_reason(bridge: World, field: str, value: object) -> None:
    name = f"refused-{field.lower()}"
    bridge.apply(pod(name, "true", **{field: value}))
    refused = bridge.wait_phase(name, "Failed")
    assert refused["status"]["reason"] == "UnsupportedPodField"
    assert f"spec.{field}" in refused["status"]["message"]
    assert f"spec.{field}" in bridge.wait_event(name, "UnsupportedPodField")
    assert not bridge.clusters["alpha"].run("ls", "-d", bridge.directory(refused["metadata"]["uid"])).stdout
