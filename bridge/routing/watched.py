"""Local copies of what the router looks at: gated and unbound pods, pods on other nodes, nodes, namespaces, rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from bridge.api import names
from bridge.api.routing import GROUP, PLURAL, VERSION, Rule, parse_rule
from bridge.kube import Kubernetes, paths
from bridge.kube.clock import BackOff, Clock
from bridge.kube.errors import KubeError, NotFound
from bridge.kube.reflector import Reflector
from bridge.routing.decide import gates
from bridge.routing.local import Locals, prune_bound

log = structlog.get_logger(__name__)

Json = dict[str, Any]
RULES = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
NAMESPACES = "/api/v1/namespaces"
ALIVE = "status.phase!=Succeeded,status.phase!=Failed"
NO_CRD_PAUSE = 30.0  # s between two looks for the CRD
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NODE_KEYS = ("allocatable", "conditions")


def prune_pending(pod: Json) -> Json:
    """Pods that are not bound, as far as a plan may need them; those that do not concern us are almost emptied."""
    metadata = pod["metadata"]
    metadata.pop("managedFields", None)
    (metadata.get("annotations") or {}).pop(_LAST_APPLIED, None)
    gated, _ = gates(pod)
    if gated or names.ROUTED in (metadata.get("annotations") or {}):
        return pod
    kept = {key: metadata[key] for key in ("uid", "name", "namespace", "resourceVersion") if key in metadata}
    return {"metadata": kept, "spec": {}}


def prune_node(node: Json) -> Json:
    """What selectors, taints and requests are compared with."""
    metadata, status = node["metadata"], node.get("status") or {}
    return {
        "metadata": {key: metadata.get(key) for key in ("uid", "name", "resourceVersion", "labels")},
        "spec": {key: (node.get("spec") or {}).get(key) for key in ("taints", "unschedulable")},
        "status": {key: status.get(key) for key in _NODE_KEYS},
    }


def prune_namespace(namespace: Json) -> Json:
    """Name and labels."""
    metadata = namespace["metadata"]
    return {"metadata": {key: metadata.get(key) for key in ("uid", "name", "resourceVersion", "labels")}}


class Watched:
    """`virtual`: our own nodes, whose pods are watched elsewhere.

    `on_pod(type, pod)`: an unbound pod changed. `on_rules()`, `on_room()`: rules, or nodes and the pods on them did.
    """

    def __init__(
        self,
        kube: Kubernetes,
        clock: Clock,
        virtual: Iterable[str],
        on_pod: Callable[[str, Json], None],
        on_rules: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self._kube, self._clock, self._on_rules, self._on_room = kube, clock, on_rules, on_room
        self.pending = Reflector(
            kube, paths.pods(), field_selector=f"spec.nodeName=,{ALIVE}", prune=prune_pending,
            on_change=on_pod, clock=clock,
        )  # fmt: skip
        elsewhere = "".join(f"spec.nodeName!={node}," for node in ("", *virtual))
        self.bound = Reflector(
            kube, paths.pods(), field_selector=f"{elsewhere}{ALIVE}", prune=prune_bound,
            on_change=lambda _kind, _pod: on_room(), clock=clock,
        )  # fmt: skip
        self.nodes = Reflector(kube, paths.nodes(), prune=prune_node, on_change=self._node_changed, clock=clock)
        self.namespaces = Reflector(
            kube, NAMESPACES, prune=prune_namespace, on_change=self._namespace_changed, clock=clock
        )
        self._rules = Reflector(kube, RULES, on_change=self._rule_changed, clock=clock)
        self._no_crd = asyncio.Event()
        self._parsed: list[Rule] | None = None
        self._by_name: dict[str, Json] | None = None
        self._named: dict[str, Json] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in (self.pending, self.bound, self.nodes, self.namespaces):
                tasks.create_task(reflector.run(), name=f"routing.{reflector!r}")
            tasks.create_task(self._follow_rules(), name="routing.rules")

    async def synced(self) -> None:
        """Return when everything has been listed once; rules count as listed where there is no such resource."""
        for reflector in (self.nodes, self.namespaces, self.bound, self.pending):
            await reflector.synced.wait()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._rules.synced, self._no_crd)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def living(self) -> set[str] | None:
        """UIDs of all pods that have not ended, but for those on our own nodes; None until they have been listed."""
        if not (self.pending.synced.is_set() and self.bound.synced.is_set()):
            return None
        return {*self.pending.items, *self.bound.items}

    @property
    def listed(self) -> bool:
        """Whether everything has been listed once."""
        every = (self.nodes, self.namespaces, self.bound, self.pending)
        return all(each.synced.is_set() for each in every) and (self._rules.synced.is_set() or self._no_crd.is_set())

    async def _follow_rules(self) -> None:
        back_off = BackOff()
        while True:
            try:
                await self._kube.list(RULES)
            except NotFound:
                if not self._no_crd.is_set():
                    log.info("routing.no_crd", resource=PLURAL)
                self._no_crd.set()
                await self._clock.sleep(NO_CRD_PAUSE)
            except KubeError as error:
                log.warning("routing.rules_unread", error=str(error))
                await self._clock.sleep(back_off.pause(error.retry_after))
            else:
                await self._rules.run()

    def _rule_changed(self, kind: str, rule: Json) -> None:
        self._parsed = None
        self._on_rules()

    def _node_changed(self, _kind: str, _node: Json) -> None:
        self._by_name = None
        self._on_room()

    def _namespace_changed(self, kind: str, namespace: Json) -> None:
        name = str(namespace["metadata"]["name"])
        if kind == "DELETED":
            self._named.pop(name, None)
        else:
            self._named[name] = namespace

    def rules(self) -> list[Rule]:
        """All rules that can be used; the same list until one of them changes."""
        if self._parsed is None:
            parsed = map(parse_rule, self._rules.items.values())
            self._parsed = [rule for rule in parsed if isinstance(rule, Rule)]
        return self._parsed

    def rule_objects(self) -> list[Json]:
        """All rules as the API server has them."""
        return list(self._rules.items.values())

    def namespace(self, name: str) -> Json | None:
        """A namespace by its name."""
        return self._named.get(name)

    def known_namespace(self, name: str) -> Json:
        """The same; LookupError while nothing has been listed, or where there is none."""
        if not self.listed:
            raise LookupError("the agent has just started and has not listed everything yet")
        if name not in self._named:
            raise LookupError(f"there is no namespace {name}")
        return self._named[name]

    def nodes_by_name(self) -> dict[str, Json]:
        """Nodes by name."""
        if self._by_name is None:
            self._by_name = {str(node["metadata"]["name"]): node for node in self.nodes.items.values()}
        return self._by_name

    def locals(self) -> Locals:
        """Free room on local nodes by what is bound."""
        return Locals(self.nodes.items.values(), self.bound.items.values())
