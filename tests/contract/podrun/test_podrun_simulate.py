"""`podrun --simulate`: many pods in one process leave what as many podruns would leave."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from podrunkit import IDENTITY, PYTHON, Json, Pod, container, until


class Simulator:
    """The program, driven as minipbs drives it."""

    def __init__(self, program: Path) -> None:
        argv = [PYTHON, str(program), "--simulate"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **IDENTITY)

    def order(self, do: str, job: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "job": job, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def event(self) -> Json:
        assert self.process.stdout is not None
        found: Json = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(60)


@pytest.fixture
def simulator(program: Path) -> Iterator[Simulator]:
    running = Simulator(program)
    yield running
    assert running.close() == 0


def take(pod: Pod) -> str:
    """Hand the directory over to the user whose jobs run."""
    pod.launch = lambda: None  # type: ignore[method-assign, assignment, return-value]
    pod.start()
    return str(pod.directory)


def test_a_pod_runs_and_leaves_the_same_files(make_pod: Callable[..., Pod], simulator: Simulator) -> None:
    pod = make_pod().write(
        container("main", "echo 'hello there'; sleep 0.2; exit 3"), container("side", "sleep", "0.1")
    )
    simulator.order("start", "7.alpha", directory=take(pod))
    assert simulator.event() == {"event": "started", "job": "7.alpha"}
    assert simulator.event() == {"event": "ended", "job": "7.alpha", "status": 3}
    status = pod.status
    assert (status["phase"], status["result"], status["job_id"]) == ("Ended", "Failed", "7.alpha")
    assert [pod.state(name)["exit_code"] for name in ("main", "side")] == [3, 0]
    assert pod.output() == b"hello there\n"
    assert (pod.directory / "claim").is_dir()
    assert (pod.directory / "../../dirty" / pod.uid).exists()


def test_stop_signal_and_kill(make_pod: Callable[..., Pod], simulator: Simulator) -> None:
    stopped, signalled, killed = (
        make_pod(uid).write(container("main", "sleep", "1000")) for uid in ("one", "two", "three")
    )
    for job, pod in (("1", stopped), ("2", signalled), ("3", killed)):
        simulator.order("start", job, directory=take(pod))
        assert simulator.event()["event"] == "started"
        until(lambda pod=pod: pod.state()["state"] == "running", "running")
    stopped.stop(5)
    assert simulator.event() == {"event": "ended", "job": "1", "status": 143}
    simulator.order("terminate", "2")
    assert simulator.event() == {"event": "ended", "job": "2", "status": 143}
    simulator.order("kill", "3")
    assert simulator.event() == {"event": "ended", "job": "3", "status": 265}
    assert [pod.status["reason"] for pod in (stopped, signalled, killed)] == ["Stopped", "PBSJobDeleted", ""]
    assert killed.status["phase"] == "Running"


def test_a_second_start_is_refused(make_pod: Callable[..., Pod], simulator: Simulator) -> None:
    directory = take(make_pod().write(container("main", "true")))
    for status in (0, 75):
        simulator.order("start", "1", directory=directory)
        assert simulator.event()["event"] == "started"
        assert simulator.event()["status"] == status
