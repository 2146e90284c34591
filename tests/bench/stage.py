"""The set-up that all figures share: a real control plane, one PBS cluster, the agent, and a quick client.

A cluster is the embedded one behind a real sshd, or with PBS=user@host:port any cluster that OpenSSH reaches without a
question. Measurements differ in the cluster's size and in the agent's settings, so each has a `Stage` of its own; the
control plane is started once.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bridge.kube import paths
from bridge.kube.client import KubeClient, connect
from bridge.testbed.agent import Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.pbs_cluster import PbsTestCluster
from pbs_adapter.minipbs import Config, Host, Queue

Json = dict[str, Any]
GIB = 1 << 30
LONG = 900.0
NAMESPACE = "bench"
AGENT_USER = "system:serviceaccount:hpc-bridge:hpc-bridge"


class BenchError(Exception):
    """A measurement could not be made; the text says why."""


class Target(Protocol):
    """A PBS cluster, embedded or not."""

    name: str

    def settings(self) -> Json:
        """Its entry in bridge.yaml."""

    def run(self, *command: str, input: str = "", timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a shell line (one word) or an argv on the login node."""


class Remote:
    """Any cluster: `user@host:port` as OpenSSH reaches it; its spool is ~/.hpc-bridge-bench."""

    name = "remote"

    def __init__(self, address: str) -> None:
        account, _, port = address.rpartition(":") if ":" in address else (address, "", "22")
        self._ssh = ["ssh", "-o", "BatchMode=yes", "-p", port, account]
        found = self.run('. /etc/pbs.conf 2>/dev/null; echo "${PBS_EXEC:-}"')
        if found.returncode:
            raise BenchError(f"ssh to {address}: {found.stderr.strip()}")
        self.pbs_exec = found.stdout.strip() or None

    def settings(self) -> Json:
        """See `Target`."""
        transport = {"type": "command", "argv": self._ssh}
        pbs = {"pbsExec": self.pbs_exec} if self.pbs_exec else {}
        accounts = [{"transport": transport, "sharedTrust": True}]
        return {"name": self.name, "accounts": accounts, "spool": "~/.hpc-bridge-bench"} | pbs

    def run(self, *command: str, input: str = "", timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """See `Target`."""
        line = command[0] if len(command) == 1 else shlex.join(command)
        return subprocess.run(
            [*self._ssh, line], input=input, capture_output=True, text=True, check=False, timeout=timeout
        )

    def clock_offset(self) -> float:
        """Seconds by which its clock is ahead of ours, by the quickest of five answers over one connection.

        To open the connection takes far longer than to answer, and all of that comes before the clock is read.
        """
        argv = [*self._ssh, "while read _; do date +%s.%N; done"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
            assert shell.stdin is not None
            assert shell.stdout is not None

            def ask() -> tuple[float, float]:
                before = time.time()
                print(file=shell.stdin, flush=True)
                there, after = float(shell.stdout.readline()), time.time()
                return after - before, there - (before + after) / 2

            answers = [ask() for _ in range(5)]
            shell.stdin.close()
        return min(answers)[1]


@dataclass(frozen=True)
class Shape:
    """The embedded cluster: hosts of 128 cores; `held`: its queue takes jobs and starts none; `simulate`: see minipbs.

    A second queue, `held`, starts none in any case.
    """

    hosts: int = 4
    held: bool = False
    simulate: bool = False

    def config(self) -> Config:
        """For minipbs."""
        hosts = tuple(Host(f"bench-n{number}", 128, 1024 * GIB) for number in range(self.hosts))
        queues = (Queue("workq", started=not self.held), Queue("held", started=False))
        return Config(server="bench", hosts=hosts, queues=queues, simulate=self.simulate)


class Stage:
    """One cluster and one agent on the shared control plane."""

    def __init__(self, control_plane: ControlPlane, target: Target, agent: Agent, queue: str | None) -> None:
        """queue: where pods go that name none; None: the server's default."""
        self.control_plane = control_plane
        self.queue = queue
        self.target = target
        self.agent = agent
        self.node = f"pbs-{target.name}"

    @property
    def embedded(self) -> PbsTestCluster:
        """The embedded cluster, for what only it can tell. Raises BenchError with a remote one."""
        if not isinstance(self.target, PbsTestCluster):
            raise BenchError("only the embedded PBS can tell")
        return self.target

    def shell(self, line: str, timeout: float = LONG) -> str:
        """What a shell line on the login node writes. Raises BenchError when it fails."""
        done = self.target.run(line, timeout=timeout)
        if done.returncode:
            raise BenchError(f"{line}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def clock_offset(self) -> float:
        """Seconds by which the login node's clock is ahead of ours."""
        return self.target.clock_offset() if isinstance(self.target, Remote) else 0.0

    @property
    def spool(self) -> str:
        """The spool, as a shell on the login node understands it."""
        return str(self.target.settings()["spool"])

    @property
    def pbs_bin(self) -> str:
        """What goes before a PBS command's name."""
        exec_ = self.target.settings().get("pbsExec")
        return f"{exec_}/bin/" if exec_ else ""

    def pod(self, name: str, command: str, **metadata: Any) -> Json:
        """A pod for this node that runs a shell line."""
        container: Json = {"name": "main", "image": "busybox:1.36", "command": ["/bin/sh", "-c", command]}
        container["resources"] = {"requests": {"cpu": "1", "memory": "64Mi"}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE} | metadata,
            "spec": {
                "schedulerName": "bench",  # nobody's: `create` binds it
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 5,
                "automountServiceAccountToken": False,
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
            },
        }

    def create(self, pods: Iterable[Json]) -> None:
        """Create pods and bind them as the scheduler does, sixteen at a time."""

        async def one(kube: KubeClient, pod: Json) -> None:
            await kube.create(paths.pods(NAMESPACE), pod)
            name = pod["metadata"]["name"]
            target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            await kube.create(f"{paths.pod(NAMESPACE, name)}/binding", binding)

        self.client(lambda kube: _many(one(kube, pod) for pod in pods))

    def delete(self, names: Iterable[str], grace: int | None = None) -> None:
        """Ask for the deletion of pods; None: with their own grace periods."""
        self.client(lambda kube: _many(kube.delete(paths.pod(NAMESPACE, name), grace=grace) for name in names))

    def pods(self) -> list[Json]:
        """All pods of the benchmark."""
        found: list[Json] = []

        async def fetch(kube: KubeClient) -> None:
            found.extend((await kube.list(paths.pods(NAMESPACE)))[0])

        self.client(fetch)
        return found

    def client(self, use: Callable[[KubeClient], Any]) -> None:
        """Run a coroutine with a client that is the administrator."""

        async def run() -> None:
            async with connect(str(self.control_plane.admin_kubeconfig)) as kube:
                await use(kube)

        asyncio.run(run())

    def clear(self, grace: int | None = None) -> None:
        """Delete all pods and wait until they are gone; grace 0: the API server forgets them at once."""
        self.delete([pod["metadata"]["name"] for pod in self.pods()], grace)
        wait(lambda: not self.pods(), "pods gone", LONG, pause=0.5)

    def accepted(self) -> dict[str, float]:
        """When PBS took each pod's job, by pod UID: the time of `job.id` on the login node."""
        line = f"find {self.spool}/*/pods -mindepth 2 -maxdepth 2 -name job.id -printf '%T@ %h\\n' 2>/dev/null || true"
        rows = [row.split(" ", 1) for row in self.shell(line).splitlines()]
        return {path.rsplit("/", 1)[1]: float(at) for at, path in rows}

    def metric(self, name: str) -> dict[str, float]:
        """Samples of one of the agent's metrics, by their label text."""
        url = f"http://127.0.0.1:{self.agent.status_port}/metrics"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(name)]
        return {key[len(name) :]: float(value) for key, value in rows}

    def agent_pid(self) -> int:
        """The agent's own process: the first below its guard."""
        if self.agent.process is None:
            raise BenchError("the agent is not running")
        return self.agent.process.pids[1]

    def writes(self, since: int = 0) -> list[Json]:
        """The agent's writes to pods as the audit log has them, after its first `since` events."""
        events = self.control_plane.audit_events(user=AGENT_USER, verbs=("patch", "update"))[since:]
        return [event for event in events if event["objectRef"].get("resource") == "pods"]


class Theatre:
    """Starts the control plane once and stages on demand; a context manager."""

    def __init__(self, address: str | None, queue: str | None, progress: Callable[[str], None]) -> None:
        """address: user@host:port of a cluster, or None for the embedded one. queue: of that cluster, for held jobs."""
        self.address = address
        self.queue = queue
        self.progress = progress
        self._control_plane = ControlPlane(progress=progress)

    def __enter__(self) -> Theatre:
        self._control_plane.start()
        self._control_plane.kubectl("create", "namespace", NAMESPACE)
        return self

    def __exit__(self, *_: object) -> None:
        self._control_plane.stop()

    @contextmanager
    def stage(
        self, shape: Shape = Shape(), *, agent: Mapping[str, Any] | None = None, **changes: Any
    ) -> Iterator[Stage]:
        """A cluster and an agent that serves it; `changes` are keys of the cluster's entry in bridge.yaml."""
        if self.address is not None:
            held = {"queue": self.queue} if shape.held and self.queue else {}
            yield from self._play(Remote(self.address), agent, held | changes)
            return
        with PbsTestCluster(shape.config(), progress=self.progress) as cluster:
            yield from self._play(cluster, agent, changes)

    def _play(self, target: Target, agent: Mapping[str, Any] | None, changes: Json) -> Iterator[Stage]:
        common = {"images": [{"image": "busybox:*"}], "pods": 20000, "overcommit": 100, "census": "5m"}
        with tempfile.TemporaryDirectory(prefix="hpc-bridge-bench-") as folder:
            running = Agent(
                self._control_plane, [target], Path(folder), agent=agent, changes={target.name: common | changes}
            )
            stage = Stage(self._control_plane, target, running, changes.get("queue"))
            running.start()
            try:
                running.wait_ready(120)
                yield stage
                if self.address is not None:
                    stage.clear()  # the embedded cluster ends with all that it has
            except BenchError as error:
                raise BenchError(f"{error}; the agent's log ends\n{running.log.read_text()[-3000:]}") from error
            finally:
                running.stop()
                stage.clear(grace=0)
                self._control_plane.kubectl("delete", "node", stage.node, "--ignore-not-found")

    def versions(self) -> dict[str, str]:
        """Of what is measured and of what it is measured with."""
        found = json.loads(self._control_plane.kubectl("version", "--output=json").stdout)
        return {"kubernetes": found["serverVersion"]["gitVersion"], "kubectl": found["clientVersion"]["gitVersion"]}


async def _many(calls: Iterable[Any]) -> None:
    """Await them all, sixteen at a time."""
    queue = iter(calls)

    async def work() -> None:
        for call in queue:
            await call

    await asyncio.gather(*(work() for _ in range(16)))


def wait(check: Callable[[], Any], what: str, timeout: float = LONG, pause: float = 0.1) -> Any:
    """Poll until `check` is true; return what it returned. Raises BenchError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := check()):
        if time.monotonic() > deadline:
            raise BenchError(f"not after {timeout:.0f} s: {what}")
        time.sleep(pause)
    return found
