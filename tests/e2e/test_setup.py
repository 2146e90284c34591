"""The first day of an admin: `init` prints settings that run, `doctor` says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from world import World, condition, pod, until

from bridge.testbed.processes import Process, free_ports
from bridge.testbed.sshd import Sshd

COMMAND = [sys.executable, "-m", "bridge.cli"]


def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, check=False, timeout=110, **options)


@pytest.fixture
def login(bridge: World) -> Sshd:
    server = bridge.clusters["alpha"].sshd
    if server is None:
        pytest.skip("OpenSSH is missing: there is no login node")
    return server


def fingerprint(server: Sshd) -> str:
    listed = subprocess.run(["ssh-keygen", "-lf", server.known_hosts], capture_output=True, text=True, check=True)
    return listed.stdout.split()[1]


def init(bridge: World, server: Sshd, folder: Path, *more: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`init` as an admin of alpha types it."""
    where = f"{server.user}@{server.host}:{server.port}"
    known = folder / "known_hosts"
    paths = [
        "--key",
        str(server.key_file),
        "--known-hosts",
        str(known),
        "--pbs-exec",
        str(bridge.clusters["alpha"].pbs_exec),
    ]
    return run("init", where, *paths, *more, **options)


@pytest.mark.parametrize(
    ("options", "answer", "status", "said"),
    [
        (["--yes"], "", 2, "--yes trusts no host key by itself"),
        (["--yes", "--fingerprint", "SHA256:another"], "", 1, "was not confirmed"),
        ([], "n\n", 1, "was not confirmed"),
        ([], "", 1, "Aborted"),
    ],
)
def test_no_host_key_is_trusted_blindly(
    bridge: World, login: Sshd, tmp_path: Path, options: list[str], answer: str, status: int, said: str
) -> None:
    logins = login.log.read_text().count("Accepted publickey")
    done = init(bridge, login, tmp_path, *options, input=answer)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
    if status == 1:
        assert f"ssh-ed25519 {fingerprint(login)}" in done.stderr
    assert not (tmp_path / "known_hosts").exists()
    assert login.log.read_text().count("Accepted publickey") == logins


@pytest.fixture
def rested(bridge: World) -> Iterator[World]:
    """The world while its own agent stands still."""
    bridge.stop_agent()
    yield bridge
    bridge.agent.start()
    bridge.agent.wait_ready(90)


def test_what_init_prints_runs(rested: World, login: Sshd, tmp_path: Path) -> None:
    bridge = rested
    left_before = set(bridge.clusters["alpha"].run("ls", "-A").stdout.split())
    done = init(bridge, login, tmp_path, input="y\n")
    assert done.returncode == 0, done.stderr
    assert set(bridge.clusters["alpha"].run("ls", "-A").stdout.split()) == left_before
    assert "2 hosts of 16 cores, 64 GiB, in 2 NUMA domains" in done.stdout
    (port,) = free_ports(1)
    config = tmp_path / "bridge.yaml"
    config.write_text(f"agent:\n  statusListen: 127.0.0.1:{port}\n{done.stdout}")
    assert run("validate", "-c", str(config)).returncode == 0
    argv = [*COMMAND, "run", "-c", str(config), "--kubeconfig", str(bridge.agent.kubeconfig)]
    agent = Process("agent of init", argv, log=tmp_path / "agent.log", grace=15.0)
    try:
        until(lambda: condition(bridge.get("node", "pbs-alpha"), "Ready")["status"] == "True", "Ready")
        bridge.apply(pod("by-init", "echo from init"))
        bridge.wait_phase("by-init", "Succeeded")
    finally:
        agent.stop()


