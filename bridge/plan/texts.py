"""Texts of a PodSpec that no part of the bridge may ever use: one walk over the whole spec, before anything reads it.

The API server checks few texts. A NUL ends an option where options are joined by it, a newline starts a line of its
own where a message is printed, and `../../kube-system/secrets/x` is another object where a URL is made of it.
So control characters and half characters (lone surrogates) are refused in every text and key of the spec, but for the
ones that are a program's own affair: command, args, the value of a variable and the names of files in its volumes may
hold anything that the kernel takes, which is all but NUL. What names an object of Kubernetes must be a DNS subdomain,
whatever the API server lets through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from bridge.plan.model import Json, Refusal

MOST_VALUES = 20_000  # in one spec: some questions are asked of each container for each of its variables or mounts
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_FREE = re.compile(
    r"(?:initContainers|containers|ephemeralContainers)\[\]\.(?:command\[\]|args\[\]|env\[\]\.value)"
    r"|volumes\[\]\.(?:projected\.sources\[\]\.)?(?:configMap|secret|downwardAPI)\.items\[\]\.path"
)
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_SHORT = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NAMES_WHAT = "must be the name of an object: lower-case letters, digits, - and ., at most 253 (a DNS subdomain)"
_SHORT_WHAT = "must be lower-case letters, digits and -, at most 63, first and last no - (a DNS label)"
# Every field that names an object of Kubernetes; a test walks the API's schema for further ones.
_OBJECTS = re.compile(
    r"(?:\w+\[\]\.(?:env\[\]\.valueFrom\.(?:configMap|secret)KeyRef|envFrom\[\]\.(?:configMap|secret)Ref)\.name"
    r"|volumes\[\]\.(?:projected\.sources\[\]\.)?(?:configMap\.name|secret\.name|secret\.secretName)"
    r"|volumes\[\]\.persistentVolumeClaim\.claimName|volumes\[\]\.(?:\w+\.)+secretRef\.name"
    r"|imagePullSecrets\[\]\.name|resourceClaims\[\]\.(?:resourceClaimName|resourceClaimTemplateName)"
    r"|serviceAccountName|serviceAccount|priorityClassName|runtimeClassName|nodeName)"
)
_LABELS = re.compile(r"(?:initContainers|containers|volumes)\[\]\.name")


_Trail = tuple[Any, ...]  # (trail of the parent, key or index); () for the spec itself


def problems(spec: Json) -> Iterator[Refusal]:
    """What the spec says that must not be used, in its order; the paths hold no such text themselves."""
    todo: list[tuple[object, str, _Trail]] = [(spec, "", ())]
    seen = 0
    while todo:  # no recursion: a file given to `render` may be as deep as it likes
        seen += 1
        if seen + len(todo) > MOST_VALUES:
            yield Refusal("spec", f"has more than {MOST_VALUES} values, which takes longer to read than a job is worth")
            return
        value, pattern, trail = todo.pop()
        if isinstance(value, str):
            if (wrong := _problem(value, pattern)) is not None:
                yield Refusal(_path(trail), wrong)
        elif isinstance(value, list):
            inner = pattern + "[]"
            todo += [(value[n], inner, (trail, n)) for n in range(len(value) - 1, -1, -1)]
        elif isinstance(value, dict):
            head = pattern + "." if pattern else ""
            for key in value:
                if not str(key).isidentifier() and _CONTROL.search(str(key)):
                    yield Refusal(_path((trail, key)), "has a control character in its name; leave it out")
            todo += [(child, f"{head}{key}", (trail, key)) for key, child in reversed(value.items())]


def _path(trail: _Trail) -> str:
    """The path for people; made for what is refused only, since most specs have nothing of the kind."""
    parts: list[str] = []
    while trail:
        trail, key = trail
        parts.append(f"[{key}]" if isinstance(key, int) else f".{escaped(str(key)[:80])}")
    return "spec" + "".join(reversed(parts))


def control(text: str) -> bool:
    """Whether the text holds what no path, name or option may hold."""
    return _CONTROL.search(text) is not None


def escaped(text: str) -> str:
    """`text` without control characters, for messages.

    >>> escaped("a\\0b\\n"), escaped("a é b")
    ('a\\\\x00b\\\\n', 'a é b')
    """
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def is_object_name(name: str) -> bool:
    """Whether an object of Kubernetes may have this name.

    >>> is_object_name("a.b-1"), is_object_name("../x"), is_object_name(""), is_object_name("a..b")
    (True, False, False, False)
    """
    return _NAME.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _sort(pattern: str) -> str:
    """What kind of text stands at a pattern of the schema."""
    rules = (("free", _FREE), ("object", _OBJECTS), ("label", _LABELS))
    return next((sort for sort, rule in rules if rule.fullmatch(pattern)), "")


def _problem(text: str, pattern: str) -> str | None:
    sort = _sort(pattern)
    if sort == "free":
        return "has a NUL byte, which no program can be given; leave it out" if "\0" in text else None
    if (found := _CONTROL.search(text)) is not None:
        return f"has the control character {found[0]!a} in it; leave it out"
    if sort == "object" and text and not is_object_name(text):
        return f"{text[:80]!r} {_NAMES_WHAT}"
    if sort == "label" and text and not _SHORT.fullmatch(text):
        return f"{text[:80]!r} {_SHORT_WHAT}"
    return None
