"""What of the agent's manifests follows from bridge.yaml: names of nodes in its rights, RuntimeClasses, ports. Pure.

The rest is the same for everybody and lies in deploy/; deploy/node is what is made here of its example.
"""

from __future__ import annotations

from typing import Any

import yaml

from bridge.api import names
from bridge.api.settings import Cluster, Settings
from bridge.kube import Json
from bridge.kube.identity import NODES, node_user

NAME = "hpc-bridge"  # of the ServiceAccount, the Deployment's pods and the ConfigMap: what deploy/base calls them
SELECTOR = {"app.kubernetes.io/name": NAME}
PROBE_PORT = 10281  # the Deployment's --probe-port
RBAC = "rbac.authorization.k8s.io"
HEAD = """\
# Made by `hpc-bridge manifests` from bridge.yaml: make it anew when that changes. RuntimeClasses for pods, the nodes
# that the agent may act for, the ports that may be dialled, and the settings themselves.
"""


class Unfit(Exception):
    """The settings cannot be used in a cluster; the text says what to change."""


def manifests(settings: Settings, text: str) -> list[Json]:
    """The objects, in the order in which they are to be applied. text: bridge.yaml as it stands.

    Raises Unfit.
    """
    namespace = settings.agent.namespace
    return [
        *(runtime_class(cluster) for cluster in settings.clusters),
        *_acting_as_nodes(settings),
        *_leader(namespace, settings.agent.lease),
        _network_policy(namespace, settings),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": namespace},
            "data": {"bridge.yaml": text},
        },
    ]


def runtime_class(cluster: Cluster) -> Json:
    """What sends a pod to the cluster, and keeps it there while its node, or the cluster, cannot be reached."""
    gone = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": f"pbs-{cluster.name}"},
        "handler": "pbs",
        "scheduling": {
            "nodeSelector": {names.CLUSTER_LABEL: cluster.name},
            "tolerations": [
                {"key": names.CLUSTER_TAINT, "operator": "Equal", "value": cluster.name, "effect": "NoSchedule"},
                {"key": names.UNREACHABLE_TAINT, "operator": "Exists", "effect": "NoSchedule"},
                *({"key": key, "operator": "Exists", "effect": "NoExecute"} for key in gone),
            ],
        },
    }


def _acting_as_nodes(settings: Settings) -> list[Json]:
    """The right to act as the virtual nodes, and as no other: the API server then treats each as the kubelet it is."""
    users = [node_user(cluster.node_name) for cluster in settings.clusters]
    rules = [
        {"apiGroups": [""], "resources": [resource], "resourceNames": those, "verbs": ["impersonate"]}
        for resource, those in (("users", users), ("groups", [NODES]))
    ]
    return _granted("ClusterRole", f"{NAME}-nodes", rules, settings.agent.namespace)


def _leader(namespace: str, lease: str) -> list[Json]:
    leases: Json = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    rules = [leases | {"verbs": ["create"]}, leases | {"resourceNames": [lease], "verbs": ["get", "patch"]}]
    return _granted("Role", f"{NAME}-leader", rules, namespace)


def _granted(kind: str, name: str, rules: list[Json], namespace: str) -> list[Json]:
    """A role and its binding to the agent's ServiceAccount."""
    metadata: Json = {"name": name} if kind == "ClusterRole" else {"name": name, "namespace": namespace}
    role = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }
    return [role, binding]


def _network_policy(namespace: str, settings: Settings) -> Json:
    """Kubelet ports, which ask who calls, and the probes. From where the API server calls cannot be said here."""
    open_ports = [cluster.name for cluster in settings.clusters if not cluster.kubelet_port]
    if open_ports:
        raise Unfit(f"kubeletPort of {', '.join(open_ports)}: give a fixed port, 10251 and so on; a policy names it")
    ports = [PROBE_PORT, *(cluster.kubelet_port for cluster in settings.clusters)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "podSelector": {"matchLabels": SELECTOR},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": port, "protocol": "TCP"} for port in ports]}],
        },
    }


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as people write them; no references from one object to another."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def printed(objects: list[Json]) -> str:
    """The objects as YAML documents."""
    options: dict[str, Any] = {"sort_keys": False, "width": 120, "allow_unicode": True}
    return HEAD + "---\n".join(yaml.dump(each, Dumper=_Dumper, **options) for each in objects)
