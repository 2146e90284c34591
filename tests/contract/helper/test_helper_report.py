"""The long poll, and honesty about what PBS said."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from helperkit import CLUSTER, INSTANCE, POD_JSON, Helper, HelperError, Site, until

from pbs_adapter.minipbs import Server
from pbs_adapter.remote import wire
from pbs_adapter.remote.parse import parse_job_table
from pbs_adapter.remote.wire import Frame

DIALECTS = ("release", "main")


def test_nothing_is_said_before_hello(site: Site) -> None:
    helper = site.helper(hello=False)
    with pytest.raises(HelperError, match=r"permanent: .*hello"):
        helper.ask("jobs", after="", wait=0)
    answer = site.hello(helper)
    assert answer["protocol"] == 1
    assert answer["spool"] == str(site.spool)
    assert answer["pbs_exec"] == str(site.pbs)
    assert {"user", "home", "hostname", "os", "kernel", "arch", "python", "time", "runtimes"} <= set(answer)


def test_pbs_is_found_on_path(site: Site) -> None:
    site.path = f"{site.pbs}/bin:/usr/bin:/bin"
    helper = site.helper(hello=False)
    assert site.hello(helper, pbs_exec=None)["pbs_exec"] == str(site.pbs)


def test_a_spool_below_home(site: Site) -> None:
    helper = site.helper(hello=False)
    assert site.hello(helper, spool="~/elsewhere")["spool"] == str(site.folder / "elsewhere")
    assert (site.folder / "elsewhere" / INSTANCE / CLUSTER / "pods").stat().st_mode & 0o777 == 0o700


def test_the_long_poll_wakes_for_changes_only(site: Site) -> None:
    helper = site.helper()
    first = until(lambda: ready(helper), "the first complete report")
    assert first["full"]
    assert first["observations"] == []
    waiting = helper.start("jobs", after=first["cursor"], wait=60)
    site.submit(helper, site.uid)
    woken = helper.result(waiting).head
    assert not woken["full"]
    assert [o["uid"] for o in woken["observations"]] == [site.uid]
    (site.pod(site.uid) / "finish").touch()
    cursor = woken["cursor"]
    report = woken
    while not any(o["status"] and o["status"]["phase"] == "Ended" for o in report["observations"]):
        report = helper.ask("jobs", after=cursor, wait=60)
        assert report["observations"], "woken for nothing"
        cursor = report["cursor"]
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")
    cursor = helper.ask("jobs", after="", wait=0)["cursor"]
    waiting = helper.start("jobs", after=cursor, wait=60)
    helper.ask("remove", uid=site.uid)
    assert helper.result(waiting).head["gone"] == [site.uid]


def ready(helper: Helper) -> dict[str, Any]:
    report = helper.ask("jobs", after="", wait=1)
    return report if report["complete"] else {}


def test_a_wait_that_ends_without_news(site: Site) -> None:
    helper = site.helper()
    cursor = until(lambda: ready(helper), "complete")["cursor"]
    report = helper.ask("jobs", after=cursor, wait=0.2)
    assert (report["cursor"], report["full"], report["observations"], report["gone"]) == (cursor, False, [], [])


def test_a_cursor_of_another_helper_gives_everything(site: Site) -> None:
    first = site.helper()
    site.submit(first, site.uid, options="-q parked")
    cursor = first.ask("jobs", after="", wait=0)["cursor"]
    first.close()
    second = site.helper()
    report = second.ask("jobs", after=cursor, wait=60)
    assert report["full"]
    assert [o["uid"] for o in report["observations"]] == [site.uid]


def test_pbs_is_unknown_until_it_has_answered(site: Site, pbs: Server) -> None:
    site.submit(site.helper(), site.uid, options="-q parked")
    pbs.fault("refuse", "on")
    try:
        helper = site.helper()
        report = until(lambda: down(helper), "the server is seen to be down")
        assert not report["complete"]
        assert report["server_message"]
        assert [o["pbs"]["seen"] for o in report["observations"]] == ["unknown"]
    finally:
        pbs.fault("refuse", "off")
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "present", "the server is back")
    assert until(lambda: ready(helper), "complete")["server_up"]


def down(helper: Helper) -> dict[str, Any]:
    report = helper.ask("jobs", after="", wait=0)
    return {} if report["server_up"] else report


def test_an_outage_keeps_the_last_view_and_its_time(site: Site, pbs: Server) -> None:
    helper = site.helper()
    site.submit(helper, site.uid, options="-q parked")
    waiting = site.await_observed(helper, site.uid, lambda o: bool(o["pbs"]["comment"]), "has a comment")
    assert waiting["pbs"]["comment"].startswith("Not Running: ")
    assert (waiting["pbs"]["state"], waiting["pbs"]["queue"]) == ("Q", "parked")
    name = pbs.prefix / "etc" / "server"  # what the refused commands say that they cannot reach
    before = name.read_text()
    pbs.fault("refuse", "on")
    try:
        until(lambda: down(helper), "the server is seen to be down")
        at = site.observed(helper, site.uid)["pbs"]["at"]
        name.write_text("still-away\n")
        until(lambda: "still-away" in down(helper).get("server_message", ""), "the next poll is refused too")
        kept = site.observed(helper, site.uid)["pbs"]
        assert (kept["seen"], kept["at"]) == ("present", at)
    finally:
        name.write_text(before)
        pbs.fault("refuse", "off")


def test_a_job_that_vanishes_is_lost_only_after_a_second_look(site: Site, pbs: Server) -> None:
    helper = site.helper(lost_after=2.0)
    job_id = site.submit(helper, site.uid)
    site.await_observed(helper, site.uid, lambda o: o["claimed"] and o["pbs"]["state"] == "R", "runs")
    pbs.fault("vanish", f"{job_id}:kill")
    missing = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "unknown", "is missed")
    lost = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is lost")
    assert lost["pbs"]["at"] - missing["pbs"]["at"] >= 1.9
    assert lost["status"]["phase"] == "Running"
    helper.ask("remove", uid=site.uid)


def test_a_job_that_dies_without_a_word_shows_its_exit_status(site: Site) -> None:
    helper = site.helper(lost_after=2.0)
    site.submit(helper, site.uid)
    site.await_observed(helper, site.uid, lambda o: o["claimed"] and o["pbs"]["state"] == "R", "runs")
    pid = find_pid(str(site.pod(site.uid)))
    os.kill(pid, 9)
    lost = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is over")
    assert (lost["pbs"]["state"], lost["pbs"]["exit_status"]) == ("F", 265)


def find_pid(directory: str) -> int:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[-2:-1] == [directory.encode()] and words[1].endswith(b"podrun.py"):
            return int(name)
    raise AssertionError("the job's process is not there")


def test_json_that_is_broken_is_read_as_text(site: Site, pbs: Server) -> None:
    pbs.fault("garbage", "on")
    try:
        helper = site.helper()
        site.submit(helper, site.uid, options="-q parked")
        site.await_observed(helper, site.uid, lambda o: bool(o["pbs"]["comment"]), "has a comment")
    finally:
        pbs.fault("garbage", "off")


def test_history_that_is_off_is_no_error(site: Site, pbs: Server) -> None:
    pbs.fault("history", "off")
    try:
        helper = site.helper(lost_after=2.0)
        site.submit(helper, site.uid)
        site.await_observed(helper, site.uid, lambda o: o["claimed"] and o["pbs"]["state"] == "R", "runs")
        os.kill(find_pid(str(site.pod(site.uid))), 9)
        lost = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is over")
        assert lost["pbs"]["exit_status"] is None
        assert until(lambda: ready(helper), "complete")["server_up"]
    finally:
        pbs.fault("history", "on")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"x" * 300_000, "larger than"),
        (b'{"version":1,"uid":', "not JSON"),
        (b'{"version":7,"uid":"UID","phase":"Running","containers":{}}', "version 7"),
        (b'{"version":1,"uid":"another","phase":"Running","containers":{}}', "another pod"),
    ],
)
def test_a_spoilt_status_is_reported_as_such(site: Site, text: bytes, problem: str) -> None:
    helper = site.helper()
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    (site.pod(site.uid) / "status.json").write_bytes(text.replace(b"UID", site.uid.encode()))
    (site.instance / "dirty" / site.uid).touch()
    seen = site.await_observed(helper, site.uid, lambda o: bool(o["status_problem"]), "is noticed")
    assert seen["status"] is None
    assert problem in seen["status_problem"]


def test_a_status_that_is_a_pipe_or_a_link_is_not_followed(site: Site) -> None:
    helper = site.helper()
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    os.mkfifo(site.pod(site.uid) / "status.json")
    (site.instance / "dirty" / site.uid).touch()
    site.await_observed(helper, site.uid, lambda o: bool(o["status_problem"]), "the pipe is noticed")
    secret = site.folder / "secret.json"
    secret.write_text(json.dumps({"version": 1, "uid": site.uid, "phase": "Running", "containers": {}}))
    (site.pod(site.uid) / "status.json").unlink()
    (site.pod(site.uid) / "status.json").symlink_to(secret)
    (site.instance / "dirty" / site.uid).touch()
    until(lambda: not (site.instance / "dirty" / site.uid).exists(), "the mark is taken")
    assert site.observed(helper, site.uid)["status"] is None


def test_a_former_leader_is_fenced(site: Site) -> None:
    former = site.helper()
    newer = site.helper(hello=False)
    newer.epoch = 2
    site.hello(newer)
    for op, head in (("submit", site.submission(site.uid)), ("cancel", {"uid": site.uid, "grace": 0, "force": False})):
        with pytest.raises(HelperError, match=r"fenced"):
            former.ask(op, POD_JSON if op == "submit" else b"", **head)
    with pytest.raises(HelperError, match=r"fenced"):
        site.helper()
    assert not (site.pod(site.uid) / "job.id").exists()
    assert (site.instance / "epoch").read_text().startswith("2 ")


def test_the_census_is_pbs_own_words(site: Site) -> None:
    helper = site.helper()
    head, body = helper.census("server", "queues", "vnodes")
    sizes = [head[name] for name in ("server_size", "queues_size", "vnodes_size")]
    assert sum(sizes) == len(body)
    assert b"workq" in body[sizes[0] : sizes[0] + sizes[1]]
    assert head["host"]["kernel"] == os.uname().release
    assert "jobs_at" not in head


def test_a_quick_census_asks_for_queues_and_vnodes_alone(site: Site, pbs: Server) -> None:
    helper = site.helper()
    until(lambda: ready(helper), "the first poll is over")
    before = int(pbs.stats()["connections"])
    head, body = helper.census("queues", "vnodes")
    assert int(pbs.stats()["connections"]) - before <= 3  # two, and perhaps a poll
    assert {"at", "queues_size", "vnodes_size"} == set(head)
    assert head["queues_size"] + head["vnodes_size"] == len(body)


def test_the_census_lists_all_jobs_where_asked(site: Site) -> None:
    helper = site.helper()
    job_id = site.submit(helper, site.uid, options="-q parked")
    head, body = helper.census("server", "queues", "vnodes", "jobs")
    table = parse_job_table(body[-head["jobs_size"] :])
    assert head["jobs_problem"] == ""
    assert [(row.queue, row.state) for row in table if row.job_id == job_id] == [("parked", "Q")]


def test_a_site_that_lists_no_jobs_gives_the_rest(site: Site) -> None:
    """The list is one command more, and its failure is no failure of the census."""
    shadow = site.folder / "shadow"
    (shadow / "bin").mkdir(parents=True)
    asked = shadow / "asked"
    for program in ("pbsnodes", "qstat"):
        script = f'#!/bin/sh\necho {program} "$@" >> {asked}\n[ "$1" = -a ] && exit 159\n'
        script += f'exec {site.pbs}/bin/{program} "$@"\n'
        (shadow / "bin" / program).write_text(script)
        (shadow / "bin" / program).chmod(0o755)
    helper = site.helper(hello=False)
    site.hello(helper, pbs_exec=str(shadow), poll=3600.0)
    until(lambda: ready(helper), "the first poll is over")
    asked.unlink()
    head, body = helper.census("server", "queues", "vnodes", "jobs")
    assert head["jobs_size"] == 0
    assert head["jobs_problem"]
    assert b"workq" in body
    assert [line.split()[:2] for line in asked.read_text().splitlines()] == [
        ["qstat", "-B"],
        ["qstat", "-Q"],
        ["pbsnodes", "-av"],
        ["qstat", "-a"],
    ]


@pytest.mark.parametrize("garbage", [b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096])
def test_garbage_on_its_input_ends_the_helper(site: Site, garbage: bytes) -> None:
    helper = site.helper()
    try:
        helper.raw(garbage)
    except BrokenPipeError:
        pass
    until(lambda: helper.process.poll() is not None, "it has ended")


@pytest.mark.parametrize(
    "head",
    [
        {"op": "nonsense"},
        {"op": "hello"},
        {"op": "cancel", "uid": "../../etc", "grace": 1},
        {"op": "cancel", "uid": "pod", "grace": "soon"},
        {"op": "write", "uid": "pod", "files": [{"path": "a", "mode": 384, "size": 5}]},
        {"op": "write", "uid": "pod", "files": [{"path": "a"}]},
        {"op": "jobs", "after": 7, "wait": 0},
        {"op": "logs", "uid": "pod", "container": "main", "tail_lines": -1},
    ],
)
def test_a_request_that_makes_no_sense_is_answered(site: Site, head: dict[str, Any]) -> None:
    helper = site.helper()
    with pytest.raises(HelperError, match=r"permanent"):
        helper.ask(**head)


def test_ping(site: Site) -> None:
    helper = site.helper()
    helper.send(Frame(0, wire.PING))
    assert helper.frame(0).kind == wire.PONG
