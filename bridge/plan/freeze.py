"""From a plan and what the pod refers to, to everything that is written on the cluster: pod.json, secrets, volumes.

What is frozen here does not change while the job waits; only the files of volumes do (`refresh`).
"""

from __future__ import annotations

import json

from bridge.api.settings import Cluster
from bridge.plan import volumes
from bridge.plan.containers import Freezer
from bridge.plan.environment import hostname
from bridge.plan.model import Inputs, Json, MissingInput, NodeFacts, Plan
from bridge.plan.sources import Sources
from pbs_adapter.models import JobRef, JobRequest, PodFile, VolumeFiles

POD_JSON_VERSION = 1


def job_name(pod: Json, instance: str) -> str:
    """The PBS job's name: unique, so that a lost answer to qsub is resolved by looking for it."""
    metadata = pod["metadata"]
    return f"{metadata['name'][:63]}.{metadata['uid']}.{instance}"


def freeze(
    pod: Json, plan: Plan, inputs: Inputs, *, node: NodeFacts, instance: str, cluster: Cluster, account: str
) -> JobRequest:
    """The job of a pod whose plan has no refusals.

    `instance` is the UID of namespace kube-system. Raises MissingInput while something the pod refers to is not there.
    """
    sources = Sources(pod, inputs)
    freezer = Freezer(pod, plan, sources, node, cluster)
    document = _document(pod, plan, cluster) | {"containers": freezer.all(), "node": node.name}
    files = [PodFile("pod.json", json.dumps(document, indent=1).encode())]
    secrets = freezer.vault.content()
    if secrets is not None:
        files.append(PodFile("secrets/values.json", secrets))
    return JobRequest(
        ref=JobRef(account, plan.uid),
        name=job_name(pod, instance),
        options=plan.options,
        files=tuple(files),
        volumes=tuple(_volume(pod, v, plan, sources, node) for v in _volumes(pod) if not v.get("hostPath")),
        comment=f"pod {plan.namespace}/{plan.name}",
    )


def refresh(pod: Json, plan: Plan, inputs: Inputs, *, node: NodeFacts) -> tuple[VolumeFiles, ...]:
    """What the pod's configMap, secret, downwardAPI and projected volumes should hold now.

    Variables are not refreshed, as with any kubelet. A volume whose source is gone keeps what it has: it is left out.
    """
    sources = Sources(pod, inputs)
    fresh = []
    for volume in _volumes(pod):
        if volumes.is_files(volume):
            try:
                fresh.append(volumes.files(pod, volume, plan, sources, node))
            except MissingInput:
                continue
    return tuple(fresh)


def _volumes(pod: Json) -> list[Json]:
    return pod["spec"].get("volumes") or []


def _volume(pod: Json, volume: Json, plan: Plan, sources: Sources, node: NodeFacts) -> VolumeFiles:
    if volumes.is_files(volume):
        return volumes.files(pod, volume, plan, sources, node)
    return VolumeFiles(volumes.root(volume))


def _document(pod: Json, plan: Plan, cluster: Cluster) -> Json:
    numa = {"numa": {"require": True, "vnodes": plan.numa_by_vnodes}} if plan.numa == "require" else {}
    return numa | {
        "version": POD_JSON_VERSION,
        "uid": plan.uid,
        "namespace": plan.namespace,
        "name": plan.name,
        "hostname": hostname(pod),
        "node": "",
        "cluster": cluster.name,
        "restart_policy": pod["spec"].get("restartPolicy") or "Always",
        "grace": plan.grace,
        "active_deadline": plan.deadline,
        "walltime": plan.options.walltime,
        "end_margin": plan.end_margin,
        "kill_delay": plan.kill_delay,
        "setup": list(cluster.setup),
        "isolation": cluster.isolation,
    }
