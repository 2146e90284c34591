"""`-F json`, `-F dsv` and the plain `-f` text, as the two recorded versions write them, with their faults; pure.

An object is a list of (name, value); a value is a string, a number, a nested list of pairs, or a list of strings.
Variable_List is given as the string that the server keeps.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from .values import split_variable_list

Pairs = list[tuple[str, Any]]

_RELEASE_NUMBER = re.compile(
    r"\s*[+-]?(?:0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan(?:\(\w*\))?)\s*",
    re.IGNORECASE,
)
_CJSON_NUMBER = re.compile(r"-?\d[0-9+\-eE.]*")
_FORCED_STRINGS = frozenset({"Job_Name", "project", "Account_Name"})
_SAFE = re.compile(r'[^"\\\x00-\x1f]*')
LINE_LIMIT = 79
CACHE = 1 << 14
"""Most values are the same for most jobs."""


def json_document(dialect: str, head: Pairs, kind: str, objects: Iterable[tuple[str, Pairs]] | None) -> Iterator[str]:
    """The document in pieces, one or more for each object, so that a long list need not be made at once.

    `objects` is None where the document has no such section (nothing was found).
    """
    if dialect == "main":
        yield from _main_document(head, kind, objects)
    else:
        yield from _release_document(head, kind, objects)


def _release_document(head: Pairs, kind: str, objects: Iterable[tuple[str, Pairs]] | None) -> Iterator[str]:
    yield "{\n" + ",\n".join(f'    "{name}":{_release_value(value)}' for name, value in head)
    if objects is None:
        yield "\n}"
        return
    yield f',\n    "{kind}":{{'
    comma = ""
    for name, pairs in objects:
        yield f'{comma}\n        "{name}":{{\n{_release_pairs(pairs, 12)}\n        }}'
        comma = ","
    yield "\n    }\n}\n"


def _release_pairs(pairs: Pairs, indent: int) -> str:
    pad = " " * indent
    lines: list[str] = []
    for name, value in pairs:
        if name == "Variable_List" and isinstance(value, str):
            value = [(key, text) for key, text in split_variable_list(value) if text is not None]
        if isinstance(value, dict):
            value = list(value.items())
        if isinstance(value, list) and value and isinstance(value[0], str):
            items = ",\n".join(f'{pad}    "{item}"' for item in value)
            lines.append(f'{pad}"{name}":[\n{items}\n{pad}]')
        elif isinstance(value, list):
            inner = _release_pairs(value, indent + 4)
            lines.append(f'{pad}"{name}":{{\n{inner}{chr(10) if inner else ""}{pad}}}')
        else:
            lines.append(f'{pad}"{name}":{_release_value(value)}')
    return ",\n".join(lines)


def _release_value(value: Any) -> str:
    return str(value) if isinstance(value, int) else _release_text(str(value))


@functools.lru_cache(maxsize=CACHE)
def _release_text(text: str) -> str:
    if text and not text.isspace() and _RELEASE_NUMBER.fullmatch(text) and (text[0] != "0" or _below_one(text)):
        return text  # whatever strtod takes is printed without quotes, valid JSON or not
    return f'"{_release_escape(text)}"'


def _below_one(text: str) -> bool:
    try:
        return (float.fromhex(text) if text[1:2] in "xX" and len(text) > 1 else float(text)) < 1
    except ValueError:
        return False


def _release_escape(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    out: list[str] = []
    at = 0
    plain = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    while at < len(text):
        char = text[at]
        if char == '"':
            out.append('"' if at and text[at - 1] == "\\" else '\\"')
        elif char == "\\":
            following = text[at + 1 : at + 2]
            out.append(following if following in ("'", ",") and following else char + following)
            at += len(following)
        else:
            out.append(plain.get(char) or visible(char))
        at += 1
    return "".join(out)


def visible(text: str) -> str:
    """Control characters as ^X, as qstat shows them."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda match: f"^{chr(ord(match[0]) ^ 64)}", text)


