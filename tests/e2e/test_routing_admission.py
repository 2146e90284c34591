"""The gate and its exceptions, the guard of status annotations, what the API server refuses of rules: all real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from waiting import kubectl, until

from bridge.api import names
from bridge.kube import Json, errors, paths
from bridge.kube.client import KubeClient, connect
from bridge.testbed.agent import NAMESPACE, SERVICE_ACCOUNT, apply_manifests
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.errors import TestbedError

AGENT = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
GATED = [{"name": names.GATE}]
RULES = "/apis/hpc-bridge.io/v1alpha1/routingrules"
CAN = {names.ROUTE: "can"}
DAEMON = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "0d1f5e1c-0000-4000-8000-000000000000"}


def pod(labels: dict[str, str] | None = None, *, owner: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"generateName": "a-", "labels": labels or {}}
    if owner:
        metadata["ownerReferences"] = [owner]
    container = {"name": "main", "image": "busybox:1.36"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


async def made(control_plane: ControlPlane, namespace: str, thing: Json) -> Json:
    """The object as the API server would store it; nothing is stored."""
    argv = ("create", "--dry-run=server", "-o", "json", "-n", namespace, "-f", "-")
    found: Json = json.loads(await kubectl(control_plane, *argv, input=json.dumps(thing)))
    return found


async def gates(control_plane: ControlPlane, namespace: str, thing: Json) -> list[Json]:
    spec = (await made(control_plane, namespace, thing))["spec"]
    found: list[Json] = spec.get("schedulingGates", [])
    return found


@pytest.fixture(scope="module")
def deployed(control_plane: ControlPlane) -> ControlPlane:
    """A control plane with the manifests of deploy/ applied."""
    apply_manifests(control_plane)
    return control_plane


@pytest.fixture
async def admin(deployed: ControlPlane) -> AsyncIterator[KubeClient]:
    async with connect(str(deployed.admin_kubeconfig)) as client:
        yield client


@pytest.fixture
async def agent(deployed: ControlPlane, tmp_path: Path) -> AsyncIterator[KubeClient]:
    path = deployed.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT, tmp_path / "agent.kubeconfig")
    async with connect(str(path)) as client:
        yield client


@pytest.fixture(scope="module")
def namespaces(deployed: ControlPlane) -> Iterator[dict[str, str]]:
    """One namespace whose pods are all routed, and one that says nothing; both policies are in force."""
    found = {kind: f"{kind}-{uuid4().hex[:8]}" for kind in ("enabled", "plain")}
    for name in found.values():
        deployed.kubectl("create", "namespace", name)
    deployed.kubectl("label", "namespace", found["enabled"], f"{names.ROUTING_LABEL}=enabled")

    async def in_force() -> bool:
        """Policies, and what selects namespaces, reach the API server's own caches after a moment."""
        try:
            if names.JOB_ID in (await made(deployed, found["plain"], marked(pod())))["metadata"].get("annotations", {}):
                return False
            return await gates(deployed, found["enabled"], pod()) == GATED
        except TestbedError:  # the default ServiceAccount is missing
            return False

    asyncio.run(until(in_force))
    yield found
    deployed.kubectl("delete", "namespace", *found.values(), "--wait=false")


def marked(thing: Json) -> Json:
    thing["metadata"]["annotations"] = {names.JOB_ID: "1.alpha"}
    return thing


@pytest.mark.parametrize(
    ("where", "thing"),
    [
        ("enabled", pod()),
        ("enabled", pod({"app": "x"})),
        ("enabled", pod({names.ROUTE: "can"})),
        ("enabled", pod({names.ROUTE: "perhaps"})),
        ("plain", pod({names.ROUTE: "can"})),
        ("plain", pod({names.ROUTE: "must"})),
        ("plain", pod({names.TRANSFER: "can"})),
        ("plain", pod({names.TRANSFER: "must"})),
        ("plain", pod({names.TRANSFER: "cooperative"})),
        ("plain", pod({names.ROUTE: "must", names.TRANSFER: "can"})),
        ("plain", pod(CAN, schedulingGates=GATED)),
        ("plain", pod(CAN, owner={**DAEMON, "kind": "ReplicaSet"})),
        ("plain", pod(CAN, owner={**DAEMON, "apiVersion": "example.org/v1"})),
    ],
)
async def test_gated(deployed: ControlPlane, namespaces: dict[str, str], where: str, thing: Json) -> None:
    assert await gates(deployed, namespaces[where], thing) == GATED


