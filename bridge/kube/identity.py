"""As whom a virtual node acts: as kubelets do, so that what the API server refuses them it refuses us.

The Node authorizer lets a node read only what its own pods name, and admission NodeRestriction lets it write only its
own Node, Lease and pods. Neither can be said in RBAC.
"""

from __future__ import annotations

from bridge.kube import Impersonator, Kubernetes

NODES = "system:nodes"  # the group by which the Node authorizer knows a node


def node_user(node: str) -> str:
    """The user name of a node.

    >>> node_user("pbs-alpha")
    'system:node:pbs-alpha'
    """
    return f"system:node:{node}"


def as_node(kube: Impersonator, node: str) -> Kubernetes:
    """`kube` as this node."""
    return kube.acting_as(node_user(node), (NODES,))
