"""What the demo shows of pods, on a terminal and elsewhere, and how signals end it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bridge.testbed import demo_load
from bridge.testbed.demo_screen import Screen
from bridge.testbed.demo_table import Row, changes, plain, rows, summary

Json = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples"


def pod(name: str, *, node: str = "", job: str = "", **status: Any) -> Json:
    annotations = {"annotations": {"status.hpc-bridge.io/job-id": job}} if job else {}
    return {"metadata": {"name": name, **annotations}, "spec": {"nodeName": node} if node else {}, "status": status}


def container(**state: Any) -> list[Json]:
    return [{"name": "hello", "state": state}]


def test_a_pod_that_no_node_takes_says_why() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    shown = rows([pod("a", phase="Pending", conditions=[unscheduled])])
    assert shown == [Row("a", "", "", "Pending", "0/2 nodes are available")]


def test_a_pod_that_waits_in_pbs_shows_the_comment_of_its_job_on_one_line() -> None:
    waiting = container(waiting={"reason": "PBSQueued", "message": "Not Running: Insufficient amount\n of ncpus"})
    scheduled = {"type": "PodScheduled", "status": "True", "message": "not this"}
    status = {"phase": "Pending", "containerStatuses": waiting, "conditions": [scheduled]}
    shown = rows([pod("a", node="pbs-beta", job="1.beta", **status)])
    assert shown == [Row("a", "pbs-beta", "1.beta", "PBSQueued", "Not Running: Insufficient amount of ncpus")]


def test_an_init_container_is_waited_for_first() -> None:
    first, second = container(waiting={"reason": "PBSHeld", "message": "held"}), container(waiting={"message": "later"})
    assert rows([pod("a", initContainerStatuses=first, containerStatuses=second)])[0].why == "held"


def test_pods_are_ordered_by_name_and_say_how_they_end() -> None:
    failed = pod("b", node="n", phase="Failed", reason="PBSRejected", message="qsub: Unknown queue")
    shown = rows([failed, pod("a", node="n", job="1.x", phase="Succeeded"), pod("c", node="n", phase="Running")])
    assert [(row.pod, row.state, row.why) for row in shown] == [
        ("a", "Completed", ""),
        ("b", "PBSRejected", "qsub: Unknown queue"),
        ("c", "Running", ""),
    ]


ROUTED = "status.hpc-bridge.io/route"


def routed(chosen: Json, **state: Any) -> Row:
    found = pod("a", node="n", phase="Running", containerStatuses=container(**state))
    found["metadata"]["annotations"] = {ROUTED: json.dumps(chosen)}
    return rows([found])[0]


def test_what_was_predicted_and_what_came_true() -> None:
    best = {"rank": 1, "wait": {"p50": 1.0, "p90": 400.0}}
    chosen = {"decision": "cluster", "at": "2026-11-30T10:00:00Z", "candidates": [best, {"rank": 2, "wait": None}]}
    row = routed(chosen, running={"startedAt": "2026-11-30T10:00:07Z"})
    assert (row.predicted, row.waited) == ("P50 1 s, P90 6.7 min", "7 s")
    row = routed(chosen, terminated={"startedAt": "2026-11-30T10:00:03Z"})
    assert (row.predicted, row.waited) == ("P50 1 s, P90 6.7 min", "3 s")
    assert routed(chosen, waiting={"reason": "PBSQueued"}).waited == ""


def test_a_pod_that_fits_the_local_cluster_is_expected_to_start_at_once() -> None:
    chosen = {"decision": "local", "at": "2026-11-30T10:00:00Z", "local": {"fitsNow": True}}
    row = routed(chosen, running={"startedAt": "2026-11-30T10:00:00Z"})
    assert (row.predicted, row.waited) == ("now", "0 s")


def test_a_pod_whose_place_is_not_decided_yet() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    found = pod("a", phase="Pending", conditions=[waiting])
    found["spec"]["schedulingGates"] = [{"name": "hpc-bridge.io/routing"}]
    assert rows([found]) == [Row("a", "", "", "SchedulingGated", "")]


def test_only_what_changed_is_told_again() -> None:
    before = [Row("a", "n", "", "Pending", ""), Row("b", "n", "", "Pending", "")]
    now = [Row("a", "n", "", "Pending", ""), Row("b", "n", "1.x", "PBSQueued", "why"), Row("c", "", "", "Pending", "")]
    assert changes(before, now) == now[1:]
    assert plain(now[1]) == "b  n  1.x  PBSQueued: why"


def screen(*, terminal: bool) -> tuple[Screen, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, force_interactive=terminal, width=60, legacy_windows=False)
    return Screen(console), output


def test_without_a_terminal_a_stage_is_a_line_however_often_it_reports() -> None:
    shown, output = screen(terminal=False)
    for message in ("building: 1 of 20 packages", "building: 2 of 20 packages", "starting", "starting"):
        shown.progress(message)
    shown.rows([Row("a", "n", "", "Pending", "x" * 200 + " [bold]")])
    shown.rows([Row("a", "n", "", "Pending", "x" * 200 + " [bold]")])
    shown.rest()
    lines = [re.sub(r"^\[ *\d+\.\d s\] ", "", line) for line in output.getvalue().splitlines()]
    why = "x" * 200 + " [bold]"
    assert lines == ["building: 1 of 20 packages", "starting", f"a  n  no job  Pending: {why}"]


def test_on_a_terminal_stages_and_the_last_table_stay() -> None:
    shown, output = screen(terminal=True)
    shown.progress("starting 1")
    shown.progress("starting 2")
    shown.rows([Row("a", "n", "1.x", "PBSQueued", "[bold] reason")])
    shown.rows([Row("a", "n", "1.x", "Completed", "")])
    shown.rest()
    shown.rest()
    text = output.getvalue()
    assert re.search(r"\[ *\d+\.\d s\] starting 2\n", text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    assert "Completed" in text.rpartition("\x1b[?25h")[2]


SIGNALLED = """
import os, signal
from bridge.testbed.demo_interrupts import Interrupts
interrupts = Interrupts()
told = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        told.append(number.name)
interrupts.hold()
os.kill(os.getpid(), signal.SIGINT)
interrupts.ignore()
os.kill(os.getpid(), signal.SIGTERM)
print(*told)
"""


def test_signals_interrupt_until_the_clean_up_begins() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "SIGINT SIGTERM SIGHUP\n", "")


def test_many_pods_are_counted_by_node_and_state() -> None:
    waiting = container(waiting={"reason": "PBSQueued", "message": "Insufficient amount of ncpus"})
    pods = [pod(f"r{n}", node="pbs-a", job=f"{n}.a", phase="Running") for n in range(30)]
    pods += [pod(f"q{n}", node="pbs-b", job=f"{n}.b", phase="Pending", containerStatuses=waiting) for n in range(12)]
    pods += [pod("new", phase="Pending")]
    assert summary(pods) == [
        Row("1 pods", "", "", "Pending", ""),
        Row("30 pods", "pbs-a", "30 jobs", "Running", ""),
        Row("12 pods", "pbs-b", "12 jobs", "PBSQueued", "Insufficient amount of ncpus"),
    ]


def test_the_clusters_of_a_large_demo_have_room_for_half_of_its_pods() -> None:
    alpha, beta = demo_load.configs(2000)
    assert [sum(host.ncpus for host in config.hosts) for config in (alpha, beta)] == [896, 128]
    assert alpha.simulate
    assert beta.simulate
    made = demo_load.job((EXAMPLES / "hello-job.yaml").read_text(), 2000)
    assert made["spec"]["parallelism"] == 2000
    assert made["spec"]["template"]["spec"]["containers"][0]["args"] == ["echo simulated; sleep 30; echo done"]