@pytest.mark.parametrize(
    ("where", "thing"),
    [
        ("plain", pod()),
        ("plain", pod({names.ROUTE: "never"})),
        ("plain", pod({names.ROUTE: "perhaps"})),
        ("plain", pod({names.TRANSFER: "perhaps"})),
        ("plain", pod({names.ROUTE: "never", names.TRANSFER: "must"})),
        ("plain", pod(CAN, nodeName="n1")),
        ("plain", pod(CAN, owner=DAEMON)),
        ("enabled", pod({names.ROUTE: "never"})),
        ("enabled", pod(nodeName="n1")),
        ("enabled", pod(owner=DAEMON)),
        ("kube-system", pod(CAN)),
        (NAMESPACE, pod({names.TRANSFER: "must"})),
    ],
)
async def test_left_alone(deployed: ControlPlane, namespaces: dict[str, str], where: str, thing: Json) -> None:
    if where == NAMESPACE:  # its Pod Security level wants more of a pod than these tests do
        strict = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
        strict["seccompProfile"] = {"type": "RuntimeDefault"}
        thing["spec"]["containers"][0]["securityContext"] = strict
    assert await gates(deployed, namespaces.get(where, where), thing) == []


@pytest.mark.parametrize("namespace", ["kube-system", NAMESPACE])
async def test_labelling_a_system_namespace_gates_nothing(
    deployed: ControlPlane, admin: KubeClient, namespaces: dict[str, str], namespace: str
) -> None:
    """Pods of a Deployment there must start whatever an admin's wildcard labels."""
    await admin.patch(paths.namespace(namespace), {"metadata": {"labels": {names.ROUTING_LABEL: "enabled"}}})
    try:
        await test_left_alone(deployed, namespaces, namespace, pod())
    finally:
        await admin.patch(paths.namespace(namespace), {"metadata": {"labels": {names.ROUTING_LABEL: None}}})


async def test_gates_of_others_stay(deployed: ControlPlane, namespaces: dict[str, str]) -> None:
    others = [{"name": "kueue.x-k8s.io/admission"}]
    found = await gates(deployed, namespaces["enabled"], pod(schedulingGates=others))
    assert sorted(gate["name"] for gate in found) == [names.GATE, "kueue.x-k8s.io/admission"]


@pytest.mark.parametrize("in_template", [{}, {names.TRANSFER: "must"}])
async def test_pods_of_jobs_have_the_jobs_hpctransfer(
    admin: KubeClient, namespaces: dict[str, str], in_template: dict[str, str]
) -> None:
    """k8shpc's users label the Job; the template's own label is more specific."""
    name = f"j-{uuid4().hex[:8]}"
    template = pod(in_template | {"app": name}, restartPolicy="Never")
    metadata = {"name": name, "labels": {names.TRANSFER: "can"}}
    body = {"metadata": metadata, "spec": {"template": {"metadata": template["metadata"], "spec": template["spec"]}}}
    await admin.create(f"/apis/batch/v1/namespaces/{namespaces['plain']}/jobs", body)
    found: list[Json] = []

    async def started() -> bool:
        found[:] = (await admin.list(paths.pods(namespaces["plain"]), label_selector=f"app={name}"))[0]
        return bool(found)

    await until(started)
    assert found[0]["metadata"]["labels"][names.TRANSFER] == in_template.get(names.TRANSFER, "can")
    assert found[0]["spec"]["schedulingGates"] == GATED


