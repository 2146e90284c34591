"""One pod judged whole: links, views, load on its way, what a template is, and what rules and the model are told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from censuses import cluster
from complexes import Gi, census, each, limits, queue, vnode
from routingcases import spec
from virtualtime import VirtualClock

from bridge.api import names
from bridge.api.routing import Rule, parse_rule
from bridge.clusters.health import ClusterHealth
from bridge.routing.asking import Asking, node_refusal, template
from bridge.routing.evaluate import Evaluator
from bridge.routing.load import Load
from bridge.routing.local import Locals
from bridge.routing.memory import Memory
from bridge.routing.onway import CENSUS_TAKES, OnTheWay
from bridge.routing.opening import recorded
from bridge.routing.rules import Match
from bridge.routing.status import RuleBooks
from bridge.routing.waits import Shape, WaitModel
from pbs_adapter.models import Census, JobOptions, Observation, PbsView, Seen

Json = dict[str, Any]
START = 1_796_030_800.0  # VirtualClock's epoch
TWO = census(vnode("h1"), vnode("h2"))
GOOD = ClusterHealth(True, "", 0.0)


class Link:
    """A cluster as a test wants it."""

    def __init__(self, name: str, seen: Census | None = TWO, **settings: Any) -> None:
        self.settings = cluster(name=name, images=[{"image": "*"}], **settings)
        self.census = seen
        self.observations: dict[str, Observation] = {}
        self.state = GOOD
        self.census_doubt = ""
        self.age: float | None = None
        self.renewals = 0

    def census_age(self) -> float | None:
        return self.age

    async def census_now(self) -> None:
        self.renewals += 1

    def found(self, uid: str) -> Observation | None:
        return self.observations.get(uid)

    def health(self) -> ClusterHealth:
        return self.state

    def account_for(self, namespace: str) -> str | None:
        return "default" if namespace != "foreign" else None


def pod(name: str = "p", cpu: str = "4", **fields: Any) -> Json:
    container = {"name": "m", "image": "i", "command": ["true"], "resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": name, "namespace": "space", "uid": f"uid-{name}", "creationTimestamp": "2026-11-30T09:26:40Z"}
    spec = {"containers": [container], "schedulingGates": [{"name": names.GATE}], "restartPolicy": "Never"}
    return {"metadata": metadata | fields.pop("metadata", {}), "spec": spec | fields}


def node(name: str, **fields: Any) -> Json:
    taints = [{"key": names.CLUSTER_TAINT, "value": name.removeprefix("pbs-"), "effect": "NoSchedule"}]
    labels = {names.NODE_TYPE_LABEL: names.NODE_TYPE}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints} | fields}


class Stand:
    """An evaluator of alpha and beta."""

    def __init__(self, **links: Link) -> None:
        self.links = links or {"alpha": Link("alpha"), "beta": Link("beta")}
        self.clock = VirtualClock()
        self.load: dict[str, Load] = {}
        self.way = OnTheWay(lambda cluster, uid: self.links[cluster].found(uid) is not None)
        self.evaluator = Evaluator(
            self.links,
            WaitModel(),
            self.clock,
            load=lambda name: self.load.get(name, self.way.of(name)),
            arrived=self.way.arrived,
            system=("kube-system",),
        )
        self.nodes = {f"pbs-{name}": node(f"pbs-{name}") for name in self.links}

    def where(self, thing: Json | None = None, nodes: Mapping[str, Json] | None = None, **rule: Any) -> Json:
        made = Rule("r", 1, spec(**{"mode": "must"} | rule))
        match = Match(made, made.spec.mode, "by the rule")
        outcome = self.evaluator.outcome(thing or pod(), match, Locals([], []), self.nodes if nodes is None else nodes)
        return outcome.to_json()


def reason(answer: Json, name: str) -> str:
    found = next(each for each in answer["candidates"] if each["cluster"] == name)
    return "; ".join([*found["refused"], found["unavailable"]]).strip("; ")


def test_the_best_of_all_clusters_where_a_rule_lists_none() -> None:
    answer = Stand().where()
    assert (answer["decision"], answer["to"]) == ("cluster", "alpha")
    assert [(each["cluster"], each["rank"]) for each in answer["candidates"]] == [("alpha", 1), ("beta", 2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": ClusterHealth(False, "no route to host", 0.0)}, "cannot be reached: no route to host"),
        ({"state": ClusterHealth(True, "", 0.0, {"default": "key refused"})}, "key refused"),
        ({"census": None}, "PBS has not been asked yet"),
        ({"census": census(vnode("h", 2))}, "asks ncpus 4, the largest host has 2"),
        ({"census": census(vnode("h"), queues=(queue("other"),))}, "there is no queue workq"),
        ({"census": census(vnode("h"), queues=(queue(limits=limits(queued=each(0))),))},
         "PBS takes 0 more jobs of the account, and 0 are on their way"),
    ],
)  # fmt: skip
def test_what_keeps_a_cluster_from_being_chosen(change: dict[str, Any], said: str) -> None:
    stand = Stand()
    for key, value in change.items():
        setattr(stand.links["alpha"], key, value)
    answer = stand.where()
    assert (answer["to"], reason(answer, "alpha")) == ("beta", said)


def test_a_namespace_without_account() -> None:
    answer = Stand().where(pod(metadata={"namespace": "foreign"}))
    assert reason(answer, "alpha") == "no account of cluster alpha serves namespace foreign"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (None, "the virtual node of alpha is not registered yet"),
        ({"unschedulable": True}, "node pbs-alpha is cordoned"),
        ({"taints": [{"key": "repair", "effect": "NoSchedule"}]},
         "it does not tolerate the node's taint repair (node pbs-alpha)"),
    ],
)  # fmt: skip
def test_what_the_virtual_node_says(fields: dict[str, Any] | None, said: str) -> None:
    stand = Stand()
    nodes = {"pbs-beta": node("pbs-beta")} | ({"pbs-alpha": node("pbs-alpha", **fields)} if fields else {})
    answer = stand.where(nodes=nodes)
    assert (answer["to"], reason(answer, "alpha")) == ("beta", said)


def test_the_unreachable_taint_is_no_reason_of_its_own() -> None:
    lost = node("pbs-alpha", taints=[{"key": names.UNREACHABLE_TAINT, "effect": "NoSchedule"}])
    assert node_refusal(pod(), lost, "alpha") == ("", "")


async def test_what_is_known_grows_old() -> None:
    stand = Stand()
    assert stand.where()["to"] == "alpha"
    await stand.clock.advance(3 * 60 + 61)
    stand.links["beta"].census = census(vnode("h"))
    answer = stand.where()
    assert (answer["to"], reason(answer, "alpha")) == ("beta", "what is known of it is 241 s old")


def test_a_judgement_is_kept_until_something_is_new() -> None:
    stand = Stand()
    rule, one = Rule("r", 1, spec(mode="must")), pod("one")
    first = list(stand.evaluator.judgements(one, rule, stand.nodes, START, 0))
    second = list(stand.evaluator.judgements(pod("two"), rule, stand.nodes, START, 0))
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, True]
    stand.way.add("uid-x", "alpha", JobOptions(8, Gi, 60))
    third = list(stand.evaluator.judgements(one, rule, stand.nodes, START, 0))
    assert [a is b for a, b in zip(first, third, strict=True)] == [False, True]
    edited = Rule("r", 2, spec(mode="must", maxSlowdown=1.1))
    fourth = list(stand.evaluator.judgements(one, edited, stand.nodes, START, 0))
    assert [bool(each.refused) for each in fourth] == [True, True]


def test_a_burst_goes_where_there_is_room() -> None:
    """Two hosts of 8 cores on alpha, four on beta: three pods of 4 cores in turn, then what is left."""
    stand = Stand(alpha=Link("alpha"), beta=Link("beta", census(*(vnode(f"h{n}") for n in range(4)))))
    went = []
    for number in range(12):
        to = stand.where(pod(f"p{number}"))["to"]
        stand.way.add(f"uid-p{number}", to, JobOptions(4, Gi, 3660))
        went.append(to)
    assert (went.count("alpha"), went.count("beta")) == (4, 8)
    assert set(went[:3]) == {"alpha", "beta"}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (pod("q"), True),
        (pod(tolerations=[{"operator": "Exists"}]), True),
        (pod(metadata={"annotations": {"foo": "bar"}}), True),
        (pod(volumes=[{"name": "kube-api-access-abcde"}]), False),
        (pod(metadata={"annotations": {names.WALLTIME: "1h"}}), False),
        (pod(metadata={"namespace": "x"}), False),
        (pod(cpu="5"), False),
    ],
)
def test_pods_of_one_template(other: Json, same: bool) -> None:
    assert (template(other) == template(pod())) is same


def test_the_token_volume_has_another_name_in_each_pod() -> None:
    a, b = (pod(volumes=[{"name": f"kube-api-access-{end}"}]) for end in ("abcde", "z9x8y"))
    assert template(a) == template(b)


def test_what_a_pod_asks_is_worked_out_once() -> None:
    asking, thing = Asking({"alpha": cluster(images=[{"image": "*"}], queues=["fast"])}), pod()
    thing["metadata"]["annotations"] = {names.QUEUE: "fast", names.NUMA: "require"}
    asked = asking.asked(thing, template(thing), "alpha", "default")
    assert asking.asked(thing, template(thing), "alpha", "default") is asked
    assert (asked.refused, asked.queue, asked.numa, asked.options.ncpus) == ((), "fast", "require", 4)


# Pods on their way


def on_way(jobs: set[str]) -> OnTheWay:
    return OnTheWay(lambda _cluster, uid: uid in jobs)


def test_a_pod_counts_until_a_census_can_show_its_job() -> None:
    jobs: set[str] = set()
    way, old = on_way(jobs), TWO
    way.arrived("alpha", old, 0.0)
    way.add("u", "alpha", JobOptions(4, Gi, 60))
    way.add("u", "alpha", JobOptions(4, Gi, 60))
    assert way.of("alpha") == Load(1, 4, Gi, 240.0)
    way.settle(lambda _uid, _cluster: False, 10.0)
    jobs.add("u")
    way.settle(lambda _uid, _cluster: False, 20.0)
    assert "u" in way
    asked_before = census(vnode("h"))
    way.arrived("alpha", asked_before, 20.0 + CENSUS_TAKES / 2)
    way.settle(lambda _uid, _cluster: False, 30.0)
    assert way.of("alpha").pods == 1
    way.arrived("alpha", census(vnode("h")), 80.0)
    way.settle(lambda _uid, _cluster: False, 80.0)
    assert ("u" in way, way.of("alpha")) == (False, Load())


def test_a_pod_that_went_elsewhere_or_is_gone_does_not_count() -> None:
    way = on_way(set())
    way.add("u", "alpha", JobOptions(4, Gi, 60))
    way.add("v", "alpha", JobOptions(4, Gi, 60))
    way.settle(lambda uid, _cluster: uid == "u", 1.0)
    way.drop("v")
    way.drop("v")
    assert way.of("alpha").pods == 0


# Status of rules


def rule_object(**fields: Any) -> Json:
    return {"metadata": {"name": "r", "generation": 2}, "spec": fields}


def test_the_status_of_a_rule() -> None:
    books = RuleBooks(None, VirtualClock(), ("kube-system",))  # type: ignore[arg-type]
    rule = parse_rule(rule_object(candidates=[{"cluster": "alpha", "queue": "workq"}]))
    books.routed("r")
    books.lost("r", "ns/p", "rule s names the namespace")
    made = books.status(rule, {}, {"alpha": {"workq"}})
    assert (made["routed"], made["candidates"]) == (1, "alpha/workq")
    assert [(c["type"], c["status"], c["lastTransitionTime"]) for c in made["conditions"]] == [
        ("Accepted", "True", "2026-11-30T09:26:40Z"),
        ("Shadowed", "True", "2026-11-30T09:26:40Z"),
    ]


async def test_conditions_keep_the_time_at_which_they_changed_and_counts_end_after_an_hour() -> None:
    clock = VirtualClock()
    books = RuleBooks(None, clock, ("kube-system",))  # type: ignore[arg-type]
    rule = parse_rule(rule_object(candidates=[{"cluster": "alpha"}]))
    books.routed("r")
    books.lost("r", "ns/p", "rule s names the namespace")
    before = books.status(rule, {}, {"alpha": ()})
    await clock.advance(3601)
    after = books.status(rule, before, {"alpha": ()})
    assert after["routed"] == 0
    assert after["conditions"][0] == before["conditions"][0]
    assert (after["conditions"][1]["status"], after["conditions"][1]["lastTransitionTime"]) == (
        "False",
        "2026-11-30T10:26:41Z",
    )


def test_a_rule_that_cannot_be_read_says_so() -> None:
    books = RuleBooks(None, VirtualClock(), ("kube-system",))  # type: ignore[arg-type]
    (accepted,) = books.status(parse_rule(rule_object(quantile=7)), {}, {})["conditions"]
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")


# What the model is told


def test_the_model_is_told_of_the_bridges_own_jobs() -> None:
    link, clock = Link("alpha"), VirtualClock()
    told: list[tuple[Any, ...]] = []

    class Model(WaitModel):
        def observe(self, *args: Any, estimated: float | None = None, **_: Any) -> None:
            told.append((*args, estimated))

        def forget(self, *args: Any) -> None:
            told.append(("forget", *args))

    memory = Memory(None, "ns", {"alpha": link}, Model(), clock)  # type: ignore[arg-type]
    shape = Shape(4, Gi, 60, True)
    for uid in ("runs", "gone", "never"):
        memory.sent(uid, "alpha", shape)
    memory.follow(lambda _uid, _cluster: True)
    assert told == []
    waiting = PbsView(Seen.PRESENT, 1.0, "Q", queue="workq", estimated=START + 90)
    link.observations["runs"] = Observation("runs", "1.alpha", pbs=waiting)
    memory.follow(lambda uid, _cluster: uid != "never")
    link.observations["runs"] = Observation("runs", "1.alpha", claimed=True, pbs=waiting)
    link.observations["gone"] = Observation("gone", "2.alpha", pbs=PbsView(Seen.PRESENT, 1.0, "F"))
    memory.follow(lambda uid, _cluster: uid != "never")
    memory.follow(lambda uid, _cluster: uid != "never")
    assert told == [
        ("alpha", "1.alpha", "workq", "alice", shape, START, None, START, START + 90),
        ("alpha", "1.alpha", "workq", "alice", shape, START, START, START, START + 90),
        ("forget", "alpha", "2.alpha", START),
    ]


def test_what_was_decided_is_read_for_display_only() -> None:
    assert recorded(pod(metadata={"annotations": {names.ROUTED: json.dumps({"to": "alpha"})}})) == {"to": "alpha"}
    for odd in ("[]", "{", "null"):
        assert recorded(pod(metadata={"annotations": {names.ROUTED: odd}})) is None
    assert recorded(pod()) is None


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_pod_that_asks_for_disk_is_not_sent_where_none_is_offered(kind: str) -> None:
    """The node of such a cluster offers 0 of ephemeral-storage: pinned to it, the pod would be Pending for ever."""
    thing = pod()
    extra = {"name": "d", "image": "i", "command": ["true"], "resources": {"limits": {"ephemeral-storage": "10Gi"}}}
    thing["spec"][kind] = [*thing["spec"].get(kind, []), extra]
    mapped = cluster(name="beta", images=[{"image": "*"}], resources={"ephemeral-storage": "scratch"})
    asking = Asking({"alpha": cluster(name="alpha", images=[{"image": "*"}]), "beta": mapped})
    (why,) = asking.asked(thing, template(thing), "alpha", "default").refused
    assert "ephemeral-storage has no PBS resource on cluster alpha" in why
    assert asking.asked(thing, template(thing), "beta", "default").refused == ()
