"""What others do to a job in PBS: hold, suspend, requeue, delete, forget. Each ends as the documentation says."""

from __future__ import annotations

import subprocess

from faultkit import counting, runs
from world import World, condition, container, pod, until


def operator(bridge: World, *command: str, cluster: str = "alpha") -> str:
    """Run a PBS command as a manager of the server."""
    server = bridge.clusters[cluster].server
    done = subprocess.run(
        [server.env["PBS_EXEC"] + f"/bin/{command[0]}", *command[1:]],
        env=server.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def disrupted(bridge: World, name: str, reason: str) -> str:
    """Wait until the pod has failed as a disruption with this reason; its message."""
    failed = bridge.wait_phase(name, "Failed", timeout=90)
    assert failed["status"]["reason"] == reason
    told = condition(failed, "DisruptionTarget")
    assert (told["status"], told["reason"]) == ("True", "TerminationByKubelet")
    assert bridge.wait_event(name, reason)
    return str(failed["status"]["message"])


def test_a_held_job_is_told_and_goes_on_when_it_is_released(bridge: World) -> None:
    bridge.apply(pod("held", "echo ran", queue="stopped"))
    bridge.wait_reason("held", "PBSQueued")
    job = bridge.job_of("held")
    operator(bridge, "qhold", "-h", "o", job)
    bridge.wait_reason("held", "PBSHeld")
    assert job in bridge.wait_event("held", "PBSHeld")
    operator(bridge, "qrls", "-h", "o", job)
    bridge.wait_reason("held", "PBSQueued")
    operator(bridge, "qmove", "workq", job)
    bridge.wait_phase("held", "Succeeded")


def test_a_job_that_is_held_for_too_long_fails(bridge: World) -> None:
    fillers = bridge.clusters["beta"].keep_busy(600)
    try:
        bridge.apply(pod("held-long", "echo ran", cluster="beta"))
        bridge.wait_reason("held-long", "PBSQueued")
        job = bridge.job_of("held-long")
        operator(bridge, "qhold", "-h", "o", job, cluster="beta")
        assert "heldLimit" in disrupted(bridge, "held-long", "PBSHeld")
        until(lambda: job not in bridge.jobs("beta"), "the job is deleted")
    finally:
        operator(bridge, "qdel", *fillers, cluster="beta")


def test_a_suspended_job_is_not_ready_and_goes_on(bridge: World) -> None:
    bridge.apply(pod("suspended", "while [ ! -e /tmp/go ]; do sleep 0.1; done", restartPolicy="Always"))
    bridge.wait("suspended", lambda p: condition(p, "Ready")["status"] == "True", what="ready")
    job = bridge.job_of("suspended")
    operator(bridge, "qsig", "-s", "suspend", job)
    away = bridge.wait("suspended", lambda p: condition(p, "Ready")["status"] == "False", what="not ready")
    assert condition(away, "Ready")["reason"] == "PBSSuspended"
    assert away["status"]["phase"] == "Running"
    operator(bridge, "qsig", "-s", "resume", job)
    back = bridge.wait("suspended", lambda p: condition(p, "Ready")["status"] == "True", what="ready again")
    assert container(back)["restartCount"] == 0
    assert container(back)["containerID"] == container(away)["containerID"]
    bridge.kubectl("delete", "pod", "suspended", "--wait=false")
    bridge.wait_gone("suspended")


def test_a_requeued_job_does_not_run_twice(bridge: World) -> None:
    bridge.apply(counting(bridge, "requeued", "exec sleep 300", queue="stopped"))
    bridge.wait_reason("requeued", "PBSQueued")
    job = bridge.job_of("requeued")
    operator(bridge, "qalter", "-r", "y", job)  # against what the bridge asked for
    operator(bridge, "qmove", "workq", job)
    bridge.wait_phase("requeued", "Running")
    operator(bridge, "qrerun", job)
    assert job in disrupted(bridge, "requeued", "PBSJobRequeued")
    assert runs(bridge, "requeued") == 1


def test_a_job_that_an_operator_deletes_is_a_disruption(bridge: World) -> None:
    bridge.apply(pod("preempted", "exec sleep 300"), pod("preempted-early", "true", queue="stopped"))
    bridge.wait_phase("preempted", "Running")
    bridge.wait_reason("preempted-early", "PBSQueued")
    operator(bridge, "qdel", bridge.job_of("preempted"))
    operator(bridge, "qdel", bridge.job_of("preempted-early"))
    disrupted(bridge, "preempted", "PBSJobDeleted")
    disrupted(bridge, "preempted-early", "PBSJobDeleted")


def test_a_waiting_job_that_pbs_forgot_fails_its_pod(bridge: World) -> None:
    bridge.apply(pod("forgotten-early", "true", queue="stopped"))
    bridge.wait_reason("forgotten-early", "PBSQueued")
    job = bridge.job_of("forgotten-early")
    bridge.clusters["alpha"].server.fault("vanish", job)
    assert job in disrupted(bridge, "forgotten-early", "PBSJobVanished")
