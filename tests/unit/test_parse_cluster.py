"""Queues, nodes, server, job tables and errors, out of the recordings of both versions and of a live server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pbs_adapter.remote.parse import (
    ErrorClass,
    Limit,
    ParseError,
    classify_error,
    error_text,
    group_by_host,
    parse_job_table,
    parse_nodes,
    parse_queues,
    parse_server,
)

RECORDINGS = Path(__file__).parents[1] / "contract" / "pbs" / "recordings"
VERSIONS = ("release", "main")
SERVER = {"release": "pbs-b", "main": "pbs-a"}
GB = 1024**3


def record(version: str, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RECORDINGS / version / f"{name}.json").read_text())
    return loaded


def output(version: str, name: str) -> bytes:
    recorded = record(version, name)
    encoded = recorded.get("stdout_base64")
    return base64.b64decode(encoded) if encoded else recorded["stdout"].encode()


@pytest.mark.parametrize("version", VERSIONS)
def test_queues(version: str) -> None:
    queues = parse_queues(output(version, "queues_full_busy"))
    assert list(queues) == ["workq", "gpu", "closed", "longq"]
    assert [(q.enabled, q.started, q.total_jobs) for q in queues.values()] == [
        (True, True, 13),
        (True, True, 0),
        (False, False, 0),
        (True, False, 1),
    ]
    assert queues["workq"].type == "Execution"
    assert queues["workq"].state_count["Queued"] == 4
    assert queues["workq"].state_count["Running"] == 5
    assert queues["workq"].resources_assigned == {"mem": GB, "ncpus": 53, "nodect": 5}
    assert queues["gpu"].resources_max == {"walltime": 3600}
    assert queues["gpu"].limits.max_queued == (Limit("u", "PBS_GENERIC", 3),)
    assert queues["workq"].acl_users is None


LIMITS = b"""{
    "Queue":{
        "zz":{
            "queue_type":"Execution",
            "Priority":50,
            "acl_user_enable":"True",
            "acl_users":"alice@*,bob",
            "max_running":20,
            "max_run":"[o:PBS_ALL=10]",
            "max_run":"[u:PBS_GENERIC=2]",
            "max_run_res":{
                "ncpus":"[o:PBS_ALL=400]"
            },
            "max_run_res":{
                "mem":"[u:PBS_GENERIC=10gb]",
                "ncpus":"[u:PBS_GENERIC=200]"
            },
            "queued_jobs_threshold":"[u:PBS_GENERIC=7]"
        },
        "rr":{
            "queue_type":"Route",
            "route_destinations":"q_1h,q_1d@pbs-b"
        }
    }
}
"""


def test_duplicate_keys_of_limits_are_all_kept() -> None:
    queues = parse_queues(LIMITS)
    limits = queues["zz"].limits
    assert limits.max_run == (
        Limit("o", "PBS_ALL", 10),
        Limit("u", "PBS_GENERIC", 2),
        Limit("o", "PBS_ALL", 20),
    )
    assert limits.max_run_res == {
        "ncpus": (Limit("o", "PBS_ALL", 400), Limit("u", "PBS_GENERIC", 200)),
        "mem": (Limit("u", "PBS_GENERIC", 10 * GB),),
    }
    assert limits.queued_threshold == (Limit("u", "PBS_GENERIC", 7),)
    assert (queues["zz"].priority, queues["zz"].acl_users) == (50, ("alice@*", "bob"))
    assert queues["rr"].route_destinations == ("q_1h", "q_1d@pbs-b")
    assert not queues["rr"].enabled


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes(version: str) -> None:
    host = SERVER[version]
    vnodes = parse_nodes(output(version, "nodes_numa_busy"))
    first, second = vnodes[f"{host}[0]"], vnodes[f"{host}[1]"]
    assert (first.host, first.ncpus, first.ncpus_assigned, first.mem, first.mem_assigned) == (
        host,
        32,
        21,
        128 * GB,
        GB,
    )
    assert (first.usable, first.up, first.sharing, len(first.jobs)) == (True, True, "default_shared", 3)
    assert (second.usable, second.up, second.states) == (False, True, frozenset(["job-busy"]))
    assert (second.ncpus_assigned, second.mem_assigned) == (32, 0)
    assert vnodes[host].ncpus == 0
    assert vnodes[host].pcpus == 2
    idle = parse_nodes(output(version, "nodes_numa_idle"))
    assert [(v.ncpus_assigned, v.jobs) for v in idle.values()] == [(0, ())] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hosts_domains(version: str) -> None:
    hosts = group_by_host(parse_nodes(output(version, "nodes_numa_idle")).values())
    assert {host: [v.name for v in vnodes] for host, vnodes in hosts.items()} == {
        SERVER[version]: [f"{SERVER[version]}[0]", f"{SERVER[version]}[1]"]
    }


def test_hosts_are_in_natural_order() -> None:
    names = ["n10", "n9", "n9[10]", "n9[2]", "¹"]
    text = json.dumps({"nodes": {name: {"Mom": name.split("[")[0]} for name in names}})
    hosts = group_by_host(parse_nodes(text.encode()).values())
    assert [v.name for vnodes in hosts.values() for v in vnodes] == ["n9", "n9[2]", "n9[10]", "n10", "¹"]


@pytest.mark.parametrize(
    ("state", "usable", "up"),
    [
        ("free", True, True),
        ("job-busy", False, True),
        ("job-exclusive", False, True),
        ("job-busy,offline", False, False),
        ("down", False, False),
        ("state-unknown,down", False, False),
        ("maintenance", False, False),
        ("", False, False),
    ],
)
def test_node_states(state: str, usable: bool, up: bool) -> None:
    text = json.dumps({"nodes": {"n10": {"Mom": "n10.site", "state": state, "jobs": ["1.x/0", "1.x/1"]}}})
    vnode = parse_nodes(text.encode())["n10"]
    assert (vnode.usable, vnode.up, vnode.host, vnode.jobs) == (usable, up, "n10.site", ("1.x",))


@pytest.mark.parametrize("version", VERSIONS)
def test_server(version: str) -> None:
    server = parse_server(output(version, "server_full_busy"))
    assert (server.name, server.version, server.state) == (SERVER[version], "23.06.06", "Active")
    assert (server.default_queue, server.scheduling, server.job_history_enable) == ("workq", True, True)
    assert (server.max_array_size, server.total_jobs, server.scheduler_iteration) == (10000, 25, 10)
    assert server.resources_default == {"ncpus": 1, "walltime": 3600}
    assert server.default_chunk == {"ncpus": 1}
    assert server.query_other_jobs


@pytest.mark.parametrize("text", [b"", b"oops", b"{", b"[]", b'{"nodes": 3, "Queue": [], "Server": "x"}'])
def test_what_is_no_answer_is_an_error(text: bytes) -> None:
    for parse in (parse_nodes, parse_queues, parse_server):
        with pytest.raises(ParseError):
            parse(text)


TABLE = {
    # name: nds, tsk, memory, walltime, state, elapsed
    "ok-job": (1, 4, GB, 300, "R", 0),
    "big": (1, 500, None, 300, "Q", None),
    "held": (1, 4, GB, 300, "H", None),
    "arr": (1, 1, None, 3600, "B", None),
    "opts.x": (2, 4, 4 * GB, 300, "H", None),
    "fill": (1, 16, None, 300, "Q", None),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_table(version: str) -> None:
    rows = parse_job_table(output(version, "jobs_table_wide"))
    assert len(rows) == 15
    found = {row.name: (row.nds, row.tsk, row.memory, row.walltime, row.state, row.elapsed) for row in rows}
    assert {name: found[name] for name in TABLE} == TABLE
    assert {(row.user, row.job_id.partition(".")[2]) for row in rows} == {("alice", SERVER[version])}
    assert [row.queue for row in rows if row.queue != "workq"] == ["longq"]
    assert rows[0].exec_host == f"{SERVER[version]}/0*4"
    assert rows[0].session.isdigit()
    narrow = parse_job_table(output(version, "jobs_estimates_table"))
    assert len(narrow) == 14
    assert {row.name for row in narrow} >= set(TABLE) - {"arr"}


def table(server: bytes, *rows: bytes) -> bytes:
    """What `qstat -w` prints: its columns are 30, 15, 15, 15, 8, 4, 5, 6, 5, 1 and 5 bytes wide."""
    dashes = b" ".join(b"-" * width for width in (30, 15, 15, 15, 8, 4, 5, 6, 5, 1, 5))
    return b"\n".join([b"", server, b"Job ID   Username   Queue", dashes, *rows, b""])


def row(*values: bytes, hosts: bytes = b"") -> bytes:
    left = b"%-30s %-15s %-15s %-15s " % values[:4]
    return left + b"%8s %4s %5s %6s %5s %1s %5s" % values[4:] + hosts


CUT = table(
    b"pbs-a: maintenance on Friday",
    row(b"2.pbs-a", b"alice", b"workq", b"aaaaaaaaaaaaaa*", b" -- ", b"2", b"2", b" -- ", b"100:3", b"H", b" -- "),
    b"    -- ",
    row(b"3.x", b"bob", b"workq", b"caf\xc3\xa9 l", b"28798", b"2", b"2", b"1024mb", b"1234:", b"R", b"48:05"),
    b"   pbs-a/0+pbs-a/1",
    b"   Job run at Mon Nov 30 at 11:58 on (pbs-a[0]:ncpus=1)+(pbs-a[0]:ncpus=1)",
) + table(
    b"pbs-c: ",
    row(b"4[].c", b"\xff\xfe", b"workq", b"x", b" -- ", b"1", b"1", b" -- ", b"48:00", b"Q", b" -- ", hosts=b" -- "),
)


def test_a_table_with_all_that_a_table_can_have() -> None:
    first, second, third = parse_job_table(CUT)
    assert (first.name, first.walltime, first.exec_host, first.comment) == ("aaaaaaaaaaaaaa*", 361800, "", "")
    assert (second.name, second.walltime, second.elapsed, second.memory) == ("café l", 1234 * 3600, 173100, GB)
    assert second.exec_host == "pbs-a/0+pbs-a/1"
    assert second.comment.startswith("Job run at")
    assert (third.job_id, third.user, third.state, third.exec_host) == ("4[].c", "\udcff\udcfe", "Q", "")


def test_no_job_is_no_output() -> None:
    assert parse_job_table(b"") == []
    with pytest.raises(ParseError):
        parse_job_table(b"qstat: cannot connect to server pbs-a (errno=111)\n")


def test_a_row_is_never_lost_in_silence() -> None:
    with pytest.raises(ParseError):
        parse_job_table(CUT.replace(b"1234: R", b"1234:  R"))


ERRORS = {
    "qsub_unknown_queue": ErrorClass.PERMANENT,
    "qsub_closed_queue": ErrorClass.PERMANENT,
    "qsub_unknown_resource": ErrorClass.PERMANENT,
    "qsub_walltime_over_queue": ErrorClass.PERMANENT,
    "qsub_illegal_name": ErrorClass.PERMANENT,
    "qsub_name_231": ErrorClass.PERMANENT,
    "qsub_missing_script": ErrorClass.PERMANENT,
    "qsub_user_quota": ErrorClass.LIMIT,
    "qsub_array_over_limit": ErrorClass.PERMANENT,
    "qsub_bad_walltime": ErrorClass.PERMANENT,
    "qsub_bad_memory": ErrorClass.PERMANENT,
    "qsub_bad_place": ErrorClass.PERMANENT,
    "qsub_bad_server": ErrorClass.RETRY,
    "qsub_select_and_ncpus": ErrorClass.PERMANENT,
    "qsub_not_authorised_account": ErrorClass.PERMANENT,
    "qsub_ok": ErrorClass.OK,
    "job_unknown": ErrorClass.UNKNOWN_JOB,
    "job_finished_without_x": ErrorClass.FINISHED,
    "job_illegal_id": ErrorClass.PERMANENT,
    "qdel_unknown": ErrorClass.UNKNOWN_JOB,
    "qdel_finished": ErrorClass.FINISHED,
    "qdel_of_another_user": ErrorClass.PERMANENT,
    "qmove_unknown_queue": ErrorClass.PERMANENT,
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ERRORS)
def test_recorded_errors(version: str, name: str) -> None:
    recorded = record(version, name)
    command = recorded["command"].split()[0].replace("for", "qsub")
    assert classify_error(command, recorded["exit_status"], recorded["stderr"]) == ERRORS[name]
    # The number alone says the same, where it is PBS's own and not the command's.
    if recorded["exit_status"] > 5:
        assert classify_error(command, recorded["exit_status"], "") == ERRORS[name]


@pytest.mark.parametrize(
    ("command", "status", "stderr", "expected"),
    [
        ("qsub", 1, "Failed to recv data from background qsub\n", ErrorClass.OUTCOME_UNKNOWN),
        ("qsub", None, "", ErrorClass.OUTCOME_UNKNOWN),
        ("/opt/pbs/bin/qsub", -9, "", ErrorClass.OUTCOME_UNKNOWN),
        ("qsub", 162, "", ErrorClass.OUTCOME_UNKNOWN),
        ("qsub", 183, "qsub: Batch protocol error", ErrorClass.OUTCOME_UNKNOWN),
        ("qsub", 99, "something new", ErrorClass.OUTCOME_UNKNOWN),
        ("qsub", 162, "qsub: cannot connect to server pbs-a (errno=15010)", ErrorClass.RETRY),
        ("qsub", 255, "pbs_iff: all reserved ports in use\nqsub: cannot connect to server", ErrorClass.RETRY),
        ("qsub", 198, "qsub: Maximum number of jobs already in queue", ErrorClass.LIMIT),
        ("qsub", 39, "", ErrorClass.LIMIT),
        ("qsub", 65, "qsub: no account, see https://site", ErrorClass.PERMANENT),
        ("qsub", 212, "qsub: Request not allowed: Server shutting down", ErrorClass.RETRY),
        ("qstat", 255, "Connection refused\nqstat: cannot connect to server", ErrorClass.RETRY),
        ("qstat", None, "", ErrorClass.RETRY),
        ("qdel", 168, "qdel: Request invalid for state of job 1.x", ErrorClass.RETRY),
        ("qdel", 55, "", ErrorClass.FINISHED),
        ("qdel", 99, "something new", ErrorClass.RETRY),
    ],
)
def test_errors(command: str, status: int | None, stderr: str, expected: ErrorClass) -> None:
    assert classify_error(command, status, stderr) == expected


def test_the_text_for_people() -> None:
    assert error_text(record("release", "qsub_illegal_name")["stderr"]) == "illegal -N value"
    assert error_text("Unknown Host.\nqsub: cannot connect to server x (errno=15008)\n").startswith("cannot connect")
    assert error_text("") == ""
    assert error_text("no prefix\n") == "no prefix"
