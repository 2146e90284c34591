"""The demo: a local cluster, two PBS clusters, the agent, and five pods that are routed between them, shown as they go.

Everything is real but PBS and what runs on the local node, and everything lies in one temporary folder. Only the order
of things is here; each of them is a part of the test bed that the end-to-end tests use too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bridge.api import names
from bridge.testbed import demo_load, demo_next, prepare
from bridge.testbed.agent import Agent
from bridge.testbed.control_plane import ControlPlane
from bridge.testbed.demo_interrupts import Interrupts
from bridge.testbed.demo_screen import Screen
from bridge.testbed.demo_table import rows, summary
from bridge.testbed.errors import TestbedError
from bridge.testbed.files import shipped
from bridge.testbed.local_nodes import LocalNodes
from bridge.testbed.pbs_cluster import ALPHA, BETA, OTHER, PbsTestCluster

BUSY = 40
"""Seconds that another user's job fills beta, so that one sees pods go elsewhere."""
LOCAL = {"local-1": {"cpu": "2", "memory": "4Gi"}}
"""The local cluster: room for two of the five pods."""
LOCAL_RUNS = 15.0
"""Seconds that a pod takes there, so that nobody waits for its room."""
PATIENCE = 240.0
"""Seconds for five pods; far more than they take, for machines that are busy."""
SETTINGS = {"images": [{"image": "busybox:*"}], "queue": "workq", "poll": 3, "overcommit": 2}
"""What bridge.yaml says of each cluster besides how it is reached; polls are more frequent than an admin would like,
and a backlog as large as the cluster may wait in PBS."""
CENSUS = {"census": 5}
"""The same, so that the router soon sees that beta is full."""
LARGE = 20
"""Above so many pods the table has a row for each node and state instead of one for each pod."""
SELECTOR = "app in (hello,routed)"
Json = dict[str, Any]


class DemoFailed(Exception):
    """The demo could not run to its end; the message says why and where the logs are."""


def run_demo(console: Console, *, keep: bool, pods: int = 0) -> None:
    """Run all of it; returns when nothing is left running. pods: so many simulated ones instead of the example's.

    Raises DemoFailed, the logs kept; KeyboardInterrupt on a signal (with `keep` the only way to end).
    """
    interrupts, screen = Interrupts(), Screen(console)
    work = Path(tempfile.mkdtemp(prefix="hpc-bridge-demo-"))
    try:
        with ExitStack() as stack:
            try:
                _Demo(work, screen, stack, pods).run(keep)
            finally:
                interrupts.hold()
                screen.rest()
        screen.progress("done; nothing is left running")
        screen.rest()
        screen.line(demo_next.again())
    except Exception as error:  # whatever it is: people need the logs, and not a traceback
        (work / "failure.log").write_text(traceback.format_exc())
        raise DemoFailed(f"the demo failed: {error}\nlogs, and all else of it: {work}") from error
    except KeyboardInterrupt:
        screen.line("stopped; nothing is left running")
        raise
    finally:
        interrupts.ignore()
        screen.rest()
        if not (work / "failure.log").exists():
            _remove(work)