async def test_a_gated_pod_waits_and_the_agent_opens_the_gate(
    admin: KubeClient, agent: KubeClient, namespaces: dict[str, str]
) -> None:
    """With its rights and the policies in force. A second gate, and a selector that no node has, keep a router off."""
    waiting = pod(CAN, schedulingGates=[{"name": "example.org/second"}])
    name = (await admin.create(paths.pods(namespaces["plain"]), waiting))["metadata"]["name"]
    where = paths.pod(namespaces["plain"], name)

    async def condition() -> str:
        conditions = (await admin.get(where)).get("status", {}).get("conditions", [])
        return next((c.get("reason", "") for c in conditions if c["type"] == "PodScheduled"), "")

    async def shows(reason: str) -> bool:
        return await condition() == reason

    await until(lambda: shows("SchedulingGated"))
    toleration = {"key": names.CLUSTER_TAINT, "operator": "Equal", "value": "alpha", "effect": "NoSchedule"}
    patched = await agent.patch(
        where,
        [
            {"op": "test", "path": "/spec/schedulingGates/1", "value": GATED[0]},
            {"op": "remove", "path": "/spec/schedulingGates/1"},
            {"op": "add", "path": "/spec/nodeSelector", "value": {names.CLUSTER_LABEL: "nowhere"}},
            {"op": "add", "path": "/spec/tolerations/-", "value": toleration},
            {"op": "add", "path": "/metadata/annotations", "value": {names.ROUTED: "{}"}},
        ],
        kind="json",
    )
    assert patched["spec"]["schedulingGates"] == [{"name": "example.org/second"}]
    await admin.patch(where, [{"op": "remove", "path": "/spec/schedulingGates"}], kind="json")
    assert patched["metadata"]["annotations"] == {names.ROUTED: "{}"}
    await until(lambda: shows("Unschedulable"))


@pytest.mark.parametrize("place", ["annotations", "labels"])
async def test_nobody_else_writes_what_the_bridge_writes(
    admin: KubeClient, agent: KubeClient, namespaces: dict[str, str], place: str
) -> None:
    collection = paths.pods(namespaces["plain"])
    forged = pod()
    forged["metadata"][place] = {names.JOB_ID: "1", "example.org/theirs": "x"}
    copied = await admin.create(collection, forged)  # as kubectl debug --copy-to and backups make them
    assert copied["metadata"][place] == {"example.org/theirs": "x"}
    name = (await admin.create(collection, pod()))["metadata"]["name"]
    where = paths.pod(namespaces["plain"], name)

    def change(value: str | None) -> Json:
        return {"metadata": {place: {names.JOB_ID: value}}}

    for path in (where, f"{where}/status"):
        with pytest.raises(errors.Forbidden, match=r"written by hpc-bridge alone"):
            await admin.patch(path, change("1"))
    assert (await agent.patch(where, change("1")))["metadata"][place] == {names.JOB_ID: "1"}
    with pytest.raises(errors.Forbidden, match=r"written by hpc-bridge alone"):
        await admin.patch(where, change("2"))
    theirs = await admin.patch(where, {"metadata": {place: {"example.org/mine": "x"}}})
    assert theirs["metadata"][place] == {names.JOB_ID: "1", "example.org/mine": "x"}
    await admin.delete(where, grace=0)


async def test_a_plain_update_keeps_what_the_bridge_wrote(
    deployed: ControlPlane, admin: KubeClient, agent: KubeClient, namespaces: dict[str, str]
) -> None:
    """Clients that send a whole object back have often left out what they do not know."""
    made_one = await admin.create(paths.pods(namespaces["plain"]), pod())
    where = paths.pod(namespaces["plain"], made_one["metadata"]["name"])
    await agent.patch(where, {"metadata": {"annotations": {names.JOB_ID: "1", names.CLUSTER: "alpha"}}})
    for sent in (None, {}, {"example.org/mine": "x"}, {names.CLUSTER: "alpha"}):
        whole = await admin.get(where)
        del whole["metadata"]["resourceVersion"]
        whole["metadata"].pop("annotations")
        if sent is not None:
            whole["metadata"]["annotations"] = sent
        code, answer = deployed.api("PUT", where, whole)
        assert code == 200, answer
        kept = {names.JOB_ID: "1", names.CLUSTER: "alpha"}
        assert answer["metadata"]["annotations"] == kept | (sent or {})
    await admin.delete(where, grace=0)


