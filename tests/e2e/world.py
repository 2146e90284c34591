"""What the end-to-end tests do with the running product: apply pods, wait, look, as a user does with kubectl."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bridge.testbed.agent import Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import PbsTestCluster

Json = dict[str, Any]
TIMEOUT = 60.0


def shared(cluster: PbsTestCluster) -> Path:
    """The directory of the cluster that pods may mount."""
    return Path(cluster.account.home, "shared")


class World:
    """A control plane, clusters by name, and the agent."""

    def __init__(self, control_plane: ControlPlane, clusters: Mapping[str, PbsTestCluster], agent: Agent) -> None:
        self.control_plane = control_plane
        self.clusters = clusters
        self.agent = agent

    def kubectl(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """kubectl as administrator."""
        return self.control_plane.kubectl(*args, **options)

    def get(self, *args: str) -> Json:
        """`kubectl get … -o json`."""
        found: Json = json.loads(self.kubectl("get", *args, "-o", "json").stdout)
        return found

    def apply(self, *things: Json) -> None:
        """`kubectl apply` of objects."""
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(things))

    def pod(self, name: str, namespace: str = "default") -> Json:
        """The Pod as the API server has it."""
        return self.get("pod", name, "-n", namespace)

    def exists(self, name: str, namespace: str = "default") -> bool:
        """Is there a pod of this name?"""
        return self.kubectl("get", "pod", name, "-n", namespace, check=False).returncode == 0

    def wait(
        self,
        name: str,
        check: Callable[[Json], Any],
        *,
        what: str = "",
        timeout: float = TIMEOUT,
        namespace: str = "default",
    ) -> Json:
        """Wait until `check(pod)` is true; return the pod. Fails with the pod's status and events."""
        deadline = time.monotonic() + timeout
        while True:
            pod = self.pod(name, namespace)
            if check(pod):
                return pod
            if time.monotonic() > deadline:
                told = self.kubectl("describe", "pod", name, "-n", namespace, check=False).stdout
                raise AssertionError(f"{name}: not {what or check.__name__} after {timeout:.0f} s\n{told}")
            time.sleep(0.15)

    def wait_phase(self, name: str, phase: str, *, timeout: float = TIMEOUT, namespace: str = "default") -> Json:
        """Wait for a phase."""
        return self.wait(
            name, lambda p: p["status"].get("phase") == phase, what=phase, timeout=timeout, namespace=namespace
        )

    def wait_reason(self, name: str, reason: str, *, timeout: float = TIMEOUT, namespace: str = "default") -> Json:
        """Wait until a container waits for this reason."""
        return self.wait(
            name, lambda p: reason in waiting_reasons(p), what=reason, timeout=timeout, namespace=namespace
        )

    def wait_gone(self, name: str, *, timeout: float = TIMEOUT, namespace: str = "default") -> None:
        """Wait until the pod object is gone."""
        until(lambda: not self.exists(name, namespace), f"{name} gone", timeout)

    def logs(self, *args: str, check: bool = True) -> str:
        """`kubectl logs`."""
        return self.kubectl("logs", *args, check=check).stdout

    def events(self, name: str, namespace: str = "default") -> list[tuple[str, str]]:
        """(reason, message) of the Events about a pod."""
        selector = f"involvedObject.name={name}"
        items = self.get("events", "-n", namespace, f"--field-selector={selector}")["items"]
        return [(e["reason"], e["message"]) for e in items]

    def wait_event(self, name: str, reason: str, *, timeout: float = TIMEOUT, namespace: str = "default") -> str:
        """Wait for an Event; return its message."""
        until(lambda: reason in [r for r, _ in self.events(name, namespace)], f"event {reason} of {name}", timeout)
        return next(m for r, m in self.events(name, namespace) if r == reason)

    def jobs(self, cluster: str = "alpha") -> list[str]:
        """Ids of all jobs that PBS has."""
        return self.clusters[cluster].pbs("qselect").stdout.split()

    def job_of(self, name: str, namespace: str = "default") -> str:
        """The PBS job id that the pod shows."""
        pod = self.wait(name, lambda p: job_annotation(p), what="annotated", namespace=namespace)
        return job_annotation(pod)

    def directory(self, uid: str, cluster: str = "alpha") -> str:
        """The pod directory on the cluster."""
        instance = self.get("namespace", "kube-system")["metadata"]["uid"]
        return f"{self.clusters[cluster].spool}/{instance}/{cluster}/pods/{uid}"

    def restart_agent(self, *, kill: bool = False) -> None:
        """Stop (or SIGKILL) the agent and start it again."""
        self.stop_agent(kill=kill)
        self.agent.start()
        self.agent.wait_ready(180)

    def stop_agent(self, *, kill: bool = False) -> None:
        """Stop the agent; `kill`: without a chance to say good-bye."""
        if kill:
            self.agent.kill()
        else:
            self.agent.stop()


def job_annotation(pod: Json) -> str:
    """The PBS job id that the pod shows, or nothing."""
    return str(pod["metadata"].get("annotations", {}).get("status.hpc-bridge.io/job-id", ""))


def waiting_reasons(pod: Json) -> list[str]:
    """Reasons of waiting containers."""
    status = pod["status"]
    every = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    return [c["state"]["waiting"].get("reason", "") for c in every if "waiting" in c["state"]]


def condition(thing: Json, kind: str) -> Json:
    """One condition of a pod or node."""
    return next((c for c in thing["status"].get("conditions", []) if c["type"] == kind), {"status": "absent"})


def container(pod: Json, name: str = "main") -> Json:
    """One container's status."""
    status = pod["status"]
    every = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    return next(c for c in every if c["name"] == name)


def until(check: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> None:
    """Poll `check` until it is true."""
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"not after {timeout:.0f} s: {what}")
        time.sleep(0.15)


def pod(
    name: str, *commands: str | Sequence[str], cluster: str = "alpha", queue: str | None = None, **spec: Any
) -> Json:
    """A pod that runs each shell line (or argv) in a container of its own: main, c1, c2…; `spec` overrides fields.

    In alpha's queue `stopped` it waits until it is deleted.
    """
    containers = [
        {
            "name": "main" if index == 0 else f"c{index}",
            "image": "busybox:1.36",
            "command": ["/bin/sh", "-c", command] if isinstance(command, str) else list(command),
        }
        for index, command in enumerate(commands)
    ]
    base = {
        "restartPolicy": "Never",
        "runtimeClassName": f"pbs-{cluster}",
        "terminationGracePeriodSeconds": 5,
        "containers": containers,
    }
    metadata: Json = {"name": name}
    if queue is not None:
        metadata["annotations"] = {"hpc-bridge.io/queue": queue}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": base | spec}


def plain(name: str, namespace: str, *, cpu: str = "1", command: str = "echo ran", **spec: Any) -> Json:
    """A pod as its author writes it where pods are routed: nothing in it about clusters."""
    thing = pod(name, command, **spec)
    thing["metadata"]["namespace"] = namespace
    del thing["spec"]["runtimeClassName"]
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    return thing
