"""What cannot be done is said in the words of whoever refuses it, and harms nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from world import World, condition, container, pod, until

from bridge.testbed.control_plane import ControlPlane
from pbs_adapter.minipbs import Config, Host, install


@pytest.mark.parametrize(
    ("name", "queue", "walltime", "texts"),
    [
        ("queue-unknown", "nowhere", "60s", ["qsub: Unknown queue"]),
        ("queue-disabled", "closed", "60s", ["qsub: Queue is not enabled"]),
        (
            "walltime-over",
            "short",
            "10m",
            ["qsub: Job violates queue and/or server resource limits", "asks walltime 610s", "allows at most 120s"],
        ),
        ("fits-the-limit", "short", "60s", []),
    ],
)
def test_what_a_queue_refuses_fails_with_the_words_of_pbs(
    bridge: World, name: str, queue: str, walltime: str, texts: list[str]
) -> None:
    thing = pod(name, "true", queue=queue)
    thing["metadata"]["annotations"]["hpc-bridge.io/walltime"] = walltime
    bridge.apply(thing)
    ended = bridge.wait_phase(name, "Failed" if texts else "Succeeded")["status"]
    if not texts:
        return
    assert ended["reason"] == "PBSRejected"
    assert all(text in ended["message"] for text in texts), ended["message"]
    assert texts[0] in bridge.wait_event(name, "PBSRejected")


def test_more_than_a_queue_allows_is_refused_by_pbs(bridge: World) -> None:
    thing = pod("cores-over", "true", queue="short")
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "5"}}
    bridge.apply(thing)
    ended = bridge.wait_phase("cores-over", "Failed")["status"]
    assert ended["reason"] == "PBSRejected"
    assert "asks ncpus 5, queue short allows at most 4" in ended["message"]


@pytest.mark.parametrize(("namespace", "phase"), [("project-allowed", "Succeeded"), ("project-refused", "Failed")])
def test_a_project_that_is_not_allowed(bridge: World, namespace: str, phase: str) -> None:
    bridge.kubectl("create", "namespace", namespace)
    until(lambda: bridge.kubectl("get", "sa", "default", "-n", namespace, check=False).returncode == 0, "account")
    thing = pod("projected", "true")
    thing["metadata"]["namespace"] = namespace
    bridge.apply(thing)
    ended = bridge.wait_phase("projected", phase, namespace=namespace)["status"]
    if phase == "Failed":
        assert ended["reason"] == "PBSRejected"
        assert "qsub: project alchemy is not allowed" in ended["message"]


def test_a_limit_on_the_number_of_jobs_is_a_wait(bridge: World) -> None:
    bridge.apply(pod("first-of-one", "exec sleep 300", queue="single", terminationGracePeriodSeconds=1))
    bridge.wait_phase("first-of-one", "Running")
    bridge.apply(pod("second-of-one", "true", queue="single"))
    waiting = bridge.wait_reason("second-of-one", "PBSBacklog")
    assert "limit" in container(waiting)["state"]["waiting"]["message"]
    bridge.kubectl("delete", "pod", "first-of-one", "--wait=false")
    bridge.wait_phase("second-of-one", "Succeeded", timeout=90)


def test_a_pod_larger_than_any_host_waits_with_both_numbers_and_fails(bridge: World) -> None:
    thing = pod("too-large", "true")
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "33"}}
    before = bridge.jobs()
    bridge.apply(thing)
    text = "asks ncpus 33, the largest host has 16"
    waiting = bridge.wait_reason("too-large", "PBSUnsatisfiable")
    assert container(waiting)["state"]["waiting"]["message"] == text
    assert waiting["status"]["phase"] == "Pending"
    assert set(bridge.jobs()) <= set(before)
    assert bridge.wait_event("too-large", "PBSUnsatisfiable") == text
    failed = bridge.wait_phase("too-large", "Failed")["status"]
    assert (failed["reason"], failed["message"]) == ("PBSUnsatisfiable", text)


@pytest.fixture
def grown(bridge: World) -> Iterator[Callable[[], None]]:
    """Gives beta a host of 16 cores, where its only one has 8; at the end that is as it was."""
    cluster = bridge.clusters["beta"]
    before = Config.loads((cluster.pbs_exec / "etc/config.json").read_text())

    def become(config: Config) -> None:
        cluster.server.stop()
        install(cluster.pbs_exec, config)
        cluster.server.start()

    yield lambda: become(replace(before, hosts=(*before.hosts, Host("beta-n2", 16))))
    become(before)


def test_a_larger_host_lets_the_pod_go_on(bridge: World, grown: Callable[[], None]) -> None:
    thing = pod("grows", "true", cluster="beta")
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "12"}}
    bridge.apply(thing)
    waiting = bridge.wait_reason("grows", "PBSUnsatisfiable")
    assert container(waiting)["state"]["waiting"]["message"] == "asks ncpus 12, the largest host has 8"
    bridge.restart_agent()
    assert bridge.pod("grows")["status"]["phase"] == "Pending"
    grown()
    bridge.wait_phase("grows", "Succeeded", timeout=90)


@pytest.fixture
def misled(bridge: World) -> Iterator[str]:
    """The agent with a known_hosts that has another key for alpha; the fingerprint that alpha shows."""
    server = bridge.clusters["alpha"].sshd
    if server is None:
        pytest.skip("OpenSSH is missing: there is no host key")
    settings = yaml.safe_load(bridge.agent.config.read_text())
    other = bridge.clusters["beta"].sshd
    assert other is not None
    wrong = bridge.agent.workdir / "wrong_known_hosts"
    wrong.write_text(f"[{server.host}]:{server.port} {other.known_hosts.read_text().split(' ', 1)[1]}")
    right = bridge.agent.config.read_text()
    settings["clusters"][0]["accounts"][0]["transport"]["knownHostsFile"] = str(wrong)
    bridge.stop_agent()
    bridge.agent.config.write_text(yaml.safe_dump(settings))
    listed = subprocess.run(["ssh-keygen", "-lf", server.known_hosts], capture_output=True, text=True, check=True)
    try:
        bridge.agent.start()
        yield listed.stdout.split()[1]
    finally:
        bridge.stop_agent()
        bridge.agent.config.write_text(right)
        bridge.agent.start()
        bridge.agent.wait_ready(90)


def test_a_changed_host_key_is_refused_and_shown(bridge: World, misled: str) -> None:
    server = bridge.clusters["alpha"].sshd
    assert server is not None
    logins = server.log.read_text().count("Accepted publickey")

    def reachable(name: str) -> dict[str, Any]:
        return condition(bridge.get("node", f"pbs-{name}"), "ClusterReachable")

    until(lambda: reachable("alpha")["status"] == "False", "alpha refused", timeout=90)
    until(lambda: misled in reachable("alpha")["message"], "the fingerprint", timeout=90)
    assert "has changed, or someone is in between" in reachable("alpha")["message"]
    told = subprocess.run(
        [
            sys.executable,
            "-m",
            "bridge.cli",
            "status",
            "-o",
            "json",
            "--agent",
            f"127.0.0.1:{bridge.agent.status_port}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert misled in told.stdout
    taints = [t["key"] for t in bridge.get("node", "pbs-alpha")["spec"].get("taints", [])]
    assert "hpc-bridge.io/unreachable" in taints
    bridge.apply(pod("on-the-other", "true", cluster="beta"))
    bridge.wait_phase("on-the-other", "Succeeded")
    assert reachable("beta")["status"] == "True"
    assert server.log.read_text().count("Accepted publickey") == logins


def test_an_agent_that_starts_while_a_login_node_is_down(control_plane: ControlPlane, bridge: World) -> None:
    """The other cluster's node works; the missing one appears when its login node does."""
    server = bridge.clusters["alpha"].sshd
    if server is None:
        pytest.skip("OpenSSH is missing: there is no login node to stop")
    bridge.stop_agent()
    server.stop()
    try:
        bridge.agent.start()

        def reachable(name: str) -> str:
            return str(condition(bridge.get("node", f"pbs-{name}"), "ClusterReachable")["status"])

        until(lambda: reachable("alpha") == "False", "alpha away", timeout=90)
        until(lambda: reachable("beta") == "True", "beta there", timeout=90)
        bridge.apply(pod("not-held-up", "true", cluster="beta"))
        bridge.wait_phase("not-held-up", "Succeeded")
    finally:
        server.restart()
    until(lambda: reachable("alpha") == "True", "alpha is back", timeout=120)
    bridge.agent.wait_ready(90)


