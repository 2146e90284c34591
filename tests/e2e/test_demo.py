"""The demo as people run it: to its end, kept, interrupted at any moment, and where it cannot run."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from bridge.testbed.guard import descendants
from bridge.testbed.kubectl import find_kubectl
from bridge.testbed.processes import alive, processes_of

pytestmark = pytest.mark.timeout(400)
PATIENCE = 300.0
HELLO = Path(__file__).parents[2] / "examples/hello-job.yaml"
FAKE_GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26.0; exit; fi
echo "go: downloading something"
sleep 1000 &
sleep 1001
"""


def eventually(check: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    """Poll until `check` holds."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"not after {timeout} s: {what}"
        time.sleep(0.05)


class Demo:
    """`hpc-bridge demo` as a process, all of whose files lie in `folder`, which everybody may enter."""

    def __init__(self, folder: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._output = folder / "output"
        self._errors = folder / "errors"
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self._temporary.chmod(0o711)
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bridge.cli", "demo", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(self._temporary), **(env or {})},
            )

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    @property
    def errors(self) -> str:
        """What it has printed to stderr."""
        return self._errors.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it prints `text`."""
        eventually(lambda: text in self.output or self.process.poll() is not None, text)
        assert text in self.output, self.output + self.errors

    def users(self) -> list[int]:
        """The user ids that it has created."""
        return [user.pw_uid for user in pwd.getpwall() if Path(user.pw_dir).is_relative_to(self.folder)]

    def pids(self) -> set[int]:
        """Everything that runs because of it."""
        return {*descendants(self.process.pid), *(pid for uid in self.users() for pid in processes_of(uid))}

    def interrupt(self, *numbers: signal.Signals) -> set[int]:
        """Send signals, and wait for its end; the processes that ran before."""
        running = self.pids()
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.01)  # two at the same moment would be one
        assert self.process.wait(PATIENCE) == 130, self.output + self.errors
        return running

    def assert_nothing_is_left(self, ran: set[int]) -> None:
        """No process, no user, no file."""
        # The guards of what it was just about to start see its end a moment later.
        eventually(lambda: not any(map(alive, ran)) and not mentioning(str(self.folder)), "no process", 30)
        eventually(lambda: self.users() == [], "no user", 30)
        assert list(self._temporary.iterdir()) == []

    def end(self) -> None:
        """After a test that failed; the guards end what it had started."""
        self.process.kill()
        self.process.wait()


