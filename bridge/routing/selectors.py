"""Label selectors, as Kubernetes evaluates them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bridge.api.routing import Selector

METADATA_NAME = "kubernetes.io/metadata.name"
"""The label that every Namespace has: its own name."""

Labels = Mapping[str, str]


def requirements(selector: Selector | None) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(label, operator, values) of all that a selector asks for; nothing for None."""
    if selector is not None:
        for label, value in selector.match_labels.items():
            yield label, "In", (value,)
        for each in selector.match_expressions:
            yield each.key, each.operator, each.values


def selects(selector: Selector | None, labels: Labels) -> bool:
    """Whether all of it holds; None and an empty selector select everything."""
    return all(holds(labels, *requirement) for requirement in requirements(selector))


def holds(labels: Labels, label: str, operator: str, values: tuple[str, ...]) -> bool:
    """One requirement. A label that is missing satisfies NotIn, as in Kubernetes."""
    match operator:
        case "In":
            return labels.get(label) in values
        case "NotIn":
            return labels.get(label) not in values
        case "Exists":
            return label in labels
        case _:
            return label not in labels