def _main_document(head: Pairs, kind: str, objects: Iterable[tuple[str, Pairs]] | None) -> Iterator[str]:
    yield "{\n" + ",\n".join(f'\t"{name}":\t{_main_value(name, value)}' for name, value in head)
    if objects is None:
        yield "\n}\n"
        return
    yield f',\n\t"{kind}":\t{{'
    comma = ""
    for name, pairs in objects:
        yield f'{comma}\n\t\t"{name}":\t{{\n{_main_pairs(pairs, 3)}\n\t\t}}'
        comma = ","
    yield "\n\t}\n}\n"


def _main_pairs(pairs: Pairs, depth: int) -> str:
    pad = "\t" * depth
    lines: list[str] = []
    for name, value in pairs:
        if name == "Variable_List" and isinstance(value, str):
            value = [(key, text) for key, text in split_variable_list(value) if text is not None]
        if isinstance(value, dict):
            value = list(value.items())
        if isinstance(value, list) and value and isinstance(value[0], str):
            items = ", ".join(f'"{_json_escape(item)}"' for item in value)
            lines.append(f'{pad}"{name}":\t[{items}]')
        elif isinstance(value, list):
            inner = _main_pairs(value, depth + 1)
            lines.append(f'{pad}"{name}":\t{{\n{inner}{chr(10) if inner else ""}{pad}}}')
        else:
            lines.append(f'{pad}"{_json_escape(name)}":\t{_main_value(name, value)}')
    return ",\n".join(lines)


def _main_value(name: str, value: Any) -> str:
    """The rewritten emitter reads each string as JSON first; what parses changes its type."""
    if isinstance(value, int):
        return str(value)
    if name in _FORCED_STRINGS:
        return f'"{_json_escape(str(value))}"'
    return _main_text(str(value))


@functools.lru_cache(maxsize=CACHE)
def _main_text(text: str) -> str:
    if text in ("true", "false", "null"):
        return text
    if _CJSON_NUMBER.fullmatch(text):
        try:
            number = float(text)
        except ValueError:
            return f'"{_json_escape(text)}"'
        if number in (float("inf"), float("-inf")):
            return "null"
        return str(int(number)) if number == int(number) and abs(number) < 1e15 else f"{number:.15g}"
    if text[:1] in "[{" and text:
        return _nested(text)
    return f'"{_json_escape(text)}"'


def _nested(text: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except ValueError:
        return f'"{_json_escape(text)}"'


def _json_escape(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    names = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(names.get(char) or (f"\\u{ord(char):04x}" if char < " " else char) for char in text)


def text_object(title: str, name: str, pairs: Pairs) -> str:
    """One object of `-f`: continuation lines begin with a tab and break at commas."""
    lines = [f"{title}: {name}"]
    for key, value in flatten(pairs):
        lines.append(_wrapped(key, value))
    return "\n".join(lines) + "\n\n"


def flatten(pairs: Pairs) -> Iterator[tuple[str, str]]:
    """Resource_List.ncpus and so on."""
    for name, value in pairs:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield f"{name}.{key}", str(inner)
        elif isinstance(value, list):
            yield name, ",".join(value)
        else:
            yield name, str(value)


def _wrapped(key: str, value: str) -> str:
    out = [f"    {key} = "]
    start = len(key) + 7
    parts = [part for part in value.split(",") if part]
    for number, part in enumerate(parts):
        if len(part) + start < LINE_LIMIT:
            out.append(visible(part))
            start += len(part)
        else:
            if number:
                out.append("\n\t")
                start = 9
            for char in part:
                out.append(visible(char))
                start += 1
                if start > LINE_LIMIT:
                    out.append("\n\t")
                    start = 8
        if number < len(parts) - 1:
            out.append(",")
    return "".join(out)


def dsv_object(title: str, name: str, pairs: Pairs, delimiter: str) -> str:
    """One object on one line, delimiters inside values escaped by a backslash."""
    parts = [f"{title}: {name}"]
    for key, value in flatten(pairs):
        escaped = value.replace(delimiter, "\\" + delimiter) if delimiter else value
        parts.append(f"{key}={visible(escaped.replace(chr(10), chr(92) + 'n').replace(chr(12), chr(92) + 'f'))}")
    return delimiter.join(parts) + "\n"
