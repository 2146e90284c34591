"""REST paths of the objects that the bridge touches, and the resource that a path names (for metrics).

Names come from pods, and some of them are not checked by the API server: all paths are made by `under`, which lets no
name be more than one segment. The client sends paths as they are, and nothing on the way resolves dots in them.
"""

from __future__ import annotations

import urllib.parse

from bridge.kube.errors import Invalid

NODE_LEASES = "kube-node-lease"


def under(prefix: str, *segments: str) -> str:
    """`prefix` and the segments behind it, each quoted. Raises Invalid for what is no segment (as client-go does)."""
    for segment in segments:
        if segment in ("", ".", "..") or "/" in segment or "%" in segment:
            raise Invalid(0, "InvalidName", f"{segment[:80]!r} cannot be a name in a path of the API")
    return "/".join([prefix, *(urllib.parse.quote(segment, safe="", errors="surrogatepass") for segment in segments)])


def namespace(name: str) -> str:
    """A Namespace."""
    return under("/api/v1", "namespaces", name)


def nodes() -> str:
    """All Nodes."""
    return "/api/v1/nodes"


def node(name: str) -> str:
    """A Node."""
    return under("/api/v1", "nodes", name)


def node_status(name: str) -> str:
    """The status subresource of a Node."""
    return under("/api/v1", "nodes", name, "status")


def pods(ns: str | None = None) -> str:
    """Pods of one namespace, or of all."""
    return under("/api/v1", "namespaces", ns, "pods") if ns else "/api/v1/pods"


def pod(ns: str, name: str) -> str:
    """A Pod."""
    return under("/api/v1", "namespaces", ns, "pods", name)


def pod_status(ns: str, name: str) -> str:
    """The status subresource of a Pod."""
    return under("/api/v1", "namespaces", ns, "pods", name, "status")


def config_map(ns: str, name: str) -> str:
    """A ConfigMap."""
    return under("/api/v1", "namespaces", ns, "configmaps", name)


def secret(ns: str, name: str) -> str:
    """A Secret."""
    return under("/api/v1", "namespaces", ns, "secrets", name)


def service_account_token(ns: str, name: str) -> str:
    """Where TokenRequests for a ServiceAccount are created."""
    return under("/api/v1", "namespaces", ns, "serviceaccounts", name, "token")


def events(ns: str) -> str:
    """Events (core/v1) of a namespace."""
    return under("/api/v1", "namespaces", ns, "events")


def event(ns: str, name: str) -> str:
    """An Event (core/v1)."""
    return under("/api/v1", "namespaces", ns, "events", name)


def leases(ns: str) -> str:
    """Leases of a namespace."""
    return under("/apis/coordination.k8s.io/v1", "namespaces", ns, "leases")


def lease(ns: str, name: str) -> str:
    """A Lease."""
    return under("/apis/coordination.k8s.io/v1", "namespaces", ns, "leases", name)


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
    return under("/api/v1", "nodes", name, "proxy", path)


def daemon_sets() -> str:
    """DaemonSets of all namespaces."""
    return "/apis/apps/v1/daemonsets"


def priority_classes() -> str:
    """All PriorityClasses."""
    return "/apis/scheduling.k8s.io/v1/priorityclasses"


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
