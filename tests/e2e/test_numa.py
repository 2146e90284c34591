"""Pods that mind NUMA, on hosts of two vnodes of eight cores: kept whole, told what they got, or told why not."""

from __future__ import annotations

import json
from typing import Any

from world import World, pod

from bridge.api import names


def asking(name: str, cpus: int, wish: str, script: str = "sleep 300") -> dict[str, Any]:
    """A pod of one container with these cores and this wish."""
    thing = pod(name, script)
    thing["metadata"].setdefault("annotations", {})[names.NUMA] = wish
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpus), "memory": "64Mi"}}
    return thing


def given(bridge: World, name: str) -> dict[str, Any]:
    """What the pod was told of its span."""
    found = bridge.wait(
        name, lambda p: p["metadata"].get("annotations", {}).get(names.NUMA_SPAN), what="told its span", timeout=120
    )
    told: dict[str, Any] = json.loads(found["metadata"]["annotations"][names.NUMA_SPAN])
    return told


def test_a_chunk_larger_than_a_domain_is_split_and_says_so(bridge: World) -> None:
    bridge.apply(asking("spread", 10, "prefer"))
    told = given(bridge, "spread")
    assert (told["domains"], told["by"], told["estimated"]) == (2, "exec_vnode", [2, 2])
    assert len(told["on"].split(",")) == 2
    bridge.kubectl("delete", "pod", "spread")


def test_require_keeps_the_chunk_on_one_vnode(bridge: World) -> None:
    bridge.apply(asking("whole", 6, "require", "echo whole; sleep 300"))
    told = given(bridge, "whole")
    assert (told["domains"], told["by"], told["estimated"]) == (1, "exec_vnode", [1, 1])
    job = json.loads(bridge.clusters["alpha"].pbs("qstat", "-f", "-F", "json", bridge.job_of("whole")).stdout)
    assert next(iter(job["Jobs"].values()))["Resource_List"]["place"] == "vscatter"
    bridge.kubectl("delete", "pod", "whole")


def test_what_no_domain_holds_is_not_submitted(bridge: World) -> None:
    bridge.apply(asking("wide", 9, "require"))
    bridge.wait_reason("wide", "PBSUnsatisfiable")
    assert "asks ncpus 9, the largest NUMA domain has 8" in bridge.wait_event("wide", "PBSUnsatisfiable")
    assert names.JOB_ID not in bridge.pod("wide")["metadata"].get("annotations", {})
    bridge.kubectl("delete", "pod", "wide")
