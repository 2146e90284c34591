"""The fields of PodSpec as Kubernetes' OpenAPI v3 document of api/v1 has them, and a compact form to keep in a file.

The fixture was made from a real API server's document::

    kubectl get --raw /openapi/v3/api/v1 | python tests/unit/openapi_fields.py > tests/unit/fixtures/podspec-1.36.txt
"""

from __future__ import annotations

import json
import sys
from typing import Any

_PREFIX = "io.k8s.api.core.v1."
Types = dict[str, dict[str, str]]  # type → field (with [] or {} for lists and maps) → type of its content, "" for plain


def types(document: dict[str, Any], root: str = _PREFIX + "PodSpec") -> Types:
    """All types that PodSpec is made of."""
    schemas, found, todo = document["components"]["schemas"], {}, [root]
    for name in todo:  # grows while it is walked
        fields = {}
        for field, schema in sorted(schemas[name].get("properties", {}).items()):
            suffix, content = "", schema
            if schema.get("type") == "array":
                suffix, content = "[]", schema["items"]
            elif "additionalProperties" in schema:
                suffix, content = "{}", schema["additionalProperties"]
            inner = _reference(content)
            if inner and schemas[inner].get("properties"):
                fields[field + suffix] = _short(inner)
                if inner not in todo:
                    todo.append(inner)
            else:
                fields[field + suffix] = ""
        found[_short(name)] = fields
    return found


def _reference(schema: dict[str, Any]) -> str:
    candidates = [schema, *schema.get("allOf", [])]
    return next((c["$ref"].rpartition("/")[2] for c in candidates if "$ref" in c), "")


def _short(name: str) -> str:
    return name.removeprefix(_PREFIX)


def dump(known: Types) -> str:
    """One line a type: its name, then `field=Type` or `field`."""
    lines = [" ".join([name, *(f"{f}={t}" if t else f for f, t in fields.items())]) for name, fields in known.items()]
    return "\n".join(lines) + "\n"


def read(text: str) -> Types:
    """The reverse of dump()."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: {field: kind for field, _, kind in (word.partition("=") for word in row[1:])} for row in rows}


def paths(known: Types, root: str = "PodSpec") -> list[str]:
    """Every path such as `containers[].env[].name`; types that hold themselves are walked once a branch."""
    found = []

    def walk(name: str, at: str, above: frozenset[str]) -> None:
        for field, kind in known[name].items():
            path = f"{at}.{field}" if at else field
            found.append(path)
            if kind and kind not in above:
                walk(kind, path, above | {kind})

    walk(root, "", frozenset())
    return found


if __name__ == "__main__":
    sys.stdout.write(dump(types(json.load(sys.stdin))))
