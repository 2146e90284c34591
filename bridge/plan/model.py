"""What planning a pod yields, and what freezing it takes. Frozen data, so that loops can compare and keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge.api import reasons
from bridge.plan.placement import NumaWish
from pbs_adapter.models import JobOptions

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing of the pod that cannot be honoured. `reason` becomes the pod's reason, `message` says what to do."""

    field: str  # path in the pod, e.g. "spec.containers[0].livenessProbe"
    message: str
    reason: str = reasons.UNSUPPORTED

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class InputRef:
    """One object of the pod's namespace that its files or variables are made from.

    A `Token` is asked for with `token_request()`; `name` is then the ServiceAccount. A reference is optional only when
    every use of it in the pod is. `optional` does not take part in comparison, so that it may be used as a key.
    """

    kind: Literal["ConfigMap", "Secret", "Token"]
    name: str
    audience: str = ""  # Token only; "": the API server's own
    expiration: int = 0  # Token only; seconds
    optional: bool = field(default=False, compare=False)


# What the loop read for each reference: the raw ConfigMap or Secret, the raw TokenRequest that the API server
# answered (its `status.token` is used), or None where there is no such object.
Inputs = Mapping[InputRef, Json | None]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a pod may ask about its virtual node: names, and allocatable for limits it did not set.

    node: the Node object as last read, for whether it may take the pod; empty: not read yet.
    """

    name: str
    host_ip: str = ""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    node: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pod needs, worked out from its spec and the cluster's settings alone.

    With `refusals` the pod must not be submitted: they are the whole list, for one message. `options` is then a best
    effort.
    """

    uid: str
    namespace: str
    name: str
    options: JobOptions
    refusals: tuple[Refusal, ...] = ()
    inputs: tuple[InputRef, ...] = ()
    deadline: int | None = None  # activeDeadlineSeconds
    grace: int = 30  # terminationGracePeriodSeconds
    end_margin: int = 20  # podrun ends containers this long (plus grace) before the walltime is over
    refreshed: bool = False  # has volumes that refresh() would write anew
    image_ids: Mapping[str, str] = field(default_factory=dict)  # by container: what its image is on the cluster
    kill_delay: int | None = None  # seconds between PBS's SIGTERM and SIGKILL in its queue, once that is known
    numa: NumaWish | None = None  # what the author wrote
    notes: tuple[tuple[str, str], ...] = ()  # (reason, text): what the author should know though nothing is refused
    numa_by_vnodes: bool = False  # PBS was told to keep the job on one vnode, and vnodes are NUMA domains

    @property
    def reason(self) -> str:
        """The reason of the first refusal; empty when there is none."""
        return self.refusals[0].reason if self.refusals else ""

    @property
    def message(self) -> str:
        """All refusals in one line for the pod's status and Event; empty when there is none."""
        return "; ".join(str(refusal) for refusal in self.refusals)


class MissingInput(Exception):
    """A ConfigMap, Secret, key or token that the pod needs is not there (yet): CreateContainerConfigError."""


class TooLarge(MissingInput):
    """What the pod's variables, arguments or volumes would come to is more than one pod may cost. Nothing was copied.

    It waits as for something that is missing: the ConfigMap or Secret may become smaller.
    """


class Allowance:
    """Counts what is made for one pod, before it is made, so that a small manifest cannot ask for gigabytes."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most, self._left = what, most, most

    def spend(self, amount: int) -> None:
        """Take `amount` bytes. Raises TooLarge when there are not as many left."""
        self._left -= amount
        if self._left < 0:
            raise TooLarge(f"the pod's {self._what} are larger than {self._most >> 20} MiB together; make them smaller")


def token_request(pod: Json, ref: InputRef) -> Json:
    """Body of the TokenRequest for `ref`, bound to the pod, so that the token dies with it."""
    metadata = pod["metadata"]
    spec: Json = {
        "expirationSeconds": ref.expiration,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
    }
    if ref.audience:
        spec["audiences"] = [ref.audience]
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
