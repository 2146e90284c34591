"""`doctor`: what answers of login node, job and API server mean, and what to do about each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from censuses import cluster, recorded

from bridge.api.settings import Cluster, LocalTransport, Settings, SshTransport
from bridge.setup.checks import Check, Rows, State
from bridge.setup.job import JobSeen, command
from bridge.setup.job_checks import EVERY, JOB, PYTHON, RUNTIME, SHARED, judge_job
from bridge.setup.kube_checks import needs
from bridge.setup.login_checks import (
    AFTER_SSH,
    CLOCK,
    COMMANDS,
    HOST_KEY,
    NEEDED,
    QUEUE,
    SPOOL,
    SSH,
    LoginNode,
    judge_login,
    unreachable,
)
from bridge.setup.login_checks import PYTHON as LOGIN_PYTHON
from bridge.setup.place_checks import LOCAL, SHOWN, judge_places, transport_row
from bridge.setup.shell import Answer
from pbs_adapter.transport import AuthenticationRefused, HostKeyRefused, TransportError

ROWS = Rows("alpha/default")
OVER_SSH = SshTransport.model_validate({"host": "l", "user": "u", "keyFile": "/k", "knownHostsFile": "/h"})
GOOD = {
    **{f"command:{name}": Answer(0, b"/opt/pbs/bin\n") for name in NEEDED},
    "python": Answer(0, b"3.6.8\n"),
    "server": Answer(0, recorded("main", "server_full")),
    "queues": Answer(0, recorded("main", "queues_full")),
    "vnodes": Answer(0, recorded("main", "nodes_numa_busy")),
    "user": Answer(0, b"alice\n"),
    "groups": Answer(0, b"users\n"),
    "spool": Answer(0, b"/home/alice/.hpc-bridge\n"),
    "safe": Answer(0, b""),
}


def login_rows(parts: dict[str, Answer], *, offset: float = 0.0, settings: Cluster | None = None) -> dict[str, Check]:
    node = LoginNode(GOOD | parts, offset, 0.05)
    return {check.name: check for check in judge_login(ROWS, settings or cluster(), OVER_SSH, node)}


def test_a_login_node_as_it_should_be() -> None:
    rows = login_rows({})
    assert list(rows) == [SSH, HOST_KEY, *AFTER_SSH]
    assert {row.state for row in rows.values()} == {State.OK}
    assert rows[SPOOL].found == "/home/alice/.hpc-bridge"


@pytest.mark.parametrize(
    ("parts", "name", "found", "advice"),
    [
        ({"python": Answer(1, b"3.4.3\n")}, LOGIN_PYTHON, "3.4.3", "python: name"),
        ({"python": Answer(127, b"", "python3: not found")}, LOGIN_PYTHON, "not found", "python: name"),
        ({"command:qdel": Answer(1, b"")}, COMMANDS, "not found: qdel", "pbsExec"),
        ({"server": Answer(255, b"", "cannot connect to server")}, COMMANDS, "cannot connect", "is the PBS server up"),
        ({"queues": Answer(0, b"{")}, COMMANDS, "cannot be read", "by hand"),
        ({"spool": Answer(1, b"", "mkdir: Read-only file system")}, SPOOL, "Read-only", "spool: name"),
        ({"safe": Answer(1, b"/home can be written by others\n")}, SPOOL, "written by others", "mend owner or mode"),
    ],
)
def test_a_login_node_that_lacks_something(parts: dict[str, Answer], name: str, found: str, advice: str) -> None:
    rows = login_rows(parts)
    assert rows[name].state is State.FAILED
    assert found in rows[name].found
    assert advice in rows[name].advice
    others = {row.state for row in rows.values() if row.name not in (name, QUEUE)}
    assert others == {State.OK}
    assert rows[QUEUE].state is (State.SKIPPED if name == COMMANDS else State.OK)


@pytest.mark.parametrize(
    ("queue", "found"), [("nix", "nix: does not exist"), ("closed", "takes no jobs"), ("longq", "runs no jobs")]
)
def test_a_queue_that_cannot_be_used(queue: str, found: str) -> None:
    row = login_rows({}, settings=cluster(queue="workq", queues=["workq", queue]))[QUEUE]
    assert (row.state, found in row.found) == (State.FAILED, True)
    assert "workq" in row.advice


@pytest.mark.parametrize(
    ("offset", "state"), [(9, State.OK), (-10, State.OK), (11, State.FAILED), (-300, State.FAILED)]
)
def test_clocks(offset: float, state: State) -> None:
    assert login_rows({}, offset=offset)[CLOCK].state is state


@pytest.mark.parametrize(
    ("error", "states", "advice"),
    [
        (HostKeyRefused("is unknown: SHA256:x"), (State.FAILED, State.FAILED), "fingerprint"),
        (AuthenticationRefused("does not accept the key"), (State.FAILED, State.OK), "authorized_keys"),
        (TransportError("no route"), (State.FAILED, State.SKIPPED), "reach l port 22"),
    ],
)
def test_a_login_node_that_cannot_be_reached(error: TransportError, states: tuple[State, ...], advice: str) -> None:
    ssh, key = unreachable(ROWS, OVER_SSH, error)
    assert (ssh.name, key.name, (ssh.state, key.state)) == (SSH, HOST_KEY, states)
    assert advice in ssh.advice
    by_command = unreachable(ROWS, LocalTransport(type="local"), TransportError("x"))[0]
    assert "by hand" in by_command.advice


REPORT = {
    "host": Answer(0, b"n1\n"),
    "clock": Answer(0, b"1796030800.5\n"),
    "python": Answer(0, b"3.6.15\n"),
    "bwrap": Answer(0, b""),
    "userns": Answer(0, b""),
}
APPTAINER = {"apptainer": Answer(0, b"apptainer version 1.3.1\n")}
NONE = {"bwrap": Answer(1, b"", "bwrap: No permissions to create new namespace"), "userns": Answer(1, b"", "denied")}


def job_rows(seen: JobSeen, settings: Cluster | None = None) -> dict[str, Check]:
    return {check.name: check for check in judge_job(ROWS, settings or cluster(), seen, 60)}


def test_a_job_as_it_should_be() -> None:
    rows = job_rows(JobSeen("7.alpha", REPORT))
    assert list(rows) == list(EVERY)
    assert {row.state for row in rows.values()} == {State.OK}
    assert rows[SHARED].found.startswith("n1 wrote")


@pytest.mark.parametrize(
    ("server", "well"), [("alpha", True), ("alpha.example.org", True), ("", True), ("beta", False)]
)
def test_a_job_that_went_to_another_server(server: str, well: bool) -> None:
    (row, *_) = judge_job(ROWS, cluster(), JobSeen("12.alpha", {}, queued=True), 60, server)
    assert (row.state is State.FAILED) != well
    if not well:
        assert "12.alpha" in row.found
        assert "beta" in row.found


def test_a_job_that_waits_is_not_a_mistake() -> None:
    rows = job_rows(JobSeen("7.alpha", {}, queued=True, comment="Not Running: no room"))
    assert {row.state for row in rows.values()} == {State.SKIPPED}
    assert "was cancelled: Not Running: no room" in rows[JOB].found
    assert "--wait" in rows[JOB].advice


def test_a_spool_that_is_not_shared() -> None:
    rows = job_rows(JobSeen("7.alpha", {}, said="cd: /home/alice: No such file or directory"))
    assert [rows[name].state for name in EVERY] == [State.OK, State.FAILED, *[State.SKIPPED] * 3]
    assert "No such file" in rows[SHARED].found
    assert "computeSpool" in rows[SHARED].advice


@pytest.mark.parametrize(
    ("report", "state", "found"),
    [
        ({}, State.OK, "bubblewrap works, user namespaces are allowed"),
        (NONE, State.FAILED, "No permissions"),
        (NONE | APPTAINER, State.FAILED, "apptainer version 1.3.1"),
    ],
)
def test_runtimes(report: dict[str, Answer], state: State, found: str) -> None:
    row = job_rows(JobSeen("7.alpha", REPORT | report))[RUNTIME]
    assert (row.state, found in row.found) == (state, True)


def test_an_old_python_on_the_compute_node() -> None:
    row = job_rows(JobSeen("7.alpha", REPORT | {"python": Answer(1, b"2.7.18\n")}))[PYTHON]
    assert (row.state, row.found) == (State.FAILED, "2.7.18")
    assert "computePython" in row.advice


def granted(namespace: str) -> set[tuple[str, str, str, str, str]]:
    """(group, resource, verb, namespace, name) of the rules that deploy/ ships; "" for all."""
    deploy = Path(__file__).parents[2] / "deploy"
    found = set()
    for file in (deploy / "base/rbac.yaml", deploy / "node/manifests.yaml", deploy / "routing/rbac.yaml"):
        for thing in yaml.safe_load_all(file.read_text()):
            where = "" if thing["kind"] == "ClusterRole" else thing["metadata"].get("namespace", namespace)
            found |= {
                (group, resource, verb, where, name)
                for rule in thing.get("rules", [])
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                for name in rule.get("resourceNames", [""])
            }
    return found


def test_the_rights_asked_for_are_the_rights_shipped() -> None:
    settings = Settings(clusters=(cluster(),))
    wanted = {(n.group, n.resource, verb, n.namespace, n.name) for n in needs(settings) for verb in n.verbs}
    by_binding = {("", "configmaps", "get", "kube-system", "extension-apiserver-authentication")}
    assert wanted - by_binding == granted("hpc-bridge")


def test_without_routing_nothing_is_needed_but_to_act_as_the_nodes() -> None:
    settings = Settings(clusters=(cluster(),), routing={"enabled": False})
    far = {(n.resource, verb, n.name) for n in needs(settings) if not n.namespace for verb in n.verbs}
    assert far == {
        ("users", "impersonate", "system:node:pbs-alpha"),
        ("groups", "impersonate", "system:nodes"),
        ("namespaces", "get", "kube-system"),
    }


def test_a_review_names_what_rbac_names() -> None:
    settings = Settings(clusters=(cluster(),), agent={"namespace": "ns", "lease": "lease"})
    attributes: list[dict[str, Any]] = [n.attributes("get") for n in needs(settings) if n.resource == "leases"]
    assert attributes[1] == {
        "group": "coordination.k8s.io", "resource": "leases", "verb": "get", "namespace": "ns", "name": "lease",
    }  # fmt: skip
    status = next(n for n in needs(settings) if n.resource == "routingrules/status").attributes("patch")
    assert status == {"group": "hpc-bridge.io", "resource": "routingrules", "subresource": "status", "verb": "patch"}


REAL = {"home": Answer(0, b"/fs1/home/alice\n"), "spool": Answer(0, b"/fs1/home/alice/.hpc-bridge\n")}


@pytest.mark.parametrize(
    ("shown", "real", "spool", "told"),
    [
        ("/scratch/x", "/fs1/scratch/x", "/fs1/home/alice/.hpc-bridge", ""),
        ("/data", "/fs1", "/fs1/home/alice/.hpc-bridge", "/data, which is /fs1, reaches the spool"),
        ("/data", "/fs1/home/alice/.hpc-bridge/x", "/fs1/home/alice/.hpc-bridge", "reaches the spool"),
        ("/data", "/fs1/home", "/fs2/spool", "holds home directories"),
        ("/data", "/fs1/home/alice", "/fs2/spool", "holds home directories"),
        ("/data", "/fs1/home/alice/data", "/fs2/spool", ""),
        ("/data", "/", "/fs2/spool", "everything"),
        ("/data", "/x", "/usr/local/spool", "below /usr"),
        ("/data", None, "/fs2/spool", ""),
    ],
)
def test_directories_that_pods_see_are_judged_by_where_they_really_are(
    shown: str, real: str | None, spool: str, told: str
) -> None:
    for field in ({"hostPaths": [{"path": shown}]}, {"imagePaths": [shown]}):
        seen = Answer(1, b"", "no such directory") if real is None else Answer(0, f"{real}\n".encode())
        parts = REAL | {"spool": Answer(0, f"{spool}\n".encode()), f"shown:{shown}": seen}
        (row,) = judge_places(ROWS, cluster(**field), parts)
        assert row.name == SHOWN
        assert row.state is (State.FAILED if told else State.OK)
        assert told in row.found


def test_what_is_not_known_of_directories_is_not_judged() -> None:
    (row,) = judge_places(ROWS, cluster(hostPaths=[{"path": "/x"}]), {"home": REAL["home"]})
    assert row.state is State.SKIPPED


def test_an_agent_on_the_login_node_is_told_what_that_means() -> None:
    (row,) = transport_row(ROWS, LocalTransport(type="local"))
    assert (row.name, row.state) == (LOCAL, State.SKIPPED)
    assert "kubeconfig" in row.found
    assert list(transport_row(ROWS, OVER_SSH)) == []


def test_the_small_job_is_submitted_as_pods_are() -> None:
    """A site whose hooks want more would refuse it, and take the pods."""
    site = cluster(
        queue="debug", accounting={"team-a": "proj01"}, groups={"*": "g01"},
        jobResources={"filesystems": "home:eagle"}, chunkResources={"system": "polaris"},
    )  # fmt: skip
    account = site.accounts[0].model_copy(update={"namespaces": ("team-a",)})
    words = " ".join(command(site, account, "/s/doctor"))
    for wanted in ("-q debug", "-A proj01", "-W group_list=g01", ":system=polaris", "-l filesystems=home:eagle"):
        assert wanted in words
