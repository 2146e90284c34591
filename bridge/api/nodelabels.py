"""Which labels an admin may give a virtual node: those that a node may have, and none of the bridge's own.

What NodeRestriction would refuse is refused when the settings are read, where somebody looks.
"""

from __future__ import annotations

import re

from bridge.api import names

OWN = (names.NODE_TYPE_LABEL, names.CLUSTER_LABEL, names.HOSTNAME_LABEL, names.OS_LABEL, names.ARCH_LABEL)
_TOPOLOGY = tuple(f"{d}.kubernetes.io/{k}" for d in ("topology", "failure-domain.beta") for k in ("zone", "region"))
_A_NODES = re.compile(r"([^/]*\.)?(node|kubelet)\.kubernetes\.io/")
_KUBERNETES = re.compile(r"([^/]*\.)?(kubernetes|k8s)\.io/")
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_PART}")
_VALUE = re.compile(rf"({_PART})?")


def node_labels(labels: dict[str, str]) -> dict[str, str]:
    """`labels`. Raises ValueError with what is wrong with the first that a node may not have.

    >>> node_labels({"topology.kubernetes.io/zone": "hall-2", "team": ""})
    {'topology.kubernetes.io/zone': 'hall-2', 'team': ''}
    >>> node_labels({"node-role.kubernetes.io/hpc": ""})
    Traceback (most recent call last):
    ValueError: 'node-role.kubernetes.io/hpc' is a label that Kubernetes lets no node give itself; set it by hand
    """
    for key, value in labels.items():
        if key in OWN:
            raise ValueError(f"{key!r} is set by hpc-bridge itself; leave it out")
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no name of a label; write NAME or a.domain/NAME")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"{key!r} has a value that no label may have: {value!r}")
        if _KUBERNETES.match(key) and key not in _TOPOLOGY and not _A_NODES.match(key):
            raise ValueError(f"{key!r} is a label that Kubernetes lets no node give itself; set it by hand")
    return labels