def table(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of `doctor -o json` by place and check."""
    return {(row["where"], row["name"]): row for row in json.loads(done.stdout)}


def doctor(bridge: World, *more: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    file = str(config or bridge.agent.config)
    return run("doctor", "-c", file, "--kubeconfig", str(bridge.agent.kubeconfig), "--wait", "60s", *more)


def test_doctor_finds_nothing_wrong(bridge: World, login: Sshd) -> None:
    admin = ["--kubeconfig", str(bridge.control_plane.admin_kubeconfig)]
    settings = yaml.safe_load(bridge.agent.config.read_text())
    settings["clusters"][0]["queues"] = ["workq"]  # the others are made to be unusable
    config = bridge.agent.workdir / "healthy.yaml"
    config.write_text(yaml.safe_dump(settings))
    done = run("doctor", "-c", str(config), *admin, "--wait", "60s", "-o", "json")
    rows = table(done)
    ports = {f"kubelet port of pbs-{name}" for name in bridge.clusters}
    wrong = [row for row in rows.values() if row["state"] != "ok" and row["name"] not in ports]
    assert (done.returncode, wrong) == (0, []), done.stdout
    assert "wrote, the login node read it back" in rows[("beta/default", "spool shared")]["found"]
    for port in ports:  # on loopback, as everything in the test bed
        assert (rows[("kubernetes", port)]["state"], "loopback" in rows[("kubernetes", port)]["found"]) == (
            "skipped",
            True,
        )
    for cluster in bridge.clusters.values():
        until(lambda c=cluster: c.pbs("qselect", "-N", "hpc-bridge-doctor").stdout == "", "no job is left")  # type: ignore[misc]
        assert "doctor-" not in cluster.run("ls", "-A", str(cluster.spool)).stdout


def test_doctor_as_the_agent(bridge: World) -> None:
    """With the agent's own rights: all that it needs, and not what only an administrator may."""
    rows = table(doctor(bridge, "-o", "json"))
    assert rows[("kubernetes", "RBAC")]["state"] == "ok", rows[("kubernetes", "RBAC")]
    port = rows[("kubernetes", "kubelet port of pbs-beta")]
    assert (port["state"], "nodes/proxy" in port["advice"]) == ("skipped", True)


def test_doctor_says_what_is_wrong(bridge: World, login: Sshd, tmp_path: Path) -> None:
    settings = yaml.safe_load(bridge.agent.config.read_text())
    alpha, beta = settings["clusters"]
    other = tmp_path / "other_known_hosts"
    other.write_text(f"[{login.host}]:{login.port} ssh-ed25519 {'A' * 68}\n")
    alpha["accounts"][0]["transport"]["knownHostsFile"] = str(other)
    beta["computeSpool"] = "/nonexistent"
    beta["queue"] = "workq"
    config = bridge.agent.workdir / "sick.yaml"
    config.write_text(yaml.safe_dump(settings))
    powerless = tmp_path / "kubeconfig"
    bridge.kubectl("create", "serviceaccount", "powerless")
    bridge.control_plane.service_account_kubeconfig("default", "powerless", powerless)
    done = run("doctor", "-c", str(config), "--kubeconfig", str(powerless), "--wait", "60s", "-o", "json")
    rows = table(done)
    assert done.returncode == 1
    key = rows[("alpha/default", "host key")]
    assert key["state"] == "failed"
    assert fingerprint(login) in key["found"]
    assert rows[("alpha/default", "a small job")]["state"] == "skipped"
    shared = rows[("beta/default", "spool shared")]
    assert shared["state"] == "failed"
    assert "computeSpool" in shared["advice"]
    rights = rows[("kubernetes", "RBAC")]
    assert (rights["state"], "hpc-bridge manifests" in rights["advice"]) == ("failed", True)
    assert "impersonate users system:node:pbs-alpha (to act as a virtual node)" in rights["found"]
    assert "doctor-" not in bridge.clusters["beta"].run("ls", "-A", str(bridge.clusters["beta"].spool)).stdout


def test_a_job_that_cannot_start_in_time_is_cancelled(bridge: World, tmp_path: Path) -> None:
    settings = yaml.safe_load(bridge.agent.config.read_text())
    del settings["clusters"][1]
    settings["clusters"][0] |= {"queue": "stopped", "queues": []}
    config = bridge.agent.workdir / "waiting.yaml"
    config.write_text(yaml.safe_dump(settings))
    done = run(
        "doctor", "-c", str(config), "--kubeconfig", "/nowhere", "--wait", "3s", env={**os.environ, "COLUMNS": "200"}
    )
    assert done.returncode == 1  # neither the queue nor Kubernetes
    assert "still waited after 3 s and was cancelled" in done.stdout
    assert "skipped" in done.stdout
    until(lambda: not bridge.clusters["alpha"].pbs("qselect", "-N", "hpc-bridge-doctor").stdout, "no job is left")
