"""`hpc-bridge demo --pods N`: clusters whose jobs are simulated, and a Job of N pods. Pure.

Everything but the containers is real: control plane, agent, sshd, helper, PBS commands, pod directories, logs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from bridge.testbed.pbs_cluster import ALPHA, BETA, GIB
from pbs_adapter.minipbs import Config, Host

CORES = 128
MOST = 5000
SECONDS = 30
OTHERS = 20_000
"""Jobs of another user that beta has in its queue."""
Json = dict[str, Any]


def configs(pods: int) -> tuple[Config, Config]:
    """alpha with cores for half of the pods at a time, and beta for a tenth."""
    return _sized(ALPHA, pods // 2), _sized(BETA, pods // 10)


def _sized(config: Config, cores: int) -> Config:
    hosts = tuple(Host(f"{config.server}-n{n + 1}", CORES, 8 * CORES * GIB) for n in range(max(1, cores // CORES)))
    return replace(config, hosts=hosts, simulate=True)


def settings(pods: int) -> Json:
    """What bridge.yaml says besides: room on the nodes for a backlog that waits in PBS."""
    return {"pods": pods, "overcommit": 20}


def job(example: str, pods: int) -> Json:
    """The example's Job (YAML) with so many pods, each of which works for half a minute."""
    made: Json = yaml.safe_load(example)
    made["spec"] |= {"completions": pods, "parallelism": pods, "backoffLimit": 10}
    made["spec"]["template"]["spec"]["containers"][0]["args"] = [f"echo simulated; sleep {SECONDS}; echo done"]
    return made
