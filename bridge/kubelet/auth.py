"""Who may call a virtual node's kubelet port: client certificate or bearer token, then SubjectAccessReview.

The same rules as kubernetes/pkg/kubelet/server/auth.go: verb by HTTP method, resource `nodes`, the node's own name,
subresource by path. Answers are kept: tokens two minutes, allowed five minutes, denied thirty seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.kube import Json, Kubernetes, paths
from bridge.kube.errors import KubeError

TOKEN_KEPT = 120.0
ALLOWED_KEPT = 300.0
DENIED_KEPT = 30.0
_MOST_KEPT = 2000

VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# First path segment → subresources of nodes, any of which suffices; everything else is `proxy`.
SUBRESOURCES = {
    "stats": ("stats",),
    "metrics": ("metrics",),
    "logs": ("log",),
    "checkpoint": ("checkpoint",),
    "pods": ("pods", "proxy"),
    "runningpods": ("pods", "proxy"),
    "healthz": ("healthz", "proxy"),
    "configz": ("configz", "proxy"),
}


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated caller."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what an authenticator told besides, for webhook authorizers


class Denied(Exception):
    """`status` is the HTTP status, the text its body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def user_of_certificate(certificate: dict[str, Any] | None) -> User | None:
    """The user that a verified client certificate (as `ssl.getpeercert` gives it) stands for: CN, and O as groups.

    None for one with several CNs: of these Kubernetes takes the last, others the first.
    """
    if not certificate:
        return None
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for key, value in pairs if key == "commonName"]
    groups = tuple(value for key, value in pairs if key == "organizationName")
    return User(names[0], (*groups, "system:authenticated")) if len(names) == 1 else None


def _reviewed(who: Json) -> User:
    """The user of a TokenReview."""
    extra = tuple(sorted((str(key), tuple(map(str, values))) for key, values in (who.get("extra") or {}).items()))
    return User(str(who.get("username")), tuple(who.get("groups") or ()), str(who.get("uid") or ""), extra)


def attributes(method: str, path: str) -> tuple[str, tuple[str, ...]]:
    """Return the verb and the subresources of `nodes`, one of which must be allowed.

    >>> attributes("GET", "/containerLogs/default/p/c"), attributes("POST", "/pods")
    (('get', ('proxy',)), ('create', ('pods', 'proxy')))
    """
    first = path.strip("/").split("/")[0]
    return VERBS.get(method, "get"), SUBRESOURCES.get(first, ("proxy",))


class Gate:
    """Decides for one node. `clock` gives monotonic seconds."""

    def __init__(self, kube: Kubernetes, node: str, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._node = node
        self._clock = clock
        self._users: dict[str, tuple[float, User | None]] = {}
        self._answers: dict[tuple[User, str, str], tuple[float, bool]] = {}

    async def check(self, method: str, path: str, certificate: dict[str, Any] | None, header: str) -> User:
        """Return the caller, or raise `Denied` with 401, 403 or 500."""
        user = user_of_certificate(certificate) or await self._user_of_token(header)
        if user is None:
            raise Denied(401, "Unauthorized")
        verb, subresources = attributes(method, path)
        for subresource in subresources:
            if await self._allowed(user, verb, subresource):
                return user
        what = f"user={user.name}, verb={verb}, resource=nodes, subresource(s)=[{' '.join(subresources)}]"
        raise Denied(403, f"Forbidden ({what})\n")

    async def _user_of_token(self, header: str) -> User | None:
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return None
        key = hashlib.sha256(token.strip().encode()).hexdigest()
        known = self._users.get(key)
        if known is None or known[0] <= self._clock():
            review = await self._review(paths.token_reviews(), "TokenReview", {"token": token.strip()})
            status = review.get("status", {})
            user = None
            if status.get("authenticated"):
                who = status.get("user", {})
                user = _reviewed(who)
            known = self._keep(self._users, key, (self._clock() + TOKEN_KEPT, user))
        return known[1]

    async def _allowed(self, user: User, verb: str, subresource: str) -> bool:
        key = (user, verb, subresource)
        known = self._answers.get(key)
        if known is None or known[0] <= self._clock():
            resource = {
                "verb": verb, "resource": "nodes", "subresource": subresource, "name": self._node, "version": "v1",
            }  # fmt: skip
            spec = {"user": user.name, "groups": list(user.groups), "uid": user.uid, "resourceAttributes": resource}
            if user.extra:
                spec["extra"] = {key: list(values) for key, values in user.extra}
            review = await self._review(paths.subject_access_reviews(), "SubjectAccessReview", spec)
            allowed = bool(review.get("status", {}).get("allowed"))
            until = self._clock() + (ALLOWED_KEPT if allowed else DENIED_KEPT)
            known = self._keep(self._answers, key, (until, allowed))
        return known[1]

    async def _review(self, path: str, kind: str, spec: Json) -> Json:
        group = "authentication" if kind == "TokenReview" else "authorization"
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        try:
            return await self._kube.create(path, body)
        except KubeError as error:
            raise Denied(500, f"Authorization error ({error})") from error

    @staticmethod
    def _keep(store: dict[Any, Any], key: Any, value: Any) -> Any:
        if len(store) >= _MOST_KEPT:
            store.clear()
        store[key] = value
        return value
