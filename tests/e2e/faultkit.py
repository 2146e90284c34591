"""What the fault tests do to a running product: stop it between two steps, kill it, cut it off, and count jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from world import Json, World, pod, shared, until

from bridge.testbed.guard import descendants
from bridge.testbed.pbs_cluster import PbsTestCluster

VARIABLE = "HPC_BRIDGE_TEST_POINTS"


class Points:
    """A folder that arms the points of `bridge.faultpoints` and `pbs_adapter.remote.helper_faults`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hpc-bridge-points-"))
        self.folder.chmod(0o777)  # the agent and the helpers are different users when we are root

    def __enter__(self) -> Points:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """What arms a process."""
        return {VARIABLE: str(self.folder)}

    def arm(self, point: str, uid: str) -> None:
        """Whoever reaches the point for this pod stops there, once."""
        (self.folder / f"{point}.{uid}").touch()

    def reached(self, point: str, uid: str) -> bool:
        """Does somebody stand there now?"""
        return (self.folder / f"{point}.{uid}.reached").exists()

    def release(self) -> None:
        """Whoever stands somewhere goes on, and nobody stops again."""
        for path in list(self.folder.iterdir()):
            path.unlink(missing_ok=True)


def _comm(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""


def _argv(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def sessions(cluster: PbsTestCluster) -> list[int]:
    """The processes of sshd that serve a connection, not the one that listens."""
    assert cluster.sshd is not None
    _guard, listener, *below = cluster.sshd.pids
    return [pid for pid in below if pid != listener and _comm(pid).startswith("sshd")]


def helpers(cluster: PbsTestCluster) -> list[int]:
    """The helper programs on the login node."""
    assert cluster.sshd is not None
    return [pid for pid in cluster.sshd.pids if any(b"/helper-" in word for word in _argv(pid)[:4])]


def send(number: int, pids: Iterable[int]) -> None:
    """A signal to all of them; those that have ended meanwhile do not matter."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def agent_pids(bridge: World) -> list[int]:
    """The agent's process and its children, without its guard."""
    assert bridge.agent.process is not None
    return descendants(bridge.agent.process.pids[0])


def kill_agent(bridge: World) -> None:
    """SIGKILL."""
    bridge.stop_agent(kill=True)


def cut_ssh(bridge: World) -> None:
    """The connection to alpha's login node breaks; helpers see the end of their input."""
    send(signal.SIGKILL, sessions(bridge.clusters["alpha"]))


def kill_helper(bridge: World) -> None:
    """The helper on alpha's login node is gone; the SSH connection is not."""
    send(signal.SIGKILL, helpers(bridge.clusters["alpha"]))


def counting(bridge: World, name: str, command: str, **options: object) -> Json:
    """A pod that leaves a line in a file of the cluster each time it runs."""
    home = shared(bridge.clusters["alpha"])
    thing = pod(name, f"echo run >> /home-of-all/{name}.runs; {command}", **options)  # type: ignore[arg-type]
    thing["spec"]["volumes"] = [{"name": "home", "hostPath": {"path": str(home), "type": "Directory"}}]
    thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "home", "mountPath": "/home-of-all"}]
    return thing


def runs(bridge: World, name: str) -> int:
    """How often the pod ran."""
    path = shared(bridge.clusters["alpha"]) / f"{name}.runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def history(bridge: World, cluster: str = "alpha") -> dict[str, list[str]]:
    """The ids of all jobs that PBS knows, ended ones too, by the UID of their pod."""
    text = bridge.clusters[cluster].pbs("qstat", "-x", "-f", "-F", "json").stdout
    found: dict[str, list[str]] = {}
    for job_id, job in json.loads(text).get("Jobs", {}).items():
        parts = job["Job_Name"].rsplit(".", 2)
        if len(parts) == 3:
            found.setdefault(parts[1], []).append(job_id)
    return found


def living(bridge: World, cluster: str = "alpha") -> dict[str, list[str]]:
    """The ids of jobs that have not ended, by the UID of their pod."""
    ids = set(bridge.jobs(cluster))
    every = {uid: [job for job in jobs if job in ids] for uid, jobs in history(bridge, cluster).items()}
    return {uid: jobs for uid, jobs in every.items() if jobs}


def gated(bridge: World, *pods: Json) -> dict[str, str]:
    """Create pods that no scheduler looks at yet; their UIDs by name."""
    names = [pod["metadata"]["name"] for pod in pods]
    bridge.apply(*(pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": "test/wait"}]}} for pod in pods))
    items = bridge.get("pods", *names)["items"] if len(names) > 1 else [bridge.pod(names[0])]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def open_gates(bridge: World, names: Iterable[str]) -> None:
    """Let the scheduler have them."""
    patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
    bridge.kubectl("patch", "pod", *names, "--type=json", f"--patch={patch}")


def phases(bridge: World, *selection: str) -> dict[str, str]:
    """The phase of each pod by name."""
    items = bridge.get("pods", *selection)["items"]
    return {item["metadata"]["name"]: item["status"].get("phase", "") for item in items}


def await_phases(bridge: World, wanted: dict[str, str], *selection: str, timeout: float = 120.0) -> None:
    """Wait until all of these pods have these phases, by one list each time."""
    last: dict[str, str] = {}

    def there() -> bool:
        last.clear()
        last.update(phases(bridge, *selection))
        return all(last.get(name) == phase for name, phase in wanted.items())

    try:
        until(there, "phases", timeout)
    except AssertionError as error:
        wrong = {name: last.get(name, "gone") for name, phase in wanted.items() if last.get(name) != phase}
        told = bridge.kubectl("describe", "pod", next(iter(wrong)), check=False).stdout
        raise AssertionError(f"{error}; not so: {wrong}\n{told}\n{bridge.agent.log.read_text()[-4000:]}") from None


@contextmanager
def settings_of_alpha(bridge: World, **changes: Any) -> Iterator[None]:
    """The agent with other settings of cluster alpha."""
    before = bridge.agent.config.read_text()
    settings = yaml.safe_load(before)
    settings["clusters"][0] |= changes
    bridge.stop_agent()
    bridge.agent.config.write_text(yaml.safe_dump(settings, sort_keys=False))
    try:
        bridge.agent.start()
        bridge.agent.wait_ready(90)
        yield
    finally:
        bridge.stop_agent()
        bridge.agent.config.write_text(before)
        bridge.agent.start()
        bridge.agent.wait_ready(90)
