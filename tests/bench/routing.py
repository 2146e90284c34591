"""route.decide_us and route.gate_open_ms: what one decision costs, and how long a gate stays shut in a burst.

Decisions are measured in this process on ten made-up clusters of ten queues and a thousand hosts; pods of forty
templates come ten at a time, as they do from Jobs. `cold` is the first pod of a template after a census.
The burst is real: a thousand pods are created while the agent is stopped, and the audit log says when gates opened.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from bridge.api.routing import RoutingRuleSpec, Rule
from bridge.api.settings import Cluster
from bridge.clusters.health import ClusterHealth
from bridge.kube import paths
from bridge.kube.clock import SystemClock, rfc3339
from bridge.routing.evaluate import Evaluator
from bridge.routing.local import Locals
from bridge.routing.onway import OnTheWay
from bridge.routing.opening import AT_ONCE
from bridge.routing.waits import WaitModel
from pbs_adapter import cluster_convert as convert
from pbs_adapter.models import Census, Observation
from tests.bench import census as large
from tests.bench.figures import Figure, quantile
from tests.bench.stage import NAMESPACE, Shape, Stage, Theatre, wait

CLUSTERS, QUEUES = 10, 10
TEMPLATES, TOGETHER, DECISIONS = 40, 10, 4000
BURST = 1000
GATE = "hpc-bridge.io/routing"
Json = dict[str, Any]


def measure(theatre: Theatre) -> Iterator[Figure]:
    """Decisions first; they need no cluster."""
    yield from decisions()
    with theatre.stage(Shape(held=True), agent={"leaseDuration": 120}, queue="workq") as stage:
        yield from burst(stage)


class MadeUp:
    """A link to a cluster that always answers."""

    def __init__(self, name: str, census: Census) -> None:
        account = {"transport": {"type": "local"}, "sharedTrust": True}
        queues = [f"q_{number}d" for number in range(QUEUES)]
        self.settings = Cluster.model_validate(
            {"name": name, "accounts": [account], "images": [{"image": "busybox:*"}], "queues": queues}
        )
        self.census: Census | None = census
        self.observations: dict[str, Observation] = {}
        self.census_doubt = ""

    def census_age(self) -> float | None:
        """It is new."""
        return 0.0

    async def census_now(self) -> None:
        """It is new."""

    def seen(self, uid: str) -> Observation | None:
        """No job."""
        return None

    def health(self) -> ClusterHealth:
        """Fine."""
        return ClusterHealth(True, "", 0.0)

    def account_for(self, namespace: str) -> str | None:
        """The only one."""
        return "default"


def made_up_census(number: int) -> Census:
    """A thousand hosts of two domains, twenty thousand jobs, ten queues."""
    head, body = large.answer(1_796_030_800.0 + number, number * large.JOBS)
    found = convert.census(head, body)
    queue = found.queues[0]
    queues = tuple(queue._replace(name=f"q_{each}d") for each in range(QUEUES))
    return Census(found.at, found.server, queues, found.vnodes, found.host, (), found.jobs, found.jobs_at, "user001")


def decisions() -> Iterator[Figure]:
    """The time of one decision, everything in it but reading and writing Kubernetes."""
    links = {f"c{number}": MadeUp(f"c{number}", made_up_census(number)) for number in range(CLUSTERS)}
    model = WaitModel()
    now = time.time()
    for name, link in links.items():
        model.learn(name, link.census, now)  # type: ignore[arg-type]
    way = OnTheWay(lambda _cluster, _uid: False)
    evaluator = Evaluator(links, model, SystemClock(), load=way.of, arrived=way.arrived, system=("kube-system",))
    candidates = [{"cluster": name, "queue": f"q_{each}d"} for name in links for each in range(QUEUES)]
    spec = RoutingRuleSpec.model_validate({"mode": "must", "candidates": candidates[:64], "quantile": 0.8})
    spec = spec.model_copy(update={"candidates": tuple(type(spec.candidates[0])(**each) for each in candidates)})
    rules = [Rule("bench", 1, spec)]
    nodes = {link.settings.node_name: node(link.settings.node_name) for link in links.values()}
    namespace: Json = {"metadata": {"name": NAMESPACE, "labels": {}}}
    local = Locals([], [])
    cold: list[float] = []
    warm: list[float] = []
    for number in range(DECISIONS):
        pod = template(number)
        started = time.perf_counter()
        match = evaluator.match(pod, namespace, rules)
        outcome = evaluator.outcome(pod, match, local, nodes)
        spent = (time.perf_counter() - started) * 1e6
        (cold if number < TEMPLATES * TOGETHER and number % TOGETHER == 0 else warm).append(spent)
        if outcome.verdict.to is not None:
            to = outcome.verdict.to.cluster
            way.add(pod["metadata"]["uid"], to, evaluator.ask(pod, to).options)
    note = (
        f"{CLUSTERS} clusters x {QUEUES} queues x {large.HOSTS} hosts; {TEMPLATES} templates, {TOGETHER} pods in a row"
    )
    yield Figure("route.decide_us.p50", quantile(warm, 0.5), "µs", "≤ 2000", tuple(warm[::40]), note)
    yield Figure("route.decide_us.p99", quantile(warm, 0.99), "µs", "", (), note)
    yield Figure("route.decide_us.cold", quantile(cold, 0.5), "µs", "", tuple(cold), "first pod of a template")


def node(name: str) -> Json:
    """A virtual node."""
    taints = [{"key": "hpc-bridge.io/cluster", "value": name, "effect": "NoSchedule"}]
    return {"metadata": {"name": name, "labels": {"type": "virtual-kubelet"}}, "spec": {"taints": taints}}


def template(number: int) -> Json:
    """The next pod."""
    size = 1 + number // TOGETHER % TEMPLATES
    resources = {"requests": {"cpu": str(size), "memory": f"{size}Gi"}}
    container = {"name": "main", "image": "busybox:1.36", "command": ["true"], "resources": resources}
    metadata = {"name": f"p-{number}", "namespace": NAMESPACE, "uid": f"u-{number}"}
    spec = {"containers": [container], "schedulingGates": [{"name": GATE}], "restartPolicy": "Never"}
    return {"metadata": metadata | {"creationTimestamp": rfc3339(time.time())}, "spec": spec}


def burst(stage: Stage) -> Iterator[Figure]:
    """Gates opened after the agent may see a thousand pods; order of arrival by the audit log."""
    rule = {
        "apiVersion": "hpc-bridge.io/v1alpha1",
        "kind": "RoutingRule",
        "metadata": {"name": "bench"},
        "spec": {"match": {"namespaces": [NAMESPACE]}, "mode": "must"},
    }
    stage.client(lambda kube: kube.create("/apis/hpc-bridge.io/v1alpha1/routingrules", rule))
    try:
        wait(lambda: accepted(stage), "the rule is accepted", 60)
        pid = stage.agent_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            create(stage)
        finally:
            started = time.time()
            os.kill(pid, signal.SIGCONT)
        wait(lambda: sum(stage.metric("hpc_bridge_routed_total").values()) >= BURST, "gates open", 300, pause=0.5)
        wait(lambda: len(opened(stage)) >= BURST, "all of it in the audit log", 60, pause=1.0)
    finally:
        stage.client(lambda kube: kube.delete("/apis/hpc-bridge.io/v1alpha1/routingrules/bench"))
    times = opened(stage)
    took = sorted((at - started) * 1000 for at in times.values())
    yield Figure("route.gate_open_ms.p99", quantile(took, 0.99), "ms", "≤ 5000", tuple(took[::20]), f"{BURST} at once")
    yield Figure("route.gate_open_ms.p50", quantile(took, 0.5), "ms", "", (), f"{BURST} at once")
    order = [name for name, _ in sorted(times.items(), key=lambda each: each[1])]
    arrived = sorted(created(stage).items(), key=lambda each: each[1])
    place = {name: index for index, (name, _) in enumerate(arrived)}
    most = max(index - place[name] for index, name in enumerate(order))
    yield Figure("route.overtaken", float(most), "", f"≤ {AT_ONCE - 1}", (), "most later pods whose gate opened before")
    second = {pod["metadata"]["name"]: str(pod["metadata"]["creationTimestamp"]) for pod in stage.pods()}
    seconds = [second[name] for name in order]
    later = sum(after < before for before, after in itertools.pairwise(seconds))
    yield Figure("route.overtaken_by_later", float(later), "", "≤ 0", (), "gates opened before an earlier second's")


def accepted(stage: Stage) -> bool:
    """Whether the agent has seen the rule."""
    found = stage.control_plane.kubectl("get", "routingrule", "bench", "-o", "jsonpath={.status.conditions[0].status}")
    return found.stdout == "True"


def create(stage: Stage) -> None:
    """A thousand pods with the gate, one after the other, so that their order is known."""

    async def every(kube: Any) -> None:
        for number in range(BURST):
            pod = stage.pod(f"burst-{number:04}", "true")
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
            pod["spec"]["tolerations"] = []
            await kube.create(paths.pods(NAMESPACE), pod)

    stage.client(every)


def _stamp(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["stageTimestamp"]).timestamp()


def opened(stage: Stage) -> dict[str, float]:
    """When each gate was opened, by the API server's clock."""
    done = [event for event in stage.writes() if event["objectRef"].get("subresource") is None]
    return {
        event["objectRef"]["name"]: _stamp(event)
        for event in done
        if event["objectRef"]["name"].startswith("burst-") and event["responseStatus"]["code"] < 300
    }


def created(stage: Stage) -> dict[str, float]:
    """When each pod was created."""
    events = stage.control_plane.audit_events(verbs=("create",))
    return {
        event["objectRef"]["name"]: _stamp(event)
        for event in events
        if event["objectRef"].get("resource") == "pods" and event["objectRef"].get("name", "").startswith("burst-")
    }