DEFAULTS = {"node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300}
HERE = {"key": names.CLUSTER_TAINT, "operator": "Exists"}


def limit(seconds: int, **more: str) -> Json:
    key = "node.kubernetes.io/not-ready"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds, **more}


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ([], DEFAULTS),  # not for a virtual node
        ([HERE], {}),
        ([limit(30), HERE], {"node.kubernetes.io/not-ready": 30}),  # somebody wrote it
        (
            [*[limit(30, key=f"example.org/k{n}") for n in range(20)], HERE],
            {f"example.org/k{n}": 30 for n in range(20)},
        ),
        ([{"key": "a"}, limit(300), HERE], {}),  # as Kubernetes writes it, and not to be told apart
    ],
)
async def test_pods_for_virtual_nodes_stay_there(
    deployed: ControlPlane, namespaces: dict[str, str], given: list[Json], limits: dict[str, int]
) -> None:
    found = await made(deployed, namespaces["plain"], pod(tolerations=given))
    every = found["spec"]["tolerations"]
    assert {t["key"]: t["tolerationSeconds"] for t in every if "tolerationSeconds" in t} == limits
    assert {t["key"] for t in every} >= {t["key"] for t in given}


async def test_a_binding_brings_no_status_annotation(admin: KubeClient, namespaces: dict[str, str]) -> None:
    """What places pods may set annotations in passing: a Binding's become the pod's."""
    name = (await admin.create(paths.pods(namespaces["plain"]), pod(schedulerName="mine")))["metadata"]["name"]
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
    where = paths.pod(namespaces["plain"], name) + "/binding"
    with pytest.raises(errors.Forbidden, match=r"written by hpc-bridge alone"):
        await admin.create(where, marked({**binding, "metadata": {"name": name}}))
    await admin.create(where, binding)


GENOMICS = yaml.safe_load("""
apiVersion: hpc-bridge.io/v1alpha1
kind: RoutingRule
metadata: {name: genomics}
spec:
  match: {namespaceSelector: {matchLabels: {team: genomics}}, minRequests: {cpu: "4"}}
  mode: can
  localWait: 2m
  objective: earliestCompletion
  quantile: 0.8
  numa: prefer
  maxSlowdown: 1.3
  candidates:
  - {cluster: alpha, queue: workq}
  - {cluster: beta, penaltySeconds: 300}
""")


def rule(spec: Json) -> Json:
    head = {"apiVersion": GENOMICS["apiVersion"], "kind": "RoutingRule", "metadata": {"generateName": "r-"}}
    return {**head, "spec": spec}