def mentioning(text: str) -> set[int]:
    """Processes with that text in their command line."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:  # it ended while we were looking
            continue
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own: as root the clusters' users must be able to enter it."""
    folder = Path(tempfile.mkdtemp(prefix="hpcb-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []

    def begin(*options: str, env: Mapping[str, str] | None = None) -> Demo:
        demos.append(Demo(folder, *options, env=env))
        return demos[-1]

    yield begin
    for demo in demos:
        demo.end()


def test_five_pods_go_where_there_is_room(start: Callable[..., Demo]) -> None:
    demo = start()
    demo.wait_for("SchedulingGated")
    ran = demo.pids()
    assert demo.process.wait(PATIENCE) == 0, demo.output + demo.errors
    assert demo.errors == ""
    last = {
        name: line for line, name in re.findall(r"^(\[ *\d+\.\d s\] (routed-\d-\w+) .*)$", demo.output, re.MULTILINE)
    }
    assert len(last) == 5
    assert all("  Completed  " in line for line in last.values())
    local = [line for line in last.values() if "  local-1  no job  " in line]
    sent = [line for line in last.values() if re.search(r"  pbs-(alpha|beta)  \d+\.\1  ", line)]
    assert 1 <= len(local) <= 4
    assert len(local) + len(sent) == 5
    assert all(re.search(r"\(predicted: now; waited: \S+ \w+\)$", line) for line in local)
    assert all(re.search(r"\(predicted: P50 .+, P90 .+; waited: \S+ \w+\)$", line) for line in sent)
    shown = re.search(r"^hello from (routed-\d-\w+), part \d of 5, on pbs-(\w+)$", demo.output, re.MULTILINE)
    assert shown is not None
    pattern = rf"^/\S+/bin/qsub .* -N {shown[1]}\.\S+ -q workq -l select=1:ncpus=1:mem="
    assert re.search(pattern, demo.output, re.MULTILINE)
    explained = demo.output.partition("$ hpc-bridge explain pod/routed-")[2]
    assert "rule: default (mode can)" in explained
    assert {"alpha", "beta"} <= set(re.findall(r"\b(alpha|beta)\b", explained))
    assert "make demo KEEP=1" in demo.output
    demo.assert_nothing_is_left(ran)


def test_a_kept_demo_says_how_to_reach_it_and_a_second_signal_does_not_hurt(start: Callable[..., Demo]) -> None:
    demo = start("--keep")
    demo.wait_for("Ctrl-C here")
    commands = [line.strip() for line in demo.output.splitlines()]
    (kubeconfig,) = [line.partition("=")[2] for line in commands if line.startswith("export KUBECONFIG=")]
    (status,) = [line.split()[1:] for line in commands if line.startswith("hpc-bridge status --agent ")]
    kubectl = [find_kubectl(), f"--kubeconfig={kubeconfig}"]
    for words in (["apply", "-f", str(HELLO)], ["wait", "--for=condition=complete", "job/hello", "--timeout=240s"]):
        subprocess.run([*kubectl, *words], capture_output=True, text=True, check=True, timeout=PATIENCE)
    logs = subprocess.run([*kubectl, "logs", "job/hello"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "step 5 of 5" in logs.stdout
    reported = subprocess.run([sys.executable, "-m", "bridge.cli", *status], capture_output=True, text=True, check=True)
    names = subprocess.run(
        [*kubectl, "get", "pods", "-o", "name", "--field-selector=spec.nodeName!=local-1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sum(map(int, re.findall(r"(\d+) (?:Completed|Running)", reported.stdout))) == len(names.stdout.split()) >= 5
    assert "Completed" in reported.stdout
    ran = demo.interrupt(signal.SIGTERM, signal.SIGINT)
    demo.assert_nothing_is_left(ran)
    assert "Traceback" not in demo.errors


@pytest.mark.parametrize(
    "moment", ["starting the control plane", "starting the PBS cluster beta", "starting the agent", "Running"]
)
def test_ctrl_c_leaves_nothing_behind(start: Callable[..., Demo], moment: str) -> None:
    demo = start()
    demo.wait_for(moment)
    ran = demo.interrupt(signal.SIGINT)
    demo.assert_nothing_is_left(ran)
    assert demo.errors == ""


def test_ctrl_c_during_the_first_build(start: Callable[..., Demo], folder: Path) -> None:
    go, cache = folder / "bin" / "go", folder / "cache"
    go.parent.mkdir()
    go.write_text(FAKE_GO)
    go.chmod(0o755)
    path = os.pathsep.join([str(go.parent), os.environ.get("PATH", os.defpath)])
    demo = start(env={"PATH": path, "XDG_CACHE_HOME": str(cache), "KUBEBUILDER_ASSETS": ""})
    demo.wait_for("fetching the control plane's sources")
    ran = demo.interrupt(signal.SIGINT)
    demo.assert_nothing_is_left(ran)
    assert list((cache / "hpc-bridge").glob(".build-*")) == []
    assert demo.errors == ""


def test_a_failure_says_what_is_missing_and_where_the_logs_are(start: Callable[..., Demo], folder: Path) -> None:
    demo = start(env={"PATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "KUBEBUILDER_ASSETS": ""})
    assert demo.process.wait(PATIENCE) == 1
    assert "no control plane can be had here" in demo.errors
    assert "Traceback" not in demo.errors
    kept = Path(demo.errors.split()[-1])
    assert "Traceback" in (kept / "failure.log").read_text()


def test_preparing_is_nothing_to_do_when_all_is_there(folder: Path) -> None:
    go, assets = folder / "go", folder / "assets"
    assets.mkdir()
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        (assets / name).write_text("")
        (assets / name).chmod(0o755)
    env = {**os.environ, "PATH": str(go), "KUBEBUILDER_ASSETS": str(assets)}
    argv = [sys.executable, "-m", "bridge.testbed.prepare"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    bare = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        env={**env, "KUBEBUILDER_ASSETS": "", "XDG_CACHE_HOME": str(folder)},
        timeout=PATIENCE,
    )
    assert bare.returncode == 1
    assert "no control plane can be had here" in bare.stderr
