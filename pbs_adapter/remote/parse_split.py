"""A large JSON object of PBS, entry by entry: as one tree the vnodes of a large site take ten times their size."""

import re
from typing import Any, Dict, Iterator, Tuple

from .parse_json import load
from .parse_values import ParseError

WHOLE = 2 * 1024 * 1024  # bytes up to which a text is read as one, which is faster
MOST_WHOLE = 6 * 1024 * 1024  # the same where it cannot be taken apart: a site's odd quoting
_ENTRY = 512 * 1024  # bytes of one entry
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)


def entries(text: bytes, name: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """(key, tree) of each entry of the top-level object `name`. Raises ParseError for what is broken or cut off."""
    if len(text) > WHOLE:
        try:
            yield from _apart(text, name)
            return
        except ParseError:
            if len(text) > MOST_WHOLE:
                raise
    document = load(text)
    if not document.complete or (not document.valid and name not in document.tree):
        raise ParseError(document.problem)
    section = document.tree.get(name, {})
    if not isinstance(section, dict):
        raise ParseError("{} is not an object".format(name))
    for key, tree in section.items():
        if isinstance(tree, dict):
            yield key, tree


def _apart(text: bytes, name: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    opening = re.search(rb'"' + re.escape(name.encode("ascii")) + rb'"\s*:\s*\{', text)
    if opening is None:
        raise ParseError("no {} in {} bytes".format(name, len(text)))
    depth, start, closed = 0, opening.end(), False
    for token in _TOKEN.finditer(text, opening.end()):
        mark = token.group()[:1]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            if depth == 0:
                closed = not text[start : token.start()].strip(b", \t\r\n")
                break
            depth -= 1
            if depth == 0:
                yield _entry(text[start : token.end()])
                start = token.end()
        if token.end() - start > _ENTRY:
            raise ParseError("an entry of more than {} bytes".format(_ENTRY))
    if not closed:
        raise ParseError("cut off")


def _entry(text: bytes) -> Tuple[str, Dict[str, Any]]:
    """Of `,"key":{…}`."""
    document = load(b"{" + text.lstrip(b", \t\r\n") + b"}")
    for key, tree in document.tree.items():
        if document.valid and isinstance(tree, dict):
            return key, tree
    raise ParseError("not an entry: {!r}".format(text[:100]))
