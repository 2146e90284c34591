"""Many pods: everything around them restarts meanwhile, and the login host's few connections are enough.

HPC_BRIDGE_TEST_FULL=1 deletes 300 waiting pods rather than 32: each takes one of the connections that are budgeted.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter

import pytest
from faultkit import await_phases, history, phases, settings_of_alpha
from world import Json, World, pod, shared, until, waiting_reasons

FULL = bool(os.environ.get("HPC_BRIDGE_TEST_FULL"))
MANY = 200
WAITING = 300 if FULL else 32
BUDGET = 100  # connections a minute that the login host has
OURS = 70  # those that the settings allow us


def labelled(thing: Json, label: str) -> Json:
    """For lists."""
    thing["metadata"]["labels"] = {"test": label}
    return thing


def ended(bridge: World, label: str) -> int:
    """How many pods have ended."""
    return sum(phase in ("Succeeded", "Failed") for phase in phases(bridge, "-l", f"test={label}").values())


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_a_small_budget_of_connections_is_kept(bridge: World) -> None:
    """Another user looks every few seconds meanwhile, and never has to wait for a connection."""
    alpha = bridge.clusters["alpha"]
    before = alpha.server.stats()["last_minute"]
    since, peak = time.time(), 0

    def look() -> bool:
        nonlocal peak
        qstat = [alpha.pbs_exec / "bin" / "qstat"]
        subprocess.run(qstat, env=alpha.server.env, stdout=subprocess.DEVNULL, check=True, timeout=60)
        peak = max(peak, sum(at >= since for at in alpha.server.stats()["last_minute"]))
        time.sleep(4)
        return True

    def queued() -> int:
        pods = bridge.get("pods", "-l", "test=few")["items"]
        return sum("PBSQueued" in waiting_reasons(each) for each in pods)

    with settings_of_alpha(bridge, connectionsPerMinute=OURS, poll=30, census=60):
        alpha.server.fault("connection-budget", BUDGET + len(before))
        try:
            bridge.apply(*(labelled(pod(f"few-{n}", "true", queue="stopped"), "few") for n in range(WAITING)))
            until(lambda: look() and queued() == WAITING, "all wait in PBS", 300)
            bridge.kubectl("delete", "pods", "-l", "test=few", "--wait=false")
            until(lambda: look() and not phases(bridge, "-l", "test=few"), "all are gone", 240 + 90 * WAITING / OURS)
        finally:
            alpha.server.fault("connection-budget", "off")
        assert not bridge.jobs()
        assert peak < BUDGET
        assert alpha.server.stats()["refused"] == 0


@pytest.mark.timeout(600)
def test_everything_restarts_in_the_middle_of_200_pods(bridge: World) -> None:
    """Each pod leaves a line in a file when it runs: none may be missing and none may be there twice."""
    exits = {f"many-{number}": number % 4 == 3 for number in range(MANY)}
    things = []
    for number, (name, fails) in enumerate(exits.items()):
        cluster = "beta" if number % 8 == 7 else "alpha"
        thing = labelled(pod(name, f"echo {name} >> /log/many.runs; exit {3 * fails}", cluster=cluster), "many")
        home = str(shared(bridge.clusters[cluster]))
        thing["spec"]["volumes"] = [{"name": "log", "hostPath": {"path": home}}]
        thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "log", "mountPath": "/log"}]
        things.append(thing)
    bridge.apply(*things)
    alpha = bridge.clusters["alpha"]
    assert alpha.sshd is not None
    until(lambda: ended(bridge, "many") >= MANY // 10, "some have ended", 180)
    alpha.server.stop()
    alpha.server.start()
    until(lambda: ended(bridge, "many") >= MANY // 5, "more have ended", 180)
    bridge.control_plane.restart_apiserver()
    until(lambda: ended(bridge, "many") >= MANY // 3, "still more have ended", 180)
    alpha.sshd.restart()
    wanted = {name: "Failed" if fails else "Succeeded" for name, fails in exits.items()}
    await_phases(bridge, wanted, "-l", "test=many", timeout=300)
    pods = bridge.get("pods", "-l", "test=many")["items"]
    codes = {p["metadata"]["name"]: p["status"]["containerStatuses"][0] for p in pods}
    assert {name: c["state"]["terminated"]["exitCode"] for name, c in codes.items()} == {
        name: 3 * fails for name, fails in exits.items()
    }
    assert {c["restartCount"] for c in codes.values()} == {0}
    jobs = history(bridge, "alpha") | history(bridge, "beta")
    assert {p["metadata"]["name"]: len(jobs[p["metadata"]["uid"]]) for p in pods} == dict.fromkeys(exits, 1)
    ran = [line for each in bridge.clusters.values() for line in (shared(each) / "many.runs").read_text().split()]
    assert Counter(ran) == Counter(exits.keys())
    assert not [job for name in bridge.clusters for job in bridge.jobs(name)]
    bridge.kubectl("delete", "pods", "-l", "test=many", "--wait=false")
    until(lambda: not phases(bridge, "-l", "test=many"), "all are gone", 120)
