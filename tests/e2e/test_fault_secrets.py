"""A secret's value is looked for everywhere: in all processes, all files, PBS, Events, metrics. Only its pod has it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from faultkit import Points, gated, open_gates
from world import Json, World, pod, until

CANARY = "canary-4b1f0c9e-value"
FORMS = (CANARY.encode(), base64.b64encode(CANARY.encode()))


def scan_processes(name: str) -> dict[int, bytes]:
    """The processes whose /proc/N/<name> has the canary, in any form."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            content = Path("/proc", pid, name).read_bytes()
        except OSError:
            continue
        if any(form in content for form in FORMS):
            found[int(pid)] = content
    return found


def scan_files(*folders: Path) -> set[str]:
    """The files below these folders that have the canary, in any form."""
    patterns = [part for form in FORMS for part in ("-e", form.decode())]
    argv = ["grep", "-rlsFa", *patterns, *map(str, folders)]
    return set(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines())


def session_of(pid: int) -> int:
    """The session of a process."""
    return int(Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[3])


def leaky_pod() -> Json:
    """A pod that has the secret in every way that there is, and ends when it is asked to."""
    line = 'echo "has ${#V} ${#E_k} ${#C}"; wc -c < /sec/k; wc -c < /all/k; while [ ! -e /tmp/end ]; do sleep 0.2; done'
    thing = pod("leaky", f"trap 'touch /tmp/end' TERM; {line}; exit 9")
    main = thing["spec"]["containers"][0]
    main["env"] = [
        {"name": "V", "valueFrom": {"secretKeyRef": {"name": "leaky", "key": "k"}}},
        {"name": "C", "value": "composed: $(V)!"},
    ]
    main["envFrom"] = [{"prefix": "E_", "secretRef": {"name": "leaky"}}]
    thing["spec"]["volumes"] = [
        {"name": "sec", "secret": {"secretName": "leaky"}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "leaky"}}]}},
    ]
    main["volumeMounts"] = [{"name": "sec", "mountPath": "/sec"}, {"name": "all", "mountPath": "/all"}]
    return thing


def test_a_secret_is_found_nowhere_but_in_its_pod(bridge: World, points: Points) -> None:
    if os.getuid() != 0:
        pytest.skip("other users' processes can be looked into by root only")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "leaky"}}
    body = json.dumps(secret | {"stringData": {"k": CANARY}})
    bridge.kubectl("create", "-f", "-", input=body)
    places = [cluster.workdir for cluster in bridge.clusters.values()]
    places += [bridge.agent.workdir, bridge.control_plane.logs, bridge.control_plane.audit_log, points.folder]
    uid = gated(bridge, leaky_pod())["leaky"]
    folder = bridge.directory(uid)
    allowed = re.compile(re.escape(folder) + r"/secrets/(values\.json|volumes/(sec|all)/\.\.[^/]+/k)")
    points.arm("submit.locked", uid)  # everything is written, and the command line of qsub comes next
    open_gates(bridge, ["leaky"])
    until(lambda: points.reached("submit.locked", uid), "about to be submitted")
    written = scan_files(*places)
    assert {path for path in written if not allowed.fullmatch(path)} == set()
    assert len(written) == 3
    points.release()
    bridge.wait_phase("leaky", "Running")
    size, composed = len(CANARY), len(f"composed: {CANARY}!")
    until(lambda: bridge.logs("leaky") == f"has {size} {size} {composed}\n{size}\n{size}\n", "it has the secret")
    job = bridge.job_of("leaky")
    assert scan_processes("cmdline") == {}
    (leader,) = {session_of(pid) for pid in scan_processes("environ")}  # one session: the job's
    assert uid.encode() in Path("/proc", str(leader), "cmdline").read_bytes()
    assert (
        CANARY.encode() not in Path("/proc", str(leader), "environ").read_bytes()
    )  # podrun itself was not told by PBS
    cluster = bridge.clusters["alpha"]
    assert not any(form.decode() in cluster.pbs("qstat", "-x", "-f", job).stdout for form in FORMS)
    assert {path for path in scan_files(*places) if not allowed.fullmatch(path)} == set()
    said = bridge.kubectl("get", "events,pods,configmaps,nodes", "-A", "-o", "json").stdout
    with urllib.request.urlopen(f"http://127.0.0.1:{bridge.agent.status_port}/metrics", timeout=10) as answer:
        said += answer.read().decode()
    said += json.dumps(bridge.agent.report())
    assert not any(form.decode() in said for form in FORMS)
    bridge.kubectl("delete", "pod", "leaky", "--wait=false")
    bridge.wait_gone("leaky")
    assert scan_files(*places) == set()
    until(lambda: not scan_processes("environ"), "no process has it")
    bridge.kubectl("delete", "secret", "leaky")
