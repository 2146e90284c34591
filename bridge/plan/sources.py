"""Reading the ConfigMaps, Secrets and tokens that a pod names, and saying clearly what is missing.

Messages follow the kubelet's, so that what people find on the web about CreateContainerConfigError applies.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from bridge.plan.model import Allowance, InputRef, Inputs, Json, MissingInput
from bridge.plan.values import Value

DEFAULT_TOKEN_SECONDS = 3600
MOST_TEXTS = 2 << 20  # bytes of one pod's variables and arguments, as they stand in pod.json
MOST_FILES = 4 << 20  # bytes of one pod's volumes that the bridge writes
Kind = Literal["ConfigMap", "Secret"]


def text_data(kind: Kind, raw: Json) -> dict[str, Value]:
    """Keys that may become variables: `data`. Of a Secret that is base64, and every value is marked."""
    data = raw.get("data") or {}
    if kind == "ConfigMap":
        return {key: Value(str(text).encode("utf-8", "surrogatepass")) for key, text in data.items()}
    return {key: Value(_decoded(raw, text), secret=True) for key, text in data.items()}


def file_data(kind: Kind, raw: Json) -> dict[str, Value]:
    """Keys that may become files: `data`, and `binaryData` of a ConfigMap."""
    binary = (raw.get("binaryData") or {}) if kind == "ConfigMap" else {}
    return text_data(kind, raw) | {key: Value(_decoded(raw, text)) for key, text in binary.items()}


def _decoded(raw: Json, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        name = raw.get("metadata", {}).get("name", "")
        raise MissingInput(f"{name!r} holds a value that is not base64") from None


class Sources:
    """The objects that were read for a pod, looked up by the references in its spec; each is decoded once.

    texts, files: what may still be made of them.
    """

    def __init__(self, pod: Json, inputs: Inputs) -> None:
        self._namespace = pod["metadata"]["namespace"]
        self._inputs = inputs
        self._decoded: dict[tuple[bool, InputRef], dict[str, Value]] = {}
        self.texts = Allowance("variables and arguments", MOST_TEXTS)
        self.files = Allowance("volumes", MOST_FILES)

    def find(self, kind: Kind, ref: Json) -> Json | None:
        """The object; None when it is optional and not there. Raises MissingInput."""
        name = ref.get("name") or ref.get("secretName") or ""
        raw = self._inputs.get(InputRef(kind, name))
        if raw is None and not ref.get("optional"):
            raise MissingInput(f'{kind.lower()} "{name}" not found in namespace {self._namespace}')
        return raw

    def text_data(self, kind: Kind, ref: Json) -> dict[str, Value]:
        """See `text_data`; nothing when it is optional and not there. Raises MissingInput."""
        return self._data(kind, ref, files=False)

    def file_data(self, kind: Kind, ref: Json) -> dict[str, Value]:
        """See `file_data`; nothing when it is optional and not there. Raises MissingInput."""
        return self._data(kind, ref, files=True)

    def _data(self, kind: Kind, ref: Json, *, files: bool) -> dict[str, Value]:
        raw = self.find(kind, ref)
        if raw is None:
            return {}
        key = files, InputRef(kind, ref.get("name") or ref.get("secretName") or "")
        if key not in self._decoded:
            self._decoded[key] = (file_data if files else text_data)(kind, raw)
        return self._decoded[key]

    def key(self, kind: Kind, ref: Json) -> Value | None:
        """One key as a variable; None when it is optional and not there. Raises MissingInput."""
        value = self.text_data(kind, ref).get(ref["key"])
        if value is None and not ref.get("optional"):
            raise MissingInput(f"couldn't find key {ref['key']} in {kind} {self._namespace}/{ref.get('name', '')}")
        return value

    def token(self, ref: InputRef) -> bytes:
        """The token of a TokenRequest. Raises MissingInput."""
        raw = self._inputs.get(ref)
        token = ((raw or {}).get("status") or {}).get("token")
        if not token:
            raise MissingInput(f"no token for service account {self._namespace}/{ref.name} yet")
        return str(token).encode()


def token_ref(pod: Json, source: Json) -> InputRef:
    """The reference that a projected serviceAccountToken stands for."""
    account = pod["spec"].get("serviceAccountName") or "default"
    seconds = source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS
    return InputRef("Token", account, audience=source.get("audience") or "", expiration=seconds)


def references(pod: Json) -> tuple[InputRef, ...]:
    """Every object that the pod needs, once each. Optional only when all uses are."""
    merged: dict[InputRef, InputRef] = {}
    for ref in _uses(pod):
        known = merged.get(ref)
        merged[ref] = ref if known is None else replace(ref, optional=ref.optional and known.optional)
    return tuple(merged.values())


def _uses(pod: Json) -> Iterator[InputRef]:
    spec = pod["spec"]
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        for source in container.get("envFrom") or []:
            yield from _objects(source.get("configMapRef"), source.get("secretRef"))
        for variable in container.get("env") or []:
            origin = variable.get("valueFrom") or {}
            yield from _objects(origin.get("configMapKeyRef"), origin.get("secretKeyRef"))
    for volume in spec.get("volumes") or []:
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            yield from _objects(source.get("configMap"), source.get("secret"))
            if source.get("serviceAccountToken"):
                yield token_ref(pod, source["serviceAccountToken"])


def _objects(config_map: Json | None, secret: Json | None) -> Iterator[InputRef]:
    pairs: tuple[tuple[Kind, Json | None], ...] = (("ConfigMap", config_map), ("Secret", secret))
    for kind, ref in pairs:
        if ref is not None:
            name = ref.get("name") or ref.get("secretName") or ""
            yield InputRef(kind, name, optional=bool(ref.get("optional")))
