"""What the router needs of the agent's ServiceAccount; deploy/routing grants exactly this (a test compares).

Virtual nodes need nothing of it. What it may change of pods and nodes is bounded further by the admission policies in
deploy/routing.
"""

from __future__ import annotations

from bridge.api.routing import GROUP, PLURAL
from bridge.kube.rights import Need
from bridge.routing.memory import CONFIG_MAP


def needs(namespace: str) -> tuple[Need, ...]:
    """The rights; `namespace`: the agent's own."""
    return (
        Need("", "nodes", ("list", "watch", "patch"), "room on local nodes, and the taint of virtual ones"),
        Need("", "pods", ("list", "watch", "patch"), "gated pods, and the room that others take"),
        Need("", "namespaces", ("list", "watch"), "rules select pods by their namespaces' labels"),
        Need("", "events", ("create", "patch"), "where pods went and why"),
        Need(GROUP, PLURAL, ("list", "watch"), "RoutingRules"),
        Need(GROUP, f"{PLURAL}/status", ("patch",), "their status"),
        Need("", "configmaps", ("get", "patch"), "what was learnt of waits", namespace, CONFIG_MAP),
    )