HOSTILE = ("../../kube-system/secrets/hostile", "..", "../secrets", "a/b", "a%2Fb", "hostile?watch=1", "A.b", "a\nb")
# A claim is not among them: the scheduler binds no pod whose claim does not exist.
PLACES: dict[str, Callable[[dict[str, Any], str], None]] = {
    "secret": lambda spec, name: _volume(spec, secret={"secretName": name}),
    "config-map": lambda spec, name: _volume(spec, configMap={"name": name}),
    "projected-secret": lambda spec, name: _volume(spec, projected={"sources": [{"secret": {"name": name}}]}),
    "projected-map": lambda spec, name: _volume(spec, projected={"sources": [{"configMap": {"name": name}}]}),
    "pull": lambda spec, name: spec.update(imagePullSecrets=[{"name": name}]),
    "env": lambda spec, name: _env(spec, valueFrom={"secretKeyRef": {"name": name, "key": "password"}}),
    "env-map": lambda spec, name: _env(spec, valueFrom={"configMapKeyRef": {"name": name, "key": "password"}}),
    "env-from": lambda spec, name: spec["containers"][0].update(envFrom=[{"secretRef": {"name": name}}]),
    "account": lambda spec, name: spec.update(serviceAccountName=name),
    "working-dir": lambda spec, name: spec["containers"][0].update(workingDir=f"/tmp\0--bind\0/\0/{name}"),
    "message-path": lambda spec, name: spec["containers"][0].update(terminationMessagePath=f"/x\0--bind\0/\0/{name}"),
}


