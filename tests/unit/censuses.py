"""Censuses made of what a real PBS printed, and small ones made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bridge.api.settings import Cluster
from pbs_adapter.models import Census
from pbs_adapter.remote import parse

RECORDINGS = Path(__file__).parents[1] / "contract/pbs/recordings"
HOST = {"os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-18-amd64", "arch": "x86_64", "hostname": "login1"}


def recorded(dialect: str, name: str) -> bytes:
    """Standard output of one recorded command."""
    text = (RECORDINGS / dialect / f"{name}.json").read_text()
    return str(json.loads(text)["stdout"]).encode()


def census(dialect: str = "main", at: float = 1_796_030_800.0) -> Census:
    """One host of two NUMA domains, 32 cores and 128 GiB each."""
    return Census(
        at=at,
        server=parse.parse_server(recorded(dialect, "server_full")),
        queues=tuple(parse.parse_queues(recorded(dialect, "queues_full")).values()),
        vnodes=tuple(parse.parse_nodes(recorded(dialect, "nodes_numa_busy")).values()),
        host=HOST,
        runtimes=("host+bwrap",),
    )


def cluster(**fields: Any) -> Cluster:
    """Settings of cluster alpha; one account for all namespaces unless told otherwise."""
    account = {"name": "default", "transport": {"type": "local"}, "namespaces": ["*"], "sharedTrust": True}
    return Cluster.model_validate({"name": "alpha", "accounts": [account], **fields})
