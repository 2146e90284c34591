"""The agent stops, is killed, comes back (checks 6, 22 and 29 of a kubelet): nothing runs twice, nothing is lost."""

from __future__ import annotations

from world import World, condition, container, pod, until


def test_running_and_ended_pods_survive_a_restart(bridge: World) -> None:
    bridge.apply(
        pod("survivor", "echo up; sleep 300"), pod("ended-before", "exit 5"), pod("ends-meanwhile", "sleep 6; exit 0")
    )
    survivor = bridge.wait_phase("survivor", "Running")
    ended = bridge.wait_phase("ended-before", "Failed")
    bridge.wait_phase("ends-meanwhile", "Running")
    jobs = {name: bridge.job_of(name) for name in ("survivor", "ended-before", "ends-meanwhile")}
    assert survivor["status"]["hostIPs"] == [{"ip": bridge.agent.address}]
    bridge.restart_agent(kill=True)
    bridge.wait_phase("ends-meanwhile", "Succeeded")
    # The API server merges hostIPs by address and refuses two: the agent has another one since its start.
    after = bridge.wait("survivor", lambda p: p["status"]["hostIP"] == bridge.agent.address, what="at the new address")
    assert after["status"]["hostIPs"] == [{"ip": bridge.agent.address}]
    assert after["status"]["hostIPs"] != survivor["status"]["hostIPs"]
    assert after["metadata"]["uid"] == survivor["metadata"]["uid"]
    assert (after["status"]["phase"], container(after)["restartCount"]) == ("Running", 0)
    assert container(after)["containerID"] == container(survivor)["containerID"]
    assert bridge.pod("ended-before")["status"] == ended["status"]
    assert {name: bridge.job_of(name) for name in jobs} == jobs
    assert bridge.logs("survivor") == "up\n"
    bridge.kubectl("delete", "pod", "survivor", "--wait=false")
    bridge.wait_gone("survivor")


def test_nodes_of_a_dead_agent_become_not_ready_and_recover(bridge: World) -> None:
    """Past the lifecycle controller's patience: the pod must be Ready=True again, and nobody has evicted it."""
    bridge.apply(pod("patient", "sleep 300"))
    before = bridge.wait_phase("patient", "Running")
    bridge.wait("patient", lambda p: condition(p, "Ready")["status"] == "True", what="ready")
    bridge.stop_agent(kill=True)

    def ready() -> str:
        return str(condition(bridge.get("node", "pbs-alpha"), "Ready")["status"])

    until(lambda: ready() == "Unknown", "NotReady", timeout=120)
    assert condition(bridge.get("node", "pbs-alpha"), "Ready")["reason"] == "NodeStatusUnknown"
    until(lambda: condition(bridge.pod("patient"), "Ready")["status"] == "False", "pod not ready", timeout=60)
    bridge.restart_agent()
    until(lambda: ready() == "True", "Ready again")
    after = bridge.wait("patient", lambda p: condition(p, "Ready")["status"] == "True", what="ready again")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert container(after)["restartCount"] == 0
    assert not after["metadata"].get("deletionTimestamp")
    bridge.kubectl("delete", "pod", "patient", "--wait=false")
    bridge.wait_gone("patient")


def test_a_cluster_that_is_given_another_name_keeps_its_jobs(bridge: World) -> None:
    """They still have pods; a sweep that knew the pods of its own nodes only would end them after two looks."""
    bridge.apply(pod("left-behind", "sleep 300"))
    bridge.wait_phase("left-behind", "Running")
    job, written = bridge.job_of("left-behind"), bridge.agent.config.read_text()
    selector, tolerations = {"hpc-bridge.io/cluster": "renamed"}, [{"operator": "Exists"}]
    nobodys = pod("nobodys", "exec sleep 300", nodeSelector=selector, tolerations=tolerations)
    del nobodys["spec"]["runtimeClassName"]
    bridge.stop_agent()
    bridge.agent.config.write_text(written.replace("name: alpha\n", "name: renamed\n", 1))
    try:
        bridge.restart_agent()
        bridge.apply(nobodys)
        bridge.wait_phase("nobodys", "Running")
        orphan = bridge.job_of("nobodys")
        bridge.stop_agent()
        bridge.kubectl("delete", "pod", "nobodys", "--force", "--grace-period=0")
        bridge.restart_agent()
        until(lambda: orphan not in bridge.jobs(), "the sweep ends the job that really has no pod")
        assert job in bridge.jobs()
        assert bridge.pod("left-behind")["status"]["phase"] == "Running"
    finally:
        bridge.stop_agent()
        bridge.agent.config.write_text(written)
        bridge.restart_agent()
        bridge.kubectl("delete", "node", "pbs-renamed")
    bridge.wait("left-behind", lambda p: condition(p, "Ready")["status"] == "True", what="ready")
    bridge.kubectl("delete", "pod", "left-behind", "--wait=false")
    bridge.wait_gone("left-behind")


def test_a_job_that_pbs_forgot_fails_its_pod(bridge: World) -> None:
    """Killed with everything it had, and unknown to PBS: not running for ever, and not a success."""
    bridge.apply(pod("forgotten", "exec sleep 300"))
    bridge.wait_phase("forgotten", "Running")
    job = bridge.job_of("forgotten")
    bridge.clusters["alpha"].server.fault("vanish", job)
    failed = bridge.wait_phase("forgotten", "Failed", timeout=90)
    assert failed["status"]["reason"] == "PBSJobVanished"
    assert job in failed["status"]["message"]
    assert "PBSJobVanished" in [reason for reason, _ in bridge.events("forgotten")]
    assert condition(failed, "DisruptionTarget")["status"] == "True"


def test_the_same_jobs_status_never_changes_after_its_end(bridge: World) -> None:
    bridge.apply(pod("final", "echo ok"))
    final = bridge.wait_phase("final", "Succeeded")
    uid = final["metadata"]["uid"]
    forged = '{"version": 1, "phase": "Ended", "result": "Failed", "containers": {}}'
    directory = bridge.directory(uid)
    done = bridge.clusters["alpha"].run(
        f"printf %s '{forged}' > {directory}/status.json && touch {directory}/../../dirty/{uid}"
    )
    assert done.returncode == 0
    bridge.apply(pod("final-after", "true"))  # a pod that ends later has been seen: so has the forged file
    bridge.wait_phase("final-after", "Succeeded")
    bridge.restart_agent()
    assert bridge.pod("final")["status"] == final["status"]