async def test_a_rule_its_columns_and_its_status(deployed: ControlPlane, admin: KubeClient, agent: KubeClient) -> None:
    await kubectl(deployed, "apply", "-f", "-", input=json.dumps(GENOMICS))
    where = f"{RULES}/genomics"
    time = "2026-01-01T00:00:00Z"
    condition = {"type": "Accepted", "status": "False", "reason": "UnknownQueue", "message": "m"}
    status = {
        "candidates": "alpha/workq, beta",
        "routed": 7,
        "conditions": [{**condition, "lastTransitionTime": time, "observedGeneration": 1}],
    }
    try:
        await agent.patch(f"{where}/status", {"status": status}, kind="merge")
        assert (await admin.get(where))["status"] == status
        told = (await kubectl(deployed, "get", "routingrules")).splitlines()
        assert told[0].split("  ")[0] == "NAME"
        assert [column.strip() for column in told[0].split("  ") if column.strip()] == [
            *("NAME", "MODE", "OBJECTIVE", "CANDIDATES", "ROUTED (1H)", "ACCEPTED", "AGE")
        ]
        assert told[1].split()[:7] == ["genomics", "can", "earliestCompletion", "alpha/workq,", "beta", "7", "False"]
        with pytest.raises(errors.Forbidden):
            await agent.patch(where, {"spec": {"mode": "must"}}, kind="merge")
    finally:
        await admin.delete(where)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"match": {"minRequests": {"cpu": "-4"}}}, "a quantity of zero or more"),
        ({"match": {"minRequests": {"cpu": -4}}}, "a quantity of zero or more"),
        ({"match": {"maxRequests": {"memory": "9E"}}}, "at most 1Ei"),
        ({"match": {"maxRequests": {"memory": 10**18 * 5}}}, "at most 1Ei"),
        ({"match": {"minRequests": {"cpu": "lots"}}}, "a quantity of zero or more"),
        ({"match": {"minRequests": {"cpu": ""}}}, "a quantity of zero or more"),
        ({"match": {"minRequests": {"cpu": "1e999"}}}, "a quantity of zero or more"),
        ({"match": {"minRequests": {"cpu": 1.5}}}, "must be of type integer,string"),
        ({"match": {"minRequests": {"cpu": "8"}, "maxRequests": {"cpu": "4000m"}}}, "make minRequests the smaller"),
        ({"match": {"namespaces": ["a", "kube-system"]}}, "must never wait for the bridge"),
        (
            {"match": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hpc-bridge"}}}},
            "must never wait for the bridge",
        ),
        (
            {
                "match": {
                    "namespaceSelector": {
                        "matchExpressions": [
                            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["kube-system"]}
                        ]
                    }
                }
            },
            "must never wait for the bridge",
        ),
        ({"match": {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}, "need values"),
        ({"localWait": "2x"}, "must be a duration"),
        ({"localWait": -1}, "must be a duration"),
        ({"startWithin": "0s"}, "more than zero"),
        ({"quantile": 1.5}, "less than or equal to 0.99"),
        ({"maxSlowdown": 0.5}, "greater than or equal to 1"),
        ({"mode": "may"}, 'supported values: "can", "must", "never"'),
        ({"idleCap": 0}, "greater than or equal to 1"),
        ({"candidates": [{"queue": "workq"}]}, "Required value"),
        ({"candidates": [{"cluster": "alpha", "weight": -1}]}, "greater than or equal to"),
        ({"candidates": [{"cluster": "alpha", "queue": "work q; rm"}]}, "should match"),
        ({"candidates": [{"cluster": "alpha"}, {"cluster": "alpha"}]}, "may be there once"),
        ({"candidate": []}, 'unknown field "spec.candidate"'),
    ],
)
async def test_refused_at_apply(deployed: ControlPlane, spec: Json, said: str) -> None:
    with pytest.raises(TestbedError) as refused:
        await made(deployed, "default", rule(spec))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"match": {"minRequests": {"cpu": 4, "nvidia.com/gpu": "1"}, "maxRequests": {"cpu": "16", "memory": "1.5Gi"}}},
        {"localWait": 0, "startWithin": "00:03:00", "onUnavailable": "wait"},
        {"candidates": [{"cluster": "alpha"}, {"cluster": "alpha", "queue": "long"}, {"cluster": "beta"}]},
        {"match": {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}},
    ],
)
async def test_accepted_at_apply(deployed: ControlPlane, spec: Json) -> None:
    assert (await made(deployed, "default", rule(spec)))["spec"]["mode"] == "can"


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("watch", "routingrules.hpc-bridge.io", True),
        ("list", "namespaces", True),
        ("patch", "routingrules.hpc-bridge.io/status", True),
        ("patch", "configmaps/hpc-bridge-waits", True),
        ("patch", "configmaps/hpc-bridge", False),
        ("list", "secrets", False),
        ("patch", "routingrules.hpc-bridge.io", False),
        ("patch", "namespaces", False),
        ("create", "pods", False),
        ("create", "pods/binding", False),
    ],
)
async def test_rights(deployed: ControlPlane, verb: str, resource: str, allowed: bool) -> None:
    kind, _, name = resource.partition("/")
    subresource = [f"--subresource={name}"] if name in ("status", "binding") else []
    what = [f"{kind}/{name}"] if name and not subresource else [kind]
    argv = ["auth", "can-i", verb, *what, *subresource, f"--as={AGENT}", f"--namespace={NAMESPACE}"]
    done = deployed.kubectl(*argv, check=False)
    assert done.stdout.strip() == ("yes" if allowed else "no")
