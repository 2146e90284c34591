"""REST paths of the objects that the bridge touches, and the resource that a path names (for metrics)."""

from __future__ import annotations

NODE_LEASES = "kube-node-lease"


def namespace(name: str) -> str:
    """A Namespace."""
    return f"/api/v1/namespaces/{name}"


def nodes() -> str:
    """All Nodes."""
    return "/api/v1/nodes"


def node(name: str) -> str:
    """A Node."""
    return f"/api/v1/nodes/{name}"


def node_status(name: str) -> str:
    """The status subresource of a Node."""
    return f"/api/v1/nodes/{name}/status"


def pods(ns: str | None = None) -> str:
    """Pods of one namespace, or of all."""
    return f"/api/v1/namespaces/{ns}/pods" if ns else "/api/v1/pods"


def pod(ns: str, name: str) -> str:
    """A Pod."""
    return f"/api/v1/namespaces/{ns}/pods/{name}"


def pod_status(ns: str, name: str) -> str:
    """The status subresource of a Pod."""
    return f"/api/v1/namespaces/{ns}/pods/{name}/status"


def config_map(ns: str, name: str) -> str:
    """A ConfigMap."""
    return f"/api/v1/namespaces/{ns}/configmaps/{name}"


def secret(ns: str, name: str) -> str:
    """A Secret."""
    return f"/api/v1/namespaces/{ns}/secrets/{name}"


def service_account_token(ns: str, name: str) -> str:
    """Where TokenRequests for a ServiceAccount are created."""
    return f"/api/v1/namespaces/{ns}/serviceaccounts/{name}/token"


def events(ns: str) -> str:
    """Events (core/v1) of a namespace."""
    return f"/api/v1/namespaces/{ns}/events"


def event(ns: str, name: str) -> str:
    """An Event (core/v1)."""
    return f"/api/v1/namespaces/{ns}/events/{name}"


def leases(ns: str) -> str:
    """Leases of a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"


def lease(ns: str, name: str) -> str:
    """A Lease."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/{name}"


def token_reviews() -> str:
    """Where TokenReviews are created."""
    return "/apis/authentication.k8s.io/v1/tokenreviews"


def subject_access_reviews() -> str:
    """Where SubjectAccessReviews are created."""
    return "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def self_subject_access_reviews() -> str:
    """Where SelfSubjectAccessReviews are created."""
    return "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def node_proxy(name: str, path: str) -> str:
    """What a node's kubelet answers at `path`, asked through the API server."""
    return f"/api/v1/nodes/{name}/proxy/{path}"


def resource(path: str) -> str:
    """The resource and subresource that a path names.

    >>> resource(pod_status("default", "x")), resource(leases("a")), resource(namespace("a"))
    ('pods/status', 'leases', 'namespaces')
    """
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    return "/".join([parts[0], *parts[2:3]])