def _volume(spec: dict[str, Any], **source: Any) -> None:
    spec["volumes"] = [{"name": "v", **source}]
    spec["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]


def _env(spec: dict[str, Any], **source: Any) -> None:
    spec["containers"][0]["env"] = [{"name": "A", **source}]


def test_names_as_hostile_as_the_api_server_lets_through_are_refused(bridge: World) -> None:
    """Each that it takes fails before anything is read or submitted; the secret of another namespace stays there."""
    bridge.kubectl("-n", "kube-system", "create", "secret", "generic", "hostile", "--from-literal=password=V1CTIM")
    taken = []
    for place, put in PLACES.items():
        for number, name in enumerate(HOSTILE):
            thing = pod(f"hostile-{place}-{number}", "grep -r . /v; env; ls /")
            put(thing["spec"], name)
            done = bridge.kubectl("create", "-f", "-", input=json.dumps(thing), check=False)
            if done.returncode == 0:
                taken.append(thing["metadata"]["name"])
    assert {name.rsplit("-", 1)[0] for name in taken} >= {"hostile-secret", "hostile-config-map", "hostile-working-dir"}
    for name in taken:
        ended = bridge.wait_phase(name, "Failed")["status"]
        assert ended["reason"] == "UnsupportedPodField", (name, ended)
        assert not any(reason == "PBSSubmitted" for reason, _ in bridge.events(name)), name
    bridge.kubectl("delete", "pods", "--wait=false", *taken)
    bridge.kubectl("-n", "kube-system", "delete", "secret", "hostile")
