"""What the settings say of qsub's options: checked when they are read, by the same rules as when a job is submitted.

A queue name that PBS refuses would otherwise fail every pod, one by one, with PBS's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pbs_adapter.script import problem

ByNamespace = str | dict[str, str]
ANY = "*"
PLACES = ("free", "pack", "scatter", "vscatter", "shared", "excl", "exclhost", "group")


def of(value: ByNamespace | None, namespace: str) -> str | None:
    """The value for one namespace: the one for all, or the namespace's own, or that of `*`.

    >>> of("x", "a"), of({"a": "x", "*": "y"}, "a"), of({"a": "x", "*": "y"}, "b"), of({"a": "x"}, "b")
    ('x', 'x', 'y', None)
    """
    return value.get(namespace, value.get(ANY)) if isinstance(value, dict) else value


def place_problem(value: str, allowed: Iterable[str]) -> str | None:
    """Why the settings do not let a pod be placed so; None: they do.

    >>> place_problem("scatter:excl", ("scatter",)), place_problem("group=rack", ("group",))
    ("excl is not among the placements that pods may choose here (scatter)", None)
    """
    allowed = tuple(allowed)
    words = [part.partition("=")[0] for part in value.split(":")]
    wrong = [word for word in words if word not in allowed]
    what = ", ".join(allowed) or "none"
    return f"{' and '.join(wrong)} is not among the placements that pods may choose here ({what})" if wrong else None


def problems(
    queues: Iterable[tuple[str, str | None]],
    projects: Mapping[str, str],
    accounting: Mapping[str, str],
    groups: Mapping[str, str],
    resources: Mapping[str, str],
    chunk: Mapping[str, ByNamespace],
    wide: Mapping[str, ByNamespace],
) -> Iterator[str]:
    """What is wrong, as `field: text`."""
    for field, name in queues:
        if name is not None and (wrong := problem("queue", name)):
            yield f"{field}: {wrong}"
    maps = (("projects", "project", projects), ("accounting", "accounting", accounting), ("groups", "group", groups))
    for field, option, by_namespace in maps:
        for namespace, value in by_namespace.items():
            if wrong := problem(option, value):
                yield f"{field}: of {namespace}: {wrong}"
    for resource, name in resources.items():
        if wrong := problem("resource", name):
            yield f"resources: of {resource}: {wrong}"
    for field, option, given in (("chunkResources", "chunk", chunk), ("jobResources", "wide", wide)):
        for name, values in given.items():
            if wrong := problem("resource", name):
                yield f"{field}: {wrong}"
            if field == "chunkResources" and name in resources.values():
                yield f"{field}: {name} is asked for by pods (resources), so it cannot be fixed; leave one of them out"
            for value in values.values() if isinstance(values, dict) else (values,):
                if wrong := problem(option, value):
                    yield f"{field}: of {name}: {wrong}"
