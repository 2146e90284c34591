"""NUMA of one node's pods: what was estimated when a job was submitted, and what it was given.

Only pods that asked by annotation, or that were routed, get the result as an annotation: one more patch, since it is
known only when the job runs. The metric counts every job that this process submitted.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.api import names
from bridge.api.settings import Cluster
from bridge.plan.fit import Places
from bridge.plan.model import Json, Plan
from bridge.plan.numa import domain_vnodes, kept_whole, span
from bridge.plan.placement import NumaWish
from bridge.pods.record import Record
from pbs_adapter.models import Census, Observation


class NumaSpans:
    """`observe(kind, domains)` takes figures: given, estimated_fewest and estimated_most."""

    def __init__(self, cluster: Cluster, observe: Callable[[str, int], None]) -> None:
        self._places = Places(cluster.numa.hosts)
        self._observe = observe
        self._census: Census | None = None
        self._domains: frozenset[str] = frozenset()

    def submitted(self, plan: Plan, census: Census | None, record: Record) -> Plan:
        """The plan to submit; notes in the record what is expected of it."""
        record.counts_numa = True
        if census is not None:
            wish: NumaWish = "require" if plan.numa == "require" else "prefer"
            record.numa_expected = self._places.of(plan.options, None, census, wish).domains_now
        return kept_whole(plan, census)

    def shown(self, pod: Json, plan: Plan, census: Census | None, seen: Observation | None, record: Record) -> str:
        """The annotation that the pod should have; "" when it needs none, or nothing is known yet."""
        if record.span is None and seen is not None and census is not None and seen.status is not None:
            if census is not self._census:
                self._census, self._domains = census, domain_vnodes(census.vnodes)
            ended = seen.status.get("phase") == "Ended"
            if seen.pbs.exec_vnode or ended or not self._domains:  # PBS's word, later than podrun's, counts more
                record.span = span(seen.pbs.exec_vnode, seen.status.get("numa"), self._domains)
                self._count(record)
        annotations = pod["metadata"].get("annotations", {})
        if record.span is None or (plan.numa not in ("prefer", "require") and names.ROUTED not in annotations):
            return ""
        return record.span.text(record.numa_expected)

    def _count(self, record: Record) -> None:
        if record.span is None or not record.counts_numa:
            return
        self._observe("given", record.span.domains)
        if record.numa_expected is not None:
            self._observe("estimated_fewest", record.numa_expected[0])
            self._observe("estimated_most", record.numa_expected[1])
