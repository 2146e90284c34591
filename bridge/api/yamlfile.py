"""A YAML file as plain data that remembers the line of every key, so that mistakes can be pointed at.

Stricter than PyYAML's loader: keys are texts, and none may be there twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: `file:line: field: what is wrong; what would be right`."""

    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field + ': ' if self.field else ''}{self.message}"


@dataclass(slots=True)
class Document:
    """The data of one file, the line of each path in it, and what was wrong with it as YAML."""

    file: str
    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of `path`, or of the nearest of its parents that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: Path, message: str) -> Problem:
        """A mistake at `path`."""
        return Problem(self.file, self.line(path), dotted(path), message)


def dotted(path: Path) -> str:
    """`clusters[0].name` from `("clusters", 0, "name")`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def parse(text: str, file: str) -> Document:
    """Read one document. Never raises: syntax errors and doubled keys are among its problems."""
    document = Document(file)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        message = f"is not YAML: {getattr(error, 'problem', None) or error}"
        document.problems.append(Problem(file, mark.line + 1 if mark else 1, "", message))
        return document
    if node is not None:
        document.data = _data(node, (), document, ())
    return document


def _data(node: yaml.Node, path: Path, document: Document, above: tuple[int, ...]) -> Any:
    document.lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in above:
        document.problems.append(document.problem(path, "refers to itself; write it out"))
        return None
    above = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document, above)
    if isinstance(node, yaml.SequenceNode):
        return [_data(item, (*path, index), document, above) for index, item in enumerate(node.value)]
    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError):
        document.problems.append(document.problem(path, f"{str(node.value)[:60]!r} has no meaning here; quote it"))
        return None


def _mapping(node: yaml.MappingNode, path: Path, document: Document, above: tuple[int, ...]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(getattr(key_node, "value", "")) if isinstance(key_node, yaml.ScalarNode) else "?"
        here = (*path, key)
        line = key_node.start_mark.line + 1
        if key in data:
            first = document.lines[here]
            message = f"is there twice, first in line {first}; keep one of them"
            document.problems.append(Problem(document.file, line, dotted(here), message))
            continue
        document.lines[here] = line
        data[key] = _data(value_node, here, document, above)
    return data