class _Demo:
    """One run. What is started is stopped by `stack`, the last first."""

    def __init__(self, work: Path, screen: Screen, stack: ExitStack, pods: int) -> None:
        work.chmod(0o711)  # as root jobs run as another user, whose home is in here
        self._work = work
        self._screen = screen
        self._stack = stack
        self._pods = pods
        self._patience = PATIENCE + pods * 0.6
        self._explained = ""

    def run(self, keep: bool) -> None:
        """Start everything, run the example, show what came of it, and stay if asked to."""
        for sentence in prepare.packages(self._screen.progress):
            self._screen.line(sentence)
        control_plane = self._control_plane()
        configs = demo_load.configs(self._pods) if self._pods else (ALPHA, BETA)
        alpha, beta = (self._cluster(config) for config in configs)
        if not self._pods:
            self._local_cluster(control_plane)
        agent = self._agent(control_plane, [alpha, beta])
        self._apply(control_plane, agent, beta)
        pods = self._follow(control_plane, agent)
        self._show(control_plane, {f"pbs-{each.name}": each for each in (alpha, beta)}, pods)
        if not keep:
            return
        self._screen.line(demo_next.kept(control_plane.admin_kubeconfig, agent, self._work))
        while agent.process is not None and agent.process.running:
            time.sleep(0.2)
        raise TestbedError("the agent has ended")

    def _apply(self, control_plane: ControlPlane, agent: Agent, beta: PbsTestCluster) -> None:
        """The pods, and what else wants to run."""
        examples = shipped("examples")
        if self._pods:
            beta.server.fill(OTHER, demo_load.OTHERS)
            self._screen.progress(f"a Job of {self._pods} pods; another user has {demo_load.OTHERS} jobs on beta")
            job = demo_load.job((examples / "hello-job.yaml").read_text(), self._pods)
            control_plane.kubectl("apply", "-f", "-", input=json.dumps(job))
            return
        self._screen.progress("another user's job fills beta")
        beta.keep_busy(BUSY)
        self._wait(lambda: _busy(agent, beta.name), "job that fills beta")
        self._wait(lambda: _gates(control_plane), "gate of the admission policy")
        files = [examples / f"{name}.yaml" for name in ("routing-rule", "routed-job")]
        self._screen.progress(f"kubectl apply {' '.join(f'-f examples/{file.name}' for file in files)}")
        control_plane.kubectl("apply", *(f"--filename={file}" for file in files))

    def _control_plane(self) -> ControlPlane:
        control_plane = ControlPlane(workdir=self._folder("control-plane", 0o700), progress=self._screen.progress)
        self._later("the control plane", control_plane.stop)
        control_plane.start()
        return control_plane

    def _cluster(self, config: Any) -> PbsTestCluster:
        folder = self._folder(config.server, 0o711)
        cluster = PbsTestCluster(config, workdir=folder, progress=self._screen.progress)
        self._later(f"the PBS cluster {cluster.name}", cluster.stop)
        cluster.start()
        if cluster.sshd is None:
            kind = cluster.transport["type"]
            self._screen.line(f"{cluster.name} has no sshd in front of it: it is reached by the transport {kind!r}")
        return cluster

    def _local_cluster(self, control_plane: ControlPlane) -> None:
        self._screen.progress(f"adding the local node {', '.join(LOCAL)}, on which pods do nothing")
        nodes = LocalNodes(control_plane, LOCAL, runs=LOCAL_RUNS)
        self._later("the local node", nodes.stop)
        nodes.start()

    def _agent(self, control_plane: ControlPlane, clusters: list[PbsTestCluster]) -> Agent:
        self._screen.progress(
            "kubectl apply: deploy/ (RBAC, RoutingRule, admission policies), hpc-bridge manifests (RuntimeClasses)"
        )
        more = demo_load.settings(self._pods) if self._pods else CENSUS
        changes = {cluster.name: SETTINGS | more for cluster in clusters}
        folder = self._folder("agent", 0o700)
        agent = Agent(control_plane, clusters, folder, changes=changes, progress=self._screen.progress)
        self._later("the agent", agent.stop)
        self._screen.progress("starting the agent")
        agent.start()
        agent.wait_ready(PATIENCE)
        return agent

    def _folder(self, name: str, mode: int) -> Path:
        folder = self._work / name
        folder.mkdir()
        folder.chmod(mode)
        return folder

    def _later(self, what: str, stop: Callable[[], None]) -> None:
        self._stack.callback(stop)
        self._stack.callback(self._screen.progress, f"stopping {what}")

    def _follow(self, control_plane: ControlPlane, agent: Agent) -> list[Json]:
        """Show the Job's pods until it has ended; return them."""
        pods: list[Json] = []

        def ended() -> bool:
            if agent.process is None or not agent.process.running:
                raise TestbedError(f"the agent has ended, see {agent.log}")
            found = _items(control_plane, "jobs,pods", f"--selector={SELECTOR}")
            pods[:] = [each for each in found if each["kind"] == "Pod"]
            self._screen.rows(summary(pods) if self._pods > LARGE else rows(pods))
            self._explain(agent, pods)
            conditions = [c for each in found for c in each["status"].get("conditions", []) if c["status"] == "True"]
            if failure := next((c for c in conditions if c["type"] == "Failed"), None):
                raise TestbedError(f"the Job has failed: {failure.get('message', '')}")
            return any(c["type"] == "Complete" for c in conditions)

        self._wait(ended, "end of the Job", 2.0 if self._pods > LARGE else 0.4)
        self._screen.rest()
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def _explain(self, agent: Agent, pods: list[Json]) -> None:
        """Ask why one went where it went, once, while others still fill the local node: later it would fit there."""
        sent = [
            str(each["metadata"]["name"]) for each in pods if names.JOB_ID in each["metadata"].get("annotations", {})
        ]
        if sent and not self._explained and not self._pods:
            self._explained = f"$ hpc-bridge explain pod/{min(sent)}\n{_explanation(agent, min(sent))}"

    def _show(self, control_plane: ControlPlane, clusters: dict[str, PbsTestCluster], pods: list[Json]) -> None:
        """One of those that became jobs: its log, its job, and why it went where it went."""
        pod = next((each for each in pods if each["spec"]["nodeName"] in clusters), None)
        if pod is None:
            raise TestbedError("no pod was sent to a PBS cluster")
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        self._screen.line(f"\n$ kubectl logs {name}\n{control_plane.kubectl('logs', name).stdout.rstrip()}")
        (script,) = clusters[node].spool.glob(f"*/*/pods/{pod['metadata']['uid']}/job.qsub")
        qsub = script.read_text().rstrip().splitlines()[-1]
        self._screen.line(f"\n{name} was submitted on the login node of {clusters[node].name} by\n{qsub}")
        if self._explained:
            self._screen.line(f"\n{self._explained}")

    def _wait(self, check: Callable[[], bool], what: str, pause: float = 0.4) -> None:
        deadline = time.monotonic() + self._patience
        while not check():
            if time.monotonic() > deadline:
                raise TestbedError(f"no {what} after {self._patience:.0f} s")
            time.sleep(pause)


def _remove(folder: Path) -> None:
    """Remove it, for some seconds again: what an interrupt hid from us is ended by its guard, and may still write."""
    deadline = time.monotonic() + 5
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def _items(control_plane: ControlPlane, *what: str) -> list[Json]:
    found: list[Json] = json.loads(control_plane.kubectl("get", *what, "--output=json").stdout)["items"]
    return found


def _busy(agent: Agent, cluster: str) -> bool:
    """Does the agent know that a job runs there?"""
    known: list[Json] = (agent.report() or {}).get("clusters", [])
    return any(queue["running"] for each in known if each["name"] == cluster for queue in each["queues"])


def _gates(control_plane: ControlPlane) -> bool:
    """Is the admission policy in force? It is some moments after it was applied."""
    argv = ["run", "probe", "--image=busybox:1.36", f"--labels={names.ROUTE}=can", "--dry-run=server", "--output=json"]
    return names.GATE in control_plane.kubectl(*argv).stdout


def _explanation(agent: Agent, pod: str) -> str:
    argv = [sys.executable, "-m", "bridge.cli", "explain", f"pod/{pod}", f"--agent=127.0.0.1:{agent.status_port}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise TestbedError(f"hpc-bridge explain: {done.stderr.strip()}")
    return done.stdout.rstrip()
