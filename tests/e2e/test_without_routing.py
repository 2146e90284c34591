"""An agent that may act as its nodes and do nothing else: pods run as ever, and nothing is left of other rights."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from world import World, condition, pod, until

from bridge.api import names
from bridge.testbed.agent import NAMESPACE, SERVICE_ACCOUNT, Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import ALPHA, PbsTestCluster

AGENT = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A control plane without deploy/routing."""
    with ControlPlane() as plane, PbsTestCluster(ALPHA) as alpha:
        changes = {"images": [{"image": "busybox:*"}], "poll": 3, "lostAfter": 3}
        agent = Agent(
            plane, [alpha], tmp_path_factory.mktemp("agent"), agent={"sweep": 4, "leaseDuration": 6},
            changes={"alpha": changes}, routing=False,
        )  # fmt: skip
        agent.start()
        try:
            agent.wait_ready(120)
            yield World(plane, {"alpha": alpha}, agent)
        finally:
            agent.stop()


def may(world: World, verb: str, resource: str) -> bool:
    asked = world.kubectl("auth", "can-i", verb, resource, "--all-namespaces", f"--as={AGENT}", check=False)
    return asked.stdout.strip() == "yes"


@pytest.mark.parametrize("resource", ["pods", "nodes", "secrets", "configmaps", "events", "namespaces"])
def test_the_agents_own_identity_may_nothing(world: World, resource: str) -> None:
    assert [verb for verb in ("get", "list", "watch", "create", "patch", "delete") if may(world, verb, resource)] == []


def test_a_pod_runs_with_what_it_names(world: World) -> None:
    world.kubectl("create", "secret", "generic", "named", "--from-literal=word=open-sesame")
    thing = pod("alone", "cat /s/word; sleep 2")
    thing["spec"]["volumes"] = [{"name": "s", "secret": {"secretName": "named"}}]
    thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "s", "mountPath": "/s"}]
    world.apply(thing)
    ended = world.wait_phase("alone", "Succeeded")
    assert world.logs("alone") == "open-sesame"
    assert ended["metadata"]["annotations"][names.SUBMITTED] == ended["metadata"]["uid"]
    assert ended["metadata"]["generation"] == 1
    assert "PBSSubmitted" in [reason for reason, _ in world.events("alone")]
    world.kubectl("delete", "pod", "alone", "--wait=false")
    world.wait_gone("alone")


def test_a_job_whose_pod_is_gone_is_ended(world: World) -> None:
    world.apply(pod("orphan", "sleep 600"))
    world.wait_phase("orphan", "Running")
    job = world.job_of("orphan")
    world.stop_agent()
    world.kubectl("delete", "pod", "orphan", "--force", "--grace-period=0")
    world.agent.start()
    until(lambda: job not in world.jobs(), "the sweep ended it")


def test_status_and_explain_say_that_nothing_is_routed(world: World) -> None:
    report = world.agent.report()
    assert report is not None
    assert "switched off" in report["routing"]
    assert condition(world.get("node", "pbs-alpha"), "Ready")["status"] == "True"


def test_rights_that_are_missing_are_told_and_harm_no_pod(world: World) -> None:
    """Routing is asked for and not allowed; once it is, the agent routes without a restart (it looks once a minute)."""
    settings = yaml.safe_load(world.agent.config.read_text())
    world.agent.config.write_text(yaml.safe_dump(settings | {"routing": {"enabled": True}}))
    world.restart_agent()

    def told() -> str:
        return str((world.agent.report() or {}).get("routing", ""))

    until(lambda: "nothing is routed" in told(), "told")
    assert "list, watch, patch pods" in told()
    assert "deploy/routing" in told()
    log = [line for line in world.agent.log.read_text().splitlines() if "routing.not_allowed" in line]
    assert len(log) == 1
    world.apply(pod("meanwhile", "echo ran"))
    world.wait_phase("meanwhile", "Succeeded")
    assert json.loads(world.kubectl("get", "pods", "-o", "json").stdout)["items"]
