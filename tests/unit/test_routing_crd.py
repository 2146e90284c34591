"""The CRD is what the models say, and structural, so that every supported API server takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bridge.api.crd import crd
from bridge.api.routing import RoutingRuleSpec
from bridge.cli.document import files

REPOSITORY = Path(__file__).parents[2]
CRD = "deploy/routing/crd-routingrules.yaml"
Json = dict[str, Any]


def shapes(shape: Json, path: str) -> Iterator[tuple[str, Json]]:
    yield path, shape
    for name, inner in shape.get("properties", {}).items():
        yield from shapes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(shape.get(key), dict):
            yield from shapes(shape[key], path + "[]")


def spec() -> Json:
    root: Json = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: Json = root["properties"]["spec"]
    return found


def test_the_file_is_what_the_models_say() -> None:
    text = (REPOSITORY / CRD).read_text(encoding="utf-8")
    assert text == files()[CRD], "run python -m bridge.cli.document"
    assert yaml.safe_load(text) == crd()


def test_every_field_is_described_typed_and_bounded() -> None:
    for path, shape in shapes(spec(), "spec"):
        assert shape.get("description") or path.endswith("[]"), path
        assert ("type" in shape) != shape.get("x-kubernetes-int-or-string", False), path
        assert not {"$ref", "anyOf", "title", "exclusiveMinimum"} & set(shape), path
        kind = shape.get("type")
        if kind in ("number", "integer"):
            assert {"minimum"} <= set(shape), path
        if kind == "array":
            assert "maxItems" in shape, path
        if "additionalProperties" in shape:
            assert "maxProperties" in shape, path


def test_the_schema_has_every_field_of_the_models_and_their_defaults() -> None:
    properties = spec()["properties"]
    fields = RoutingRuleSpec.model_fields
    assert set(properties) == {field.alias or name for name, field in fields.items()}
    defaults = {key: shape["default"] for key, shape in properties.items() if "default" in shape}
    assert defaults == {
        "mode": "can",
        "localWait": 120,
        "objective": "earliestCompletion",
        "quantile": 0.5,
        "numa": "prefer",
        "hysteresis": 0.1,
        "onUnavailable": "local",
    }
    model = RoutingRuleSpec.model_validate(defaults)
    assert model == RoutingRuleSpec.model_validate({})
