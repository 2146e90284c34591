"""Nodes of a local cluster without kubelets: enough for the scheduler, and for pods to be seen to run and to end there.

They stay Ready as real ones do, by a Lease. No process stands behind a pod: what a kubelet would say of it is said by a
thread, which also renews the Leases.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.errors import TestbedError

Json = dict[str, Any]
RENEW = 8.0  # s; the controller manager waits for 40
LOOK = 0.4  # s between two looks at the pods
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
MERGE = "application/merge-patch+json"
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


class LocalNodes:
    """A context manager. `nodes`: name to allocatable, for example {"local-1": {"cpu": "4", "memory": "8Gi"}}.

    runs: seconds after which the containers of a pod have ended well, unless they are to run for ever; None: never.
    """

    def __init__(
        self, control_plane: ControlPlane, nodes: Mapping[str, Mapping[str, str]], *, runs: float | None = None
    ) -> None:
        self._control_plane = control_plane
        self._runs = runs
        self.nodes = {name: {"pods": "110"} | dict(amounts) for name, amounts in nodes.items()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="local-nodes")

    def __enter__(self) -> LocalNodes:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Return when the scheduler may use all of them."""
        for name, amounts in self.nodes.items():
            self._do("POST", NODES, _node(name))
            self._do("PATCH", f"{NODES}/{name}/status", {"status": _status(amounts)})
            lease = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now(micro=True)}
            self._do("POST", LEASES, {"metadata": {"name": name}, "spec": lease})
        self._thread.start()
        deadline = time.monotonic() + 60
        while any(self._tainted(name) for name in self.nodes):
            if time.monotonic() > deadline:
                self.stop()
                raise TestbedError(f"the control plane does not take {', '.join(self.nodes)} for ready")
            time.sleep(0.1)

    def stop(self) -> None:
        """Let the leases be; remove the pods there and the nodes."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError, http.client.HTTPException):  # then the control plane is not there either
            for pod in self._pods():
                self._remove(pod)
            for name in self.nodes:
                self._do("DELETE", f"{NODES}/{name}")

    def _do(self, method: str, path: str, body: Json | None = None) -> Json:
        kind = MERGE if method == "PATCH" else "application/json"
        status, answer = self._control_plane.api(method, path, body, kind=kind)
        if status >= 400 and status not in (404, 409):  # it is gone, or there already
            raise TestbedError(f"{method} {path}: {answer.get('message', status)}")
        return answer

    def _tainted(self, name: str) -> bool:
        """Until the lifecycle controller has seen that the node is ready."""
        taints = self._do("GET", f"{NODES}/{name}").get("spec", {}).get("taints", [])
        return any(str(taint["key"]).startswith("node.kubernetes.io/") for taint in taints)

    def _serve(self) -> None:
        renewed = time.monotonic()
        while not self._over.wait(LOOK):
            with contextlib.suppress(OSError, http.client.HTTPException, TestbedError):  # it is asked again
                if time.monotonic() - renewed >= RENEW:
                    for name in self.nodes:
                        self._do("PATCH", f"{LEASES}/{name}", {"spec": {"renewTime": _now(micro=True)}})
                    renewed = time.monotonic()
                for pod in self._pods():
                    self._look_after(pod)

    def _pods(self) -> Iterator[Json]:
        for name in self.nodes:
            yield from self._do("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}").get("items", [])

    def _look_after(self, pod: Json) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            self._remove(pod)
        elif pod["status"].get("phase", "Pending") == "Pending":
            self._do("PATCH", f"{_path(pod)}/status", {"status": _running(pod)})
        elif pod["status"]["phase"] == "Running" and self._runs is not None and not _for_ever(pod):
            started = datetime.fromisoformat(pod["status"]["startTime"])
            if (datetime.now(UTC) - started).total_seconds() >= self._runs:
                self._do("PATCH", f"{_path(pod)}/status", {"status": _succeeded(pod)})

    def _remove(self, pod: Json) -> None:
        self._do("DELETE", _path(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _for_ever(pod: Json) -> bool:
    return bool(pod["spec"].get("restartPolicy", "Always") == "Always")


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _node(name: str) -> Json:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def _status(amounts: Mapping[str, str]) -> Json:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kept ready by the test bed"}
    ready |= {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
    info = {"kubeletVersion": "none", "osImage": "none: no pod really runs here"}
    return {"capacity": dict(amounts), "allocatable": dict(amounts), "conditions": [ready], "nodeInfo": info}


def _running(pod: Json) -> Json:
    now = _now()
    kept = [each for each in pod["status"].get("conditions", []) if each["type"] not in CONDITIONS]
    conditions = [*kept, *({"type": kind, "status": "True", "lastTransitionTime": now} for kind in CONDITIONS)]
    containers = [
        {"name": each["name"], "image": each["image"], "imageID": "none", "ready": True, "started": True,
         "restartCount": 0, "state": {"running": {"startedAt": now}}}
        for each in pod["spec"]["containers"]
    ]  # fmt: skip
    return {"phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": containers}


def _succeeded(pod: Json) -> Json:
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": pod["status"]["startTime"], "finishedAt": _now()}
    containers = [
        each | {"ready": False, "started": False, "state": {"terminated": ended}}
        for each in pod["status"]["containerStatuses"]
    ]
    return {"phase": "Succeeded", "containerStatuses": containers}
