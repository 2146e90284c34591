"""Log events and metrics: one place, so that names are constant and secrets stay out.

A log event is a dotted name with fields (`pod.submitted`, pod_uid=…, job_id=…), never a sentence. The metrics belong
to a `Metrics` object with a registry of its own, so that tests and several agents in one process do not share any.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

try:
    VERSION = version("hpc-bridge")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0.0.0"

_SECRET_WORDS = ("authorization", "password", "secret_value", "token", "private_key", "credential")
_SUBMIT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)
_DOMAIN_BUCKETS = (1, 2, 3, 4, 6, 8, 16)
_POLL_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30)


def configure_logging(form: Literal["json", "console"], level: str = "info", stream: TextIO | None = None) -> None:
    """Send log events of at least `level` to `stream` (standard error), one line each.

    The standard library's loggers (aiohttp, asyncio, paramiko) come out of the same pipe, from WARNING up.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        mask_secrets,
    ]
    renderer: structlog.typing.Processor
    if form == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=(stream or sys.stderr).isatty())
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("hpc-bridge").setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=_factory,
        cache_logger_on_first_use=False,
    )


def _factory(*args: Any) -> logging.Logger:
    """Our loggers are children of one, so that its level alone decides about them."""
    return logging.getLogger(f"hpc-bridge.{args[0]}" if args else "hpc-bridge")


def mask_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Replace the value of any field whose name says that it is a secret: the last net, not the first.

    >>> mask_secrets(None, "info", {"event": "x", "bearer_token": "abc", "pod_uid": "1"})
    {'event': 'x', 'bearer_token': '***', 'pod_uid': '1'}
    """
    for key in event:
        if any(word in key.lower() for word in _SECRET_WORDS):
            event[key] = "***"
    return event


class Metrics:
    """All metrics of one agent. `text()` is what `/metrics` answers."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.pods = Gauge("hpc_bridge_pods", "Pods on the virtual nodes by state.", ["node", "state"], registry=r)
        self.submit_seconds = Histogram(
            "hpc_bridge_submit_seconds",
            "Time from the request to the job id.",
            ["cluster"],
            buckets=_SUBMIT_BUCKETS,
            registry=r,
        )
        self.poll_seconds = Histogram(
            "hpc_bridge_poll_seconds",
            "Time of one answer: a census, or a report of jobs less the wait asked for.",
            ["cluster", "kind"],
            buckets=_POLL_BUCKETS,
            registry=r,
        )
        self.numa_domains = Histogram(
            "hpc_bridge_numa_domains",
            "NUMA domains of started jobs: kind given, and estimated_fewest and estimated_most when submitted.",
            ["cluster", "kind"],
            buckets=_DOMAIN_BUCKETS,
            registry=r,
        )
        self.channel_connected = Gauge(
            "hpc_bridge_channel_connected",
            "1 while the channel to the account works.",
            ["cluster", "account"],
            registry=r,
        )
        self.task_failures = Counter(
            "hpc_bridge_task_failures_total",
            "Tasks of the agent that failed and were started again; cluster empty: of the agent as a whole.",
            ["cluster", "task"],
            registry=r,
        )
        self.false_reports = Counter(
            "hpc_bridge_false_reports_total",
            "What an account said of pods that another account serves; it was dropped.",
            ["cluster", "account"],
            registry=r,
        )
        self.routed = Counter(
            "hpc_bridge_routed_total", "Pods routed, by rule and cluster (local: released).", ["rule", "to"], registry=r
        )
        self.api_writes = Counter(
            "hpc_bridge_api_writes_total",
            "Writes to the Kubernetes API; code 0: no answer.",
            ["resource", "verb", "code"],
            registry=r,
        )
        self.events_dropped = Counter(
            "hpc_bridge_events_dropped_total", "Events that were not written.", ["why"], registry=r
        )
        self.sweep_stopped = Gauge(
            "hpc_bridge_sweep_stopped",
            "1 while the sweep refuses to cancel because too many jobs look orphaned.",
            ["cluster"],
            registry=r,
        )
        self.swept = Counter("hpc_bridge_swept_jobs_total", "Orphaned jobs cancelled.", ["cluster"], registry=r)

    def text(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)

    def text_of(self, cluster: str, node: str) -> bytes:
        """The same, without what tells of other clusters and their nodes."""
        return generate_latest(_Part(self.registry, {"cluster": cluster, "to": cluster, "node": node}))


class _Part:
    """A registry as far as samples have these values, or no such label."""

    def __init__(self, whole: CollectorRegistry, values: Mapping[str, str]) -> None:
        self._whole, self._values = whole, values

    def collect(self) -> Iterator[Metric]:
        for found in self._whole.collect():
            part = Metric(found.name, found.documentation, found.type, found.unit)
            part.samples = [
                sample
                for sample in found.samples
                if all(sample.labels.get(label, value) == value for label, value in self._values.items())
            ]
            yield part
