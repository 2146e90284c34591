"""A virtual node beside real ones: others' DaemonSets, Deployments and volumes are not disturbed by it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from world import World, until, waiting_reasons

from bridge.setup import neighbours
from bridge.testbed.local_nodes import LocalNodes

Json = dict[str, Any]
GPU = {"key": "gpu", "operator": "Exists"}
N1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
PREFERRED = [{"weight": 1, "preference": {"matchExpressions": [GPU]}}]
NEAR = [{"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}]


def daemon_set(name: str, affinity: Any = None, labels: dict[str, str] | None = None) -> Json:
    """As kube-proxy, CNI and CSI agents are: it tolerates everything."""
    spec: Json = {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "pause:3.9"}]}
    if affinity is not None:
        spec["affinity"] = affinity
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    metadata = {"name": name, "namespace": "default", "labels": labels or {}}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata,
        "spec": {"selector": selector, "template": template},
    }  # fmt: skip


def required(*terms: Any) -> Json:
    return {"nodeAffinity": {neighbours.REQUIRED: {"nodeSelectorTerms": [*terms]}}}


def stored(bridge: World, thing: Json) -> Json:
    """The object as the API server would store it; nothing is stored."""
    done = bridge.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(thing))
    found: Json = json.loads(done.stdout)
    return found


@pytest.fixture
def in_force(bridge: World) -> None:
    """Policies reach the API server's own cache after a moment."""
    until(lambda: "affinity" in stored(bridge, daemon_set("probe"))["spec"]["template"]["spec"], "the policy")


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {},
        {"nodeAffinity": {}},
        {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": NEAR}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}},
        required({"matchExpressions": [GPU]}),
        required({"matchExpressions": [GPU]}, {"matchFields": [N1]}, {"matchExpressions": [GPU], "matchFields": [N1]}),
        required({"matchExpressions": [neighbours.REAL_NODE]}, {}),
    ],
)
def test_the_policy_adds_what_doctor_says_and_keeps_the_rest(bridge: World, in_force: None, affinity: Any) -> None:
    name = f"d-{uuid4().hex[:6]}"
    opted_out = {"hpc-bridge.io/daemonset": "allowed"}
    bridge.apply(daemon_set(name, affinity, opted_out))
    try:
        before = bridge.get("daemonset", name)
        assert before["spec"]["template"]["spec"].get("affinity") == affinity
        if changes := neighbours.patch(before):
            bridge.kubectl("patch", "daemonset", name, "--type=json", "-p", json.dumps(changes))
        by_hand = bridge.get("daemonset", name)["spec"]["template"]["spec"]["affinity"]
    finally:
        bridge.kubectl("delete", "daemonset", name)
    assert stored(bridge, daemon_set(name, affinity))["spec"]["template"]["spec"]["affinity"] == by_hand


@pytest.fixture
def workers(bridge: World) -> Iterator[list[str]]:
    """Three nodes that run what is bound to them."""
    tag = uuid4().hex[:6]
    with LocalNodes(bridge.control_plane, {f"w{n}-{tag}": {"cpu": "8", "memory": "8Gi"} for n in range(3)}) as local:
        yield list(local.nodes)


@pytest.mark.timeout(240)
def test_a_daemon_sets_rollout_over_real_nodes_and_ours_ends(bridge: World, in_force: None, workers: list[str]) -> None:
    """On a virtual node its pod would wait for ever, and no real node would ever be updated."""
    name = f"everywhere-{uuid4().hex[:6]}"
    bridge.apply(daemon_set(name))
    try:
        bridge.kubectl("rollout", "status", f"daemonset/{name}", "--timeout=60s")
        bridge.kubectl("set", "image", f"daemonset/{name}", "c=pause:3.10")
        bridge.kubectl("rollout", "status", f"daemonset/{name}", "--timeout=90s")
        pods = bridge.get("pods", "-l", f"app={name}")["items"]
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == sorted(workers)
        generation = bridge.get("daemonset", name)["metadata"]["generation"]
        bridge.kubectl("label", "daemonset", name, "team=net")
        assert bridge.get("daemonset", name)["metadata"]["generation"] == generation  # no pod is replaced for a label
    finally:
        bridge.kubectl("delete", "daemonset", name, "--cascade=foreground")


