"""Rights as RBAC names them, and the question to the API server which of them the caller lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bridge.kube import Json, Kubernetes, paths


@dataclass(frozen=True, slots=True)
class Need:
    """Verbs on one resource; `namespace` "" is every namespace, `name` "" every object. `why`: what for."""

    group: str
    resource: str  # with its subresource, as in RBAC rules
    verbs: tuple[str, ...]
    why: str
    namespace: str = ""
    name: str = ""

    def attributes(self, verb: str) -> Json:
        """As in a SelfSubjectAccessReview."""
        resource, _, subresource = self.resource.partition("/")
        found = {"group": self.group, "resource": resource, "subresource": subresource, "verb": verb}
        return {k: v for k, v in {**found, "namespace": self.namespace, "name": self.name}.items() if v}

    def __str__(self) -> str:
        where = f" {self.name}" if self.name else ""
        return f"{self.resource}{where}{f' in {self.namespace}' if self.namespace else ''} ({self.why})"


async def missing(kube: Kubernetes, needs: Iterable[Need]) -> list[str]:
    """What of `needs` the caller may not do, a line for each resource; empty: all is allowed. Raises KubeError."""
    wanted = [(need, verb) for need in needs for verb in need.verbs]
    allowed = await asyncio.gather(*(_may(kube, need, verb) for need, verb in wanted))
    return list(_summed((need, verb) for (need, verb), may in zip(wanted, allowed, strict=True) if not may))


def _summed(lacking: Iterable[tuple[Need, str]]) -> Iterator[str]:
    verbs: dict[Need, list[str]] = {}
    for need, verb in lacking:
        verbs.setdefault(need, []).append(verb)
    for need, those in verbs.items():
        yield f"{', '.join(those)} {need}"


async def _may(kube: Kubernetes, need: Need, verb: str) -> bool:
    kind = "SelfSubjectAccessReview"
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": need.attributes(verb)},
    }  # fmt: skip
    answer = await kube.create(paths.self_subject_access_reviews(), body)
    return bool(answer.get("status", {}).get("allowed"))
