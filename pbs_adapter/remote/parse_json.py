"""The JSON that PBS prints, which is not always JSON, as a tree whose leaves are the strings that PBS holds.

Two emitters exist. Releases up to 23.06.06 write it by hand, one entry a line: numbers are copied as they stand (`.5`,
`inf`, `+5`), escapes and keys as well. The development branch uses cJSON and reads every value as JSON first, so that
"true", "005" and "[1]" change type. Strict parsing is tried first; when it fails, line by line, so that a bad value of
one job costs that value and not the answer for all jobs. Numbers stay text (`1e5` may be a job's name) until a field
says what it is.
"""

import json
import re
from typing import Any, Dict, Iterable, List, Match, NamedTuple, Tuple

#: Broken UTF-16 in a string would make it impossible to encode later.
_SURROGATES = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*|.?)", re.DOTALL)
_SIMPLE = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_LINE = re.compile(r'\s*"(.*?)"\s*:\s*(.*?)\s*')
_MAX_DEPTH = 50


class Literal(str):
    """The text of a JSON number, or of a value that is not JSON at all."""


class Document(NamedTuple):
    """A tree of dict, list and str (Literal, True, False and None where PBS printed them bare).

    `valid`: it was JSON. `complete`: it was not cut off. `problem` says what was wrong. `cjson`: written by the new
    emitter, whose values keep the backslashes of PBS's own quoting.
    """

    tree: Dict[str, Any]
    valid: bool
    complete: bool
    problem: str
    cjson: bool


def load(text: bytes) -> Document:
    """Never raises: what cannot be understood is left out, and `problem` says so."""
    safe = _SURROGATES.sub(lambda m: m.group(1) or rb"\ufffd", text)
    decoded = safe.decode("utf-8", "surrogateescape")
    cjson = '":\t' in decoded
    if not decoded.strip():
        return Document({}, False, False, "empty output", cjson)
    try:
        tree = json.loads(
            decoded,
            parse_int=Literal,
            parse_float=Literal,
            parse_constant=Literal,
            object_pairs_hook=_merge,
        )
    except (ValueError, RecursionError) as error:
        repaired, complete = _load_lines(decoded)
        problem = "invalid JSON: {}".format(error)
        return Document(repaired, False, complete, problem if complete else problem + "; cut off", cjson)
    if not isinstance(tree, dict):
        return Document({}, False, False, "JSON, but not an object", cjson)
    return Document(tree, True, True, "", cjson)


def render(value: Any) -> str:
    """The string that PBS holds for a leaf or for a value that the emitter turned into a list or object."""
    if isinstance(value, str):
        return str(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[{}]".format(",".join(_render_inner(item) for item in value))
    if isinstance(value, dict):
        return "{{{}}}".format(",".join("{}:{}".format(json.dumps(k), _render_inner(v)) for k, v in value.items()))
    return str(value)


def _render_inner(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, Literal):
        return json.dumps(value, ensure_ascii=False)
    return render(value)


def _merge(pairs: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """An object whose duplicate keys are not lost: PBS prints each limit, and each change of resource, as one more."""
    result = {}  # type: Dict[str, Any]
    for key, value in pairs:
        _put(result, key, value)
    return result


def _put(result: Dict[str, Any], key: str, value: Any) -> None:
    old = result.get(key)
    if isinstance(old, dict) and isinstance(value, dict):
        for inner, item in value.items():
            _put(old, inner, item)
    elif isinstance(old, str) and isinstance(value, str) and old.startswith("[") and value.startswith("["):
        result[key] = old + "," + value
    else:
        result[key] = value


def _load_lines(text: str) -> Tuple[Dict[str, Any], bool]:
    """(tree, complete) of output with one entry a line, as both emitters print it.

    Lines that make no sense are skipped. What was still open at the end of an incomplete document is dropped: half a
    job is worse than none.
    """
    root = {}  # type: Dict[str, Any]
    stack = []  # type: List[Tuple[str, Any]]
    for line in text.split("\n"):
        body = line.strip().rstrip(",")
        if body in ("{", "") and not stack:
            if body:
                stack.append(("", root))
        elif stack and body in ("}", "]"):
            key, done = stack.pop()
            if not stack:
                return root, True
            _add(stack[-1][1], key, done)
        elif stack and len(stack) < _MAX_DEPTH:
            _take(stack, body)
    if len(stack) > 1:
        # The section ("Jobs") that was open: what was closed within it is whole.
        key, section = stack[1]
        _add(root, key, section)
    return root, False


def _take(stack: List[Tuple[str, Any]], body: str) -> None:
    """One line within an object or list: opens a nested one, or adds a value."""
    match = _LINE.fullmatch(body)
    container = stack[-1][1]
    if match is None or (isinstance(container, list) and not body.endswith(("{", "["))):
        if isinstance(container, list) and body:
            container.append(_scalar(body))
        return
    key, value = match.groups()
    if value == "{":
        stack.append((_unescape(key), {}))
    elif value == "[":
        stack.append((_unescape(key), []))
    else:
        _add(container, _unescape(key), _scalar(value))


def _add(container: Any, key: str, value: Any) -> None:
    if isinstance(container, list):
        container.append(value)
    else:
        _put(container, key, value)


def _scalar(text: str) -> Any:
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        return _unescape(text[1:-1])
    if text.startswith(("[", "{")):
        try:
            return json.loads(text, parse_int=Literal, parse_float=Literal, parse_constant=Literal)
        except (ValueError, RecursionError):
            return Literal(text)
    return {"true": True, "false": False, "null": None}.get(text, Literal(text))


def _unescape(text: str) -> str:
    """JSON escapes resolved, anything else after a backslash kept with its backslash."""
    return _ESCAPE.sub(_resolve, text) if "\\" in text else text


def _resolve(match: Match[str]) -> str:
    escape = match.group(1)
    if len(escape) > 1:
        return str(json.loads('"{}"'.format(match.group(0))))
    return _SIMPLE.get(escape, str(match.group(0)))