def test_a_deployment_that_cannot_run_makes_one_pod(bridge: World) -> None:
    """Its pods are refused (a readinessProbe). As Failed each would be replaced at once: 69 in ten seconds."""
    name = f"loop-{uuid4().hex[:6]}"
    container = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "1000"]}
    container["readinessProbe"] = {"tcpSocket": {"port": 80}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"runtimeClassName": "pbs-alpha", "containers": [container]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    bridge.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})

    def pods() -> list[Json]:
        found: list[Json] = bridge.get("pods", "-l", f"app={name}")["items"]
        return found

    try:
        until(lambda: [waiting_reasons(p) for p in pods()] == [["UnsupportedPodField"]], "one pod that waits")
        first = pods()[0]["metadata"]["name"]
        assert "readinessProbe" in bridge.wait_event(first, "UnsupportedPodField")
        bridge.restart_agent()  # which looks at it again
        until(lambda: [p["metadata"]["name"] for p in pods()] == [first], "the same pod")
        bridge.kubectl("patch", "deployment", name, "--type=json", "-p",
                       '[{"op": "remove", "path": "/spec/template/spec/containers/0/readinessProbe"}]')  # fmt: skip
        bridge.kubectl("rollout", "status", f"deployment/{name}", "--timeout=90s")
    finally:
        bridge.kubectl("delete", "deployment", name, "--cascade=foreground")


def test_a_pod_of_a_replica_set_runs_when_the_settings_say_so(bridge: World) -> None:
    """The image is mapped only after a while: the pod that waited runs, nobody makes another."""
    name = f"unmapped-{uuid4().hex[:6]}"
    container = {"name": "main", "image": "alpine:3", "command": ["/bin/sh", "-c", "exec sleep 1000"]}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"runtimeClassName": "pbs-alpha", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    bridge.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})
    before = bridge.agent.config.read_text()
    try:
        until(
            lambda: (
                [waiting_reasons(p) for p in bridge.get("pods", "-l", f"app={name}")["items"]] == [["ImageNotMapped"]]
            ),
            "one pod that waits",
        )
        uid = bridge.get("pods", "-l", f"app={name}")["items"][0]["metadata"]["uid"]
        bridge.stop_agent()
        bridge.agent.config.write_text(before.replace("busybox:*", "'*'"))
        bridge.agent.start()
        bridge.kubectl("rollout", "status", f"deployment/{name}", "--timeout=120s")
        assert [p["metadata"]["uid"] for p in bridge.get("pods", "-l", f"app={name}")["items"]] == [uid]
    finally:
        bridge.stop_agent()
        bridge.agent.config.write_text(before)
        bridge.agent.start()
        bridge.agent.wait_ready(180)
        bridge.kubectl("delete", "deployment", name, "--cascade=foreground")


def test_a_pod_that_names_the_node_but_asks_for_another_is_rejected(bridge: World) -> None:
    name = f"named-{uuid4().hex[:6]}"
    spec: Json = {"nodeName": "pbs-alpha", "nodeSelector": {"disk": "ssd"}, "restartPolicy": "Never"}
    spec["containers"] = [{"name": "main", "image": "busybox:1.36", "command": ["true"]}]
    bridge.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    rejected = bridge.wait_phase(name, "Failed")["status"]
    assert rejected["reason"] == "NodeAffinity"
    assert "containerStatuses" not in rejected


def test_who_asks_for_a_volume_on_a_cluster_is_told(bridge: World) -> None:
    """The scheduler never binds such a pod, so nobody else would say why."""

    def told(runtime_class: str | None) -> subprocess.CompletedProcess[str]:
        volume = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
        spec: Json = {"containers": [{"name": "c", "image": "busybox:1.36"}], "volumes": [volume]}
        if runtime_class is not None:
            spec["runtimeClassName"] = runtime_class
        thing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claims"}, "spec": spec}
        return bridge.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(thing))

    until(lambda: "PersistentVolumeClaims cannot be mounted" in told("pbs-alpha").stderr, "the warning")
    assert "Warning" not in told(None).stderr
