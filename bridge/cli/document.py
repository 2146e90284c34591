"""Writes the reference pages and the CRD, which come from code: `python -m bridge.cli.document [--check] [CHECKOUT]`.

With `--check` nothing is written, and the exit status is 1 when a file differs from what the code says.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from bridge.api import names, reasons
from bridge.api.crd import crd
from bridge.api.load import load
from bridge.api.routing import GROUP, KIND, VERSION, RoutingRuleSpec, parse_quantity
from bridge.api.settings import Settings, parse_bytes, parse_duration, parse_range
from bridge.plan.container_fields import CONTAINER
from bridge.plan.pod_fields import POD
from bridge.plan.verdicts import Honoured, Ignored, Refused, Verdict
from bridge.plan.volume_fields import VOLUME
from bridge.setup.manifests import manifests, printed
from bridge.telemetry import Metrics

_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_RANGE = "number or `[low, high]`"
_READERS: tuple[tuple[Callable[[Any], object], str], ...] = (
    (parse_duration, "duration"),
    (parse_bytes, "size"),
    (parse_quantity, "quantity"),
    (parse_range, _RANGE),
)
_MADE = "<!-- Made from the code by `python -m bridge.cli.document`; do not edit. -->\n"


def main(arguments: list[str]) -> int:
    """Write or check all files; the exit status."""
    checkout = Path(next((a for a in arguments if not a.startswith("-")), "."))
    differing = []
    for name, text in files(checkout).items():
        path = checkout / name
        if "--check" in arguments:
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                differing.append(str(path))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path_name in differing:
        sys.stderr.write(f"{path_name} differs from the code; run python -m bridge.cli.document\n")
    return 1 if differing else 0


def files(checkout: Path = Path()) -> dict[str, str]:
    """Path in the checkout to content."""
    return {f"docs/reference/{name}": text for name, text in pages().items()} | {
        "deploy/routing/crd-routingrules.yaml": crd_file(),
        "deploy/node/manifests.yaml": manifests_file(checkout / "deploy/node/bridge.yaml"),
    }


def manifests_file(settings: Path) -> str:
    """What `hpc-bridge manifests` prints for the example."""
    return printed(manifests(load(settings, files=False), settings.read_text(encoding="utf-8")))


def crd_file() -> str:
    """The CustomResourceDefinition of RoutingRule."""
    head = "# Made from bridge/api/routing.py by `python -m bridge.cli.document`; do not edit.\n"
    plain = json.loads(json.dumps(crd()))  # nothing in it is the same object twice, for which YAML would write anchors
    return head + yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=True)


def pages() -> dict[str, str]:
    """File name to content."""
    return {
        "configuration.md": configuration_page(),
        "routing-rule.md": routing_rule_page(),
        "pod-fields.md": pod_fields_page(),
        "annotations.md": annotation_page(),
        "reasons.md": reason_page(),
        "metrics.md": metrics_page(),
    }


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines)


def configuration_page() -> str:
    """bridge.yaml, one table a mapping."""
    parts = [
        "# Configuration: bridge.yaml\n",
        _MADE,
        "Check a file with `hpc-bridge validate -c bridge.yaml`. Durations are seconds or `90s`, `15m`, `2h`, `1h30m`, "
        "`HH:MM:SS`; sizes are bytes or `512Mi`, `2Gi`. Relative paths are relative to the file. Keys that are not "
        "listed here are mistakes.\n",
    ]
    return "\n".join(parts + _tables(Settings))


def routing_rule_page() -> str:
    """RoutingRule, one table a mapping."""
    parts = [
        "# RoutingRule\n",
        _MADE,
        f"`apiVersion: {GROUP}/{VERSION}`, `kind: {KIND}`, not namespaced. What stands below is its `spec`. Durations "
        "are seconds or `90s`, `15m`, `2h`, `1h30m`, `HH:MM:SS`; quantities are those of Kubernetes. The API server "
        "refuses what is wrong in itself; what is not there (a cluster, a queue) is told by condition `Accepted`. "
        "[Write a rule](../how-to/write-a-rule.md) has examples and says which rule wins.\n",
    ]
    return "\n".join(parts + _tables(RoutingRuleSpec))


def _tables(root: type[BaseModel]) -> list[str]:
    parts = []
    for model in _models(root):
        parts.append(f"## {model.__name__}\n\n{' '.join((model.__doc__ or '').split())}\n")
        rows = [_setting(name, field) for name, field in model.model_fields.items()]
        parts.append(_table(("key", "value", "left out", "meaning"), rows))
    return parts


def _models(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for each in found:  # grows while it is walked
        for field in each.model_fields.values():
            found += [inner for inner in _inner(field.annotation) if inner not in found]
    return found


def _inner(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _inner(argument)]


def _setting(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    default = "required" if field.is_required() else _default(field)
    return f"`{field.alias or name}`", _value(field), default, field.description or ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}) or isinstance(value, BaseModel):
        return "–"
    if _read(field.metadata) == "size":
        return f"`{value >> 20}Mi`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if _read(field.metadata) == _RANGE:
        return f"`{list(value)}`"
    return f"`{', '.join(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _value(field: FieldInfo) -> str:
    return _read(field.metadata) or _kind(field.annotation)


def _read(metadata: Sequence[object]) -> str:
    """What a value is called that one of our own readers reads; else empty."""
    readers = [m.func for m in metadata if isinstance(m, BeforeValidator)]
    return next((name for reader, name in _READERS if reader in readers), "")


def _kind(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{argument}`" for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(argument) for argument in arguments if argument is not type(None))
    if origin is typing.Annotated:
        return _read(arguments[1:]) or _kind(arguments[0])
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return f"map to {_kind(arguments[1])}"
    return _PLAIN[annotation]


def pod_fields_page() -> str:
    """The table of every field of PodSpec."""
    parts = [
        "# Pod fields\n",
        _MADE,
        "Every field of a pod is honoured (with its Kubernetes meaning; the test named shows it), refused (the pod "
        "fails with reason `UnsupportedPodField` and the message below, in an Event too), or ignored, for the reason "
        "given. What is below a field without a row of its own shares its fate. A field that a newer Kubernetes "
        "brings is refused until it has a row here.\n",
        "Containers get no variables of Services (`KUBERNETES_SERVICE_HOST` and the like). `status.hostIP` is the "
        "virtual node's address; `status.podIP` is refused, because it is not known before the job runs. A limit that "
        "a container does not set is, in `resourceFieldRef`, what PBS gives the job.\n",
    ]
    for title, rows in (
        ("spec", POD),
        ("spec.containers[] and spec.initContainers[]", CONTAINER),
        ("spec.volumes[]", VOLUME),
    ):
        parts.append(f"## {title}\n")
        parts.append(_table(("field", "", ""), [_row(path, verdict) for path, verdict in sorted(rows.items())]))
    return "\n".join(parts)


def _row(path: str, verdict: Verdict) -> tuple[str, str, str]:
    match verdict:
        case Honoured(test=test):
            return f"`{path}`", "honoured", f"`{test}`"
        case Ignored(reason=reason):
            return f"`{path}`", "ignored", reason
        case Refused(message=message, accepts=accepts):
            fine = ", ".join(f"`{_shown(value)}`" for value in accepts)
            text = message[0].upper() + message[1:] + "."
            return f"`{path}`", "refused", f"{text} Accepted: {fine}." if fine else text


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def annotation_page() -> str:
    """Annotations, labels and taints."""
    written = [name for name in names.MEANING if name not in (*names.AUTHOR_ANNOTATIONS, *names.AUTHOR_LABELS)]
    return "\n".join(
        [
            "# Annotations, labels and taints\n",
            _MADE,
            "## What a pod's author may write\n",
            "An annotation under `hpc-bridge.io/` that is not listed, or a value that may not be passed to PBS, fails "
            "the pod with reason `InvalidAnnotation` and says what would be right. Nothing of it reaches a shell.\n",
            _table(("annotation", "meaning"), [(f"`{n}`", names.MEANING[n]) for n in names.AUTHOR_ANNOTATIONS]),
            "## Labels\n",
            "Labels decide whether and how a pod is routed. A value that is not listed is ignored, and the pod's Event "
            "says so.\n",
            _table(("label", "meaning"), [(f"`{n}`", names.MEANING[n]) for n in names.AUTHOR_LABELS]),
            "## What the bridge writes\n",
            _table(("name", "meaning"), [(f"`{n}`", names.MEANING[n]) for n in written]),
        ]
    )


def reason_page() -> str:
    """Reasons in statuses and Events."""
    return "\n".join(
        [
            "# Reasons\n",
            _MADE,
            "They stand in `kubectl get pods` (STATUS), in container states and in Events. Those that start with PBS "
            "are the bridge's own; the rest are Kubernetes'.\n",
            _table(("reason", "meaning"), [(f"`{name}`", text) for name, text in sorted(reasons.MEANING.items())]),
        ]
    )


def metrics_page() -> str:
    """What /metrics answers."""
    rows = [_metric(each) for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase)]
    return "\n".join(
        [
            "# Metrics\n",
            _MADE,
            "Each virtual node answers `/metrics` (Prometheus' text format) at its kubelet port, for callers who may "
            "get `nodes/metrics`, without what tells of other clusters. All of them together are at "
            "`agent.statusListen`, on loopback. Labels are names from bridge.yaml, states, and what kind of request it "
            "was.\n",
            _table(("metric", "kind", "labels", "meaning"), sorted(rows)),
            "## What to watch\n",
            _table(("question", "expression"), _QUESTIONS),
        ]
    )


_QUESTIONS = (
    ("Is an account's channel down?", "`hpc_bridge_channel_connected == 0`"),
    ("How long does a submission take?", "`histogram_quantile(0.9, rate(hpc_bridge_submit_seconds_bucket[5m]))`"),
    ("Is PBS slow to answer?", "`histogram_quantile(0.9, rate(hpc_bridge_poll_seconds_bucket[10m]))`"),
    ("What is refused by the API server?", '`rate(hpc_bridge_api_writes_total{code!~"2.."}[5m])`'),
    ("Has the sweep stopped itself?", "`hpc_bridge_sweep_stopped == 1`"),
)


def _metric(metric: MetricWrapperBase) -> tuple[str, ...]:
    """A row. prometheus_client keeps the `_total` of counters apart from their name."""
    family = next(iter(metric.describe()))
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in metric._labelnames)
    return f"`{name}`", family.type, labels, family.documentation


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
