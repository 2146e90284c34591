"""The CustomResourceDefinition of RoutingRule, made from the pydantic models of `bridge.api.routing`.

`python -m bridge.cli.document` writes it to deploy/routing/crd-routingrules.yaml. A CRD's schema is "structural": no
references, no null, no additionalProperties beside properties; numbers have no strict bounds.
"""

from __future__ import annotations

from typing import Any

from bridge.api.routing import GROUP, KIND, PLURAL, VERSION, RoutingRuleSpec

Json = dict[str, Any]
# What a structural schema has in common with pydantic's; the rest is either resolved or says nothing more.
_KEPT = (
    *("description", "type", "enum", "default", "pattern", "minLength", "maxLength", "minimum", "maximum"),
    *("maxItems", "maxProperties", "required", "x-kubernetes-int-or-string", "x-kubernetes-validations"),
)
_COLUMNS = (
    ("Mode", "string", ".spec.mode", "What happens to the pods it is for."),
    ("Objective", "string", ".spec.objective", "What is best."),
    ("Candidates", "string", ".status.candidates", "Where they may go."),
    ("Routed (1h)", "integer", ".status.routed", "Pods sent to a candidate in the last hour."),
    ("Accepted", "string", ".status.conditions[?(@.type=='Accepted')].status", "Whether all of it can be used."),
    ("Age", "date", ".metadata.creationTimestamp", ""),
)


def crd() -> Json:
    """The whole object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, description: str) -> Json:
    return {"name": name, "type": kind, "jsonPath": path} | ({"description": description} if description else {})


def _root() -> Json:
    schema = RoutingRuleSpec.model_json_schema(by_alias=True)
    return {
        "description": "Says which pods may go to which HPC clusters, and how one is chosen.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(schema, schema["$defs"]),
            "status": _STATUS,
        },
    }


def structural(shape: Json, definitions: Json) -> Json:
    """A JSON schema of pydantic as a structural one. `definitions` are its `$defs`."""
    if "$ref" in shape:
        named = definitions[shape["$ref"].rpartition("/")[2]]
        return structural(named | {key: value for key, value in shape.items() if key != "$ref"}, definitions)
    if "anyOf" in shape:  # something or null; a field that is left out says the same
        (given,) = [member for member in shape["anyOf"] if member.get("type") != "null"]
        return structural(given | {key: value for key, value in shape.items() if key != "anyOf"}, definitions)
    # An empty list or map as default would show in every object, and say nothing.
    made = {key: shape[key] for key in _KEPT if key in shape and (key != "default" or shape[key] not in (None, [], {}))}
    if "properties" in shape:
        made["properties"] = {name: structural(inner, definitions) for name, inner in shape["properties"].items()}
    elif isinstance(shape.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(shape["additionalProperties"], definitions)
    if "items" in shape:
        made["items"] = structural(shape["items"], definitions)
    return made


_STATUS: Json = {
    "description": "Written by the agent.",
    "type": "object",
    "properties": {
        "candidates": {"description": "The candidates in a few words.", "type": "string"},
        "routed": {"description": "Pods sent to a candidate in the last hour.", "type": "integer", "minimum": 0},
        "conditions": {
            "description": "Accepted: all of it can be used. Shadowed: another rule was more specific for some pods.",
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                "properties": {
                    "type": {"type": "string", "maxLength": 316},
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string", "maxLength": 1024},
                    "message": {"type": "string", "maxLength": 32768},
                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                    "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                },
            },
        },
    },
}
