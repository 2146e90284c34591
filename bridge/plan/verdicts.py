"""The three answers to "what happens with this field?", as data that plans, tests and documentation share."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.api import reasons

Scalar = str | int | bool
QUANTITY = (str, int, float)


@dataclass(frozen=True, slots=True)
class Honoured:
    """The field has its Kubernetes meaning. `test` names the test that shows it, below tests/.

    `kind` is the type of a leaf; `required` are keys without which the object cannot be read.
    """

    test: str
    kind: type | tuple[type, ...] = dict
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod fails with `message`, which says what to do, unless the value is one of `accepts`.

    Accepted values are what the API server fills in, or what holds in any job. `tried` is a value that is refused.
    `reason` is the kubelet's own where it has one for the case.
    """

    message: str
    accepts: tuple[object, ...] = ()
    tried: object = True
    reason: str = reasons.UNSUPPORTED


@dataclass(frozen=True, slots=True)
class Ignored:
    """The field changes nothing here, and need not; `reason` says why."""

    reason: str


Verdict = Honoured | Refused | Ignored
