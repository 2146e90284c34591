"""Jobs out of every recording of both versions, compared with what was submitted and what happened."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pbs_adapter.remote.parse import Job, parse_jobs, parse_jobs_text, parse_select

RECORDINGS = Path(__file__).parents[1] / "contract" / "pbs" / "recordings"
VERSIONS = ("release", "main")
SERVER = {"release": "pbs-b", "main": "pbs-a"}
GB = 1024**3


def output(version: str, name: str) -> bytes:
    record = json.loads((RECORDINGS / version / f"{name}.json").read_text())
    if "stdout_base64" in record:
        return base64.b64decode(record["stdout_base64"])
    text: str = record["stdout"]
    return text.encode()


def jobs(version: str, name: str) -> dict[str, Job]:
    return parse_jobs(output(version, name)).jobs


def by_name(version: str, name: str) -> dict[str, Job]:
    """One job of each name (subjobs by name and index)."""
    return {
        job.name + (f"[{job.array_index}]" if job.array_index is not None else ""): job
        for job in jobs(version, name).values()
    }


def facts(job: Job, fields: str) -> tuple[Any, ...]:
    return tuple(getattr(job, field) for field in fields.split())


LIVE = {
    # name: state, substate, queue, ncpus, mem, walltime, hold_types, run_count
    "ok-job": ("R", 42, "workq", 4, GB, 300, "n", 1),
    "big": ("Q", 10, "workq", 500, None, 300, "n", None),
    "held": ("H", 20, "workq", 4, GB, 300, "u", None),
    "arr": ("B", 70, "workq", 1, None, 3600, "n", None),
    "wall": ("R", 42, "workq", 1, None, 5, "n", 1),
    "waita": ("W", 30, "workq", 4, GB, 300, "n", None),
    "opts.x": ("H", 20, "workq", 4, 4 * GB, 300, "u", None),
    "dep": ("H", 22, "workq", 4, GB, 300, "s", None),
    "stdin": ("E", 53, "workq", 1, None, 3600, "n", 1),
    "exe": ("E", 51, "workq", 1, None, 3600, "n", 1),
    "parked": ("Q", 10, "longq", 4, GB, 300, "n", None),
    "wide": ("Q", 10, "workq", 40, GB, 300, "n", None),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", LIVE)
def test_live_jobs(version: str, name: str) -> None:
    job = by_name(version, "jobs_live")[name]
    assert facts(job, "state substate queue ncpus mem walltime hold_types run_count") == LIVE[name]
    assert facts(job, "owner owner_host server") == ("alice", SERVER[version], SERVER[version])
    assert job.job_id.endswith("." + SERVER[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_whole_and_has_the_servers_clock(version: str) -> None:
    answer = parse_jobs(output(version, "jobs_live"))
    assert (answer.valid_json, answer.complete, answer.problem, len(answer.jobs)) == (True, True, "", 17)
    assert answer.timestamp == {"release": 1796032296.0, "main": 1796030799.0}[version]


ENDS = {
    # name: state, substate, exit_status
    "ok-job": ("F", 92, 0),
    "exit3": ("F", 93, 3),
    "kill9": ("F", 93, 137),
    "wall": ("F", 93, -29),
    "arr": ("F", 93, 1),
    "arr[0]": ("F", 92, 0),
    "arr[1]": ("F", 93, 1),
    "big": ("Q", 10, None),
    "exe": ("F", 92, 0),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ENDS)
def test_history(version: str, name: str) -> None:
    job = by_name(version, "jobs_history_subjobs")[name]
    assert facts(job, "state substate exit_status") == ENDS[name]


@pytest.mark.parametrize(
    ("version", "job_id", "end"),
    [
        ("release", "34.pbs-b", ("F", 91, 271, 16, 7372 * 1024, 1796032316.0, 1796032332.0)),
        ("main", "1035.pbs-a", ("F", 91, 271, 14, 6840 * 1024, 1796030819.0, 1796030835.0)),
    ],
)
def test_a_job_deleted_while_it_ran(version: str, job_id: str, end: tuple[Any, ...]) -> None:
    job = jobs(version, "job_after_qdel_running")[job_id]
    assert facts(job, "state substate exit_status walltime_used mem_used stime obittime") == end
    assert job.comment.endswith(f"and terminated by alice@{SERVER[version]}")
    assert (job.exec_host, job.exec_vnode) == (f"{SERVER[version]}/3", f"({SERVER[version]}[0]:ncpus=1)")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_array_and_its_subjobs(version: str) -> None:
    found = by_name(version, "job_after_qdel_subjob")
    array = found["arr2"]
    assert (array.array, array.array_index, array.array_indices) == (True, None, "0-3")
    assert array.array_states == {"Queued": 0, "Running": 3, "Exiting": 0, "Expired": 1}
    subjob = found["arr2[1]"]
    assert (subjob.array, subjob.array_id, subjob.array_index) == (False, array.job_id, 1)
    assert subjob.state in ("X", "F")
    assert {found[f"arr2[{i}]"].state for i in (0, 2, 3)} == {"R"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_ran_twice(version: str) -> None:
    job = by_name(version, "jobs_none")["rerun"]
    assert (job.state, job.run_count) == ("R", 2)
    # The release keeps the exit status of the run before.
    assert job.exit_status == {"release": -11, "main": None}[version]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_qsub_was_asked_for_comes_back(version: str) -> None:
    job = by_name(version, "jobs_live")["opts.x"]
    assert facts(job, "project account priority rerunable place") == ("proj1", "acct1", 10, False, "scatter")
    chunk = parse_select(job.select)[0]
    assert (chunk.count, chunk.resources["mpiprocs"], chunk.resources["mem"]) == (2, 2, 2 * GB)
    assert job.resources["mem"] == 4 * GB
    assert by_name(version, "jobs_live")["dep"].depend.startswith("afterok:")


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("big", "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 64 T: 64)"),
        ("parked", "Not Running: Queue not started."),
        ("wide", "Not Running: Insufficient amount of resource"),
        ("held", ""),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_comments(version: str, name: str, prefix: str) -> None:
    comment = by_name(version, "jobs_live")[name].comment
    assert comment.startswith(prefix)
    assert bool(comment) == bool(prefix)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["job_unknown", "job_finished_without_x", "job_illegal_id"])
def test_an_error_is_an_answer_without_jobs(version: str, name: str) -> None:
    answer = parse_jobs(output(version, name))
    assert (answer.jobs, answer.valid_json, answer.complete) == ({}, True, True)


@pytest.mark.parametrize("version", VERSIONS)
def test_names_that_look_like_numbers_stay_text(version: str) -> None:
    answer = parse_jobs(output(version, "jobs_numeric_looking_values"))
    (job,) = answer.jobs.values()
    assert facts(job, "name project account state substate ctime") == ("1e5", ".5", "005", "H", 20, 1796032419.0)
    assert answer.valid_json == (version == "main")
    assert ("invalid JSON" in answer.problem) == (version == "release")
    values = {k: job.variables[k] for k in "ABCDEHKLM"}
    submitted = ["inf", "+5", ".5", "0x1A", "nan", "say hi", "true", "null", "[1]"]
    assert values == dict(zip("ABCDEHKLM", submitted, strict=True))
    # The main branch loses zeroes and infinity for good: only its text format has them.
    lost = [job.variables[k] for k in "FGJ"]
    assert lost == {"release": ["005", "5.", "1e999"], "main": ["5", "5", "null"]}[version]


def test_an_odd_environment() -> None:
    (from_json,) = jobs("main", "jobs_odd_environment").values()
    (from_text,) = parse_jobs_text(output("main", "jobs_odd_environment_text")).jobs.values()
    for job in (from_json, from_text):
        assert job.variables["QUOTE"] == 'say "hi"'
        assert job.variables["BACK"] == "a\\\\b"
        assert job.variables["NL"] == "line1\nline2"
        assert job.variables["UTF"] == "café"
        assert job.variables["NOT_UTF"].encode("utf-8", "surrogateescape") == b"\xff\xfe"
        assert job.variables["EMPTY"] == ""
    assert from_text.variables["TRAILING"] == "ends\\"
    assert from_text.variables["COMMA"] == "a,b"
    assert from_text.variables["LEADING_ZERO"] == "007"


@pytest.mark.parametrize("version", VERSIONS)
def test_text_and_json_describe_the_same_job(version: str) -> None:
    (from_json,) = jobs(version, "jobs_odd_environment").values()
    answer = parse_jobs_text(output(version, "jobs_odd_environment_text"))
    (from_text,) = answer.jobs.values()
    assert answer.complete
    assert from_text._replace(variables={}) == from_json._replace(variables={})
    assert from_text.variables["PBS_O_PATH"] == from_json.variables["PBS_O_PATH"]


def test_the_wide_text_format_cannot_be_forged_by_a_newline() -> None:
    text = (
        b"Job Id: 1.pbs-a\n    Job_Name = odd\n    job_state = H\n"
        b"    Variable_List = NL=l1\\n    job_state = X,T=a\\\\,PBS_O_HOST=pbs-a\n    project = p\n\n"
        b"Job Id: 2.pbs-a\n    comment = \\u0159\\u00edk\\ud83d\\ude00 \\ud800\n"
    )
    found = parse_jobs_text(text).jobs
    assert (found["1.pbs-a"].state, found["1.pbs-a"].project) == ("H", "p")
    assert found["1.pbs-a"].variables == {"NL": "l1\n    job_state = X", "T": "a\\", "PBS_O_HOST": "pbs-a"}
    assert found["2.pbs-a"].comment == "řík\U0001f600 \\ud800"


BROKEN = b"""{
    "timestamp":1796032297,
    "Jobs":{
        "1.x":{
            "Job_Name":"first",
            "job_state":"R",
            "comment":"bad \\I escape",
            "Variable_List":{
                "BASH_FUNC_a%%":"() { echo "hi"",
                "TRAILING":"ends\\",
                "B":inf
            },
            "Exit_status":-29,
            "Resource_List":{
                "select":1,
                "mem":"1gb"
            },
            "jobs":[
                "a",
                "b"
            ]
        },
        "2.x":{
            "Job_Name":005,
            "job_state":"Q"
        }
    }
}
"""


def test_one_broken_job_costs_neither_itself_nor_the_others() -> None:
    answer = parse_jobs(BROKEN)
    assert (answer.valid_json, answer.complete, answer.timestamp) == (False, True, 1796032297.0)
    first, second = answer.jobs["1.x"], answer.jobs["2.x"]
    assert facts(first, "name state exit_status mem select") == ("first", "R", -29, GB, "1")
    assert first.comment == "bad \\I escape"
    assert first.variables == {"BASH_FUNC_a%%": '() { echo "hi"', "TRAILING": "ends\\", "B": "inf"}
    assert facts(second, "name state") == ("005", "Q")


@pytest.mark.parametrize("version", VERSIONS)
def test_output_cut_off_loses_the_last_job_and_says_so(version: str) -> None:
    whole = output(version, "jobs_live")
    answer = parse_jobs(whole[:-400])
    assert (answer.valid_json, answer.complete) == (False, False)
    assert "cut off" in answer.problem
    assert list(answer.jobs.values()) == list(parse_jobs(whole).jobs.values())[:-1]


@pytest.mark.parametrize("text", [b"", b"  \n", b"no json here", b"[1]", b'"x"', b"{", b"\xff\x00", b"[" * 100000])
def test_what_is_no_answer_is_incomplete(text: bytes) -> None:
    answer = parse_jobs(text)
    assert (answer.jobs, answer.valid_json, answer.complete) == ({}, False, False)
    assert answer.problem


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("Mon Nov 30 10:51:33 2026", 1796035893.0),
        ("1796035893", 1796035893.0),
        ("Mon Jan  1 00:00:00 13429", None),
        ("Mon Nov 30 08:51:33 2026", None),
        ("0", None),
        ("UNKNOWN", None),
    ],
)
def test_estimated_start(start: str, expected: float | None) -> None:
    tree = {"Jobs": {"1.x": {"ctime": "Mon Nov 30 09:51:33 2026", "estimated": {"start_time": start}}}}
    assert parse_jobs(json.dumps(tree).encode()).jobs["1.x"].estimated_start == expected
