"""Opting in by a namespace's label, admission policies in force; and whether `explain` says what then happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from world import World, plain, until

from bridge.testbed.errors import TestbedError
from bridge.testbed.local_nodes import LocalNodes

Json = dict[str, Any]
SPACE, PLAIN = "explained", "unrouted"
ROUTE = "status.hpc-bridge.io/route"
RULE = {
    "apiVersion": "hpc-bridge.io/v1alpha1",
    "kind": "RoutingRule",
    "metadata": {"name": SPACE},
    "spec": {
        "match": {"namespaceSelector": {"matchLabels": {"team": SPACE}}},
        "localWait": "1s",
        "candidates": [{"cluster": "alpha"}, {"cluster": "beta", "penaltySeconds": 300}],
    },
}


@pytest.fixture(scope="module")
def world(bridge: World) -> Iterator[World]:
    """A namespace whose pods are routed by a rule and one that says nothing, and a local node of two cores."""
    labels = {"hpc-bridge.io/routing": "enabled", "team": SPACE}
    namespaces = [{"metadata": {"name": SPACE, "labels": labels}}, {"metadata": {"name": PLAIN}}]
    bridge.apply(RULE, *({"apiVersion": "v1", "kind": "Namespace"} | each for each in namespaces))
    with LocalNodes(bridge.control_plane, {"local-e": {"cpu": "2", "memory": "4Gi"}}, runs=1.0):
        until(lambda: accepted(bridge) and gated(bridge), "the rule known and the policies in force")
        yield bridge
        bridge.kubectl("delete", "namespace", SPACE, PLAIN, "--wait=false")
        bridge.kubectl("delete", "routingrule", SPACE)


def accepted(world: World) -> bool:
    conditions = world.get("routingrule", SPACE).get("status", {}).get("conditions", [])
    return any(each["type"] == "Accepted" and each["status"] == "True" for each in conditions)


def gated(world: World) -> bool:
    """Whether pods of the namespace get the gate: policies reach the API server's caches after a moment."""
    argv = ("create", "--dry-run=server", "-o", "json", "-n", SPACE, "-f", "-")
    done = world.kubectl(*argv, input=json.dumps(plain("probe", SPACE)), check=False)
    return "hpc-bridge.io/routing" in done.stdout


def explain(world: World, *args: str) -> Json:
    """`hpc-bridge explain … -o json`."""
    agent = f"--agent=127.0.0.1:{world.agent.status_port}"
    argv = [sys.executable, "-m", "bridge.cli", "explain", agent, "-o", "json", *args]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found: Json = json.loads(done.stdout)
    return found


def ended(world: World, name: str, namespace: str = SPACE) -> tuple[str, Json]:
    """(node, what the annotation says) of a pod that has run to its end."""
    found = world.wait_phase(name, "Succeeded", namespace=namespace, timeout=120)
    return found["spec"]["nodeName"], json.loads(found["metadata"].get("annotations", {}).get(ROUTE, "{}"))


def test_a_pod_goes_where_explain_said_it_would_go(world: World, tmp_path: Path) -> None:
    thing = plain("large", SPACE, cpu="12")
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(thing))
    before = explain(world, str(file))
    by_cluster = {each["cluster"]: each for each in before["candidates"]}
    assert by_cluster["alpha"]["rank"] == 1
    assert by_cluster["alpha"]["fitsEver"]
    assert by_cluster["beta"]["rank"] is None
    assert "12" in by_cluster["beta"]["refused"][0]
    assert "8" in by_cluster["beta"]["refused"][0]
    assert before["local"]["fitsEver"] is False
    world.apply(thing)
    node, recorded = ended(world, "large")
    assert node == "pbs-alpha"
    assert (recorded["to"], recorded["rule"], recorded["decision"]) == ("alpha", SPACE, "cluster")
    assert recorded["whyRule"] == before["whyRule"]
    after = explain(world, "-n", SPACE, "pod/large")
    assert after["recorded"] == recorded
    assert after["node"] == node
    assert "alpha" in world.wait_event("large", "Routed", namespace=SPACE)


def test_a_pod_that_fits_the_local_cluster_stays_there(world: World) -> None:
    world.apply(plain("small", SPACE))
    node, recorded = ended(world, "small")
    assert node == "local-e"
    assert (recorded["to"], recorded["decision"]) == ("local", "local")


def test_a_pod_that_opts_out_is_not_touched(world: World) -> None:
    out = plain("out", SPACE)
    out["metadata"]["labels"] = {"hpc-bridge.io/route": "never"}
    world.apply(out)
    assert ended(world, "out") == ("local-e", {})


def test_other_namespaces_are_not_touched(world: World) -> None:
    world.apply(plain("elsewhere", PLAIN))
    assert ended(world, "elsewhere", PLAIN) == ("local-e", {})


def test_what_was_decided_can_be_changed_by_nobody_else(world: World) -> None:
    world.apply(plain("kept", SPACE))
    _, recorded = ended(world, "kept")
    with pytest.raises(TestbedError, match="hpc-bridge alone"):
        world.kubectl("annotate", "pod", "kept", "-n", SPACE, f"{ROUTE}=mine", "--overwrite")
    assert json.loads(world.pod("kept", SPACE)["metadata"]["annotations"][ROUTE]) == recorded
