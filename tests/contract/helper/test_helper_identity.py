"""Whose job is it: what a pod directory says of its job is compared with what PBS says, before anything comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helperkit import HelperError, Site

DIALECTS = ("release", "main")


def forge(site: Site, uid: str, job_id: str) -> None:
    """Write into a pod directory as any job of the account can, and tell of it."""
    (site.pod(uid) / "job.id").write_text(f"{job_id}\n")
    (site.instance / "dirty" / uid).touch()


def present(seen: dict[str, Any]) -> bool:
    return bool(seen["pbs"]["seen"] == "present")


def gone(seen: dict[str, Any]) -> bool:
    return bool(seen["pbs"]["seen"] == "absent")


def shadow(site: Site, program: str, line: str) -> Path:
    """A PBS whose `program` is another one; returns the file in which it may note things."""
    folder = site.folder / "shadow"
    (folder / "bin").mkdir(parents=True)
    for each in ("qsub", "qdel", "qstat", "qselect", "pbsnodes"):
        told = line.replace("REAL", f"{site.pbs}/bin/{each}") if each == program else f'exec {site.pbs}/bin/{each} "$@"'
        (folder / "bin" / each).write_text(f"#!/bin/sh\nNOTE={folder}/note\n{told}\n")
        (folder / "bin" / each).chmod(0o755)
    return folder / "note"


@pytest.mark.parametrize("restart", [False, True])
def test_a_forged_job_id_deletes_no_other_job(site: Site, restart: bool) -> None:
    helper = site.helper(lost_after=1.0)
    victim = site.submit(helper, site.other, options="-q parked")
    own = site.submit(helper, site.uid, options="-q parked")
    if restart:
        helper.close()
        helper = site.helper(lost_after=1.0)
    forge(site, site.uid, victim)
    if not restart:
        site.await_observed(helper, site.uid, lambda o: o["job_id"] != own or o["status_problem"], "read")
    helper.ask("cancel", uid=site.uid, grace=0, force=True)
    site.await_observed(helper, site.uid, gone, "its own job, found by its name, is deleted")
    assert site.jobs("-N", site.name(site.other)).split() == [victim]
    site.await_observed(helper, site.other, present, "the victim is untouched")
    helper.ask("cancel", uid=site.other, grace=0)


def test_a_forged_job_id_is_told_of(site: Site) -> None:
    helper = site.helper(lost_after=1.0)
    victim = site.submit(helper, site.other, options="-q parked")
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    (site.pod(site.uid) / "job.qsub").unlink()  # nor is there a name to look for
    forge(site, site.uid, victim)
    told = site.await_observed(helper, site.uid, lambda o: bool(o["status_problem"]), "told")
    assert "is not this pod's" in told["status_problem"]
    assert told["pbs"]["seen"] == "unknown"
    helper.ask("cancel", uid=site.uid, grace=0)
    site.await_observed(helper, site.uid, gone, "it can be deleted")
    helper.ask("remove", uid=site.uid)
    assert site.jobs("-N", site.name(site.other)).split() == [victim]
    helper.ask("cancel", uid=site.other, grace=0)


def test_a_job_id_of_another_server_is_its_pods_trouble(site: Site) -> None:
    helper = site.helper(lost_after=1.0)
    site.submit(helper, site.other, options="-q parked")
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    forge(site, site.uid, "7.omega")
    told = site.await_observed(helper, site.uid, lambda o: bool(o["status_problem"]), "told")
    assert "7.omega" in told["status_problem"]
    assert told["pbs"]["seen"] == "unknown", "it may run there"
    site.await_observed(helper, site.other, present, "the other pod")
    for _ in range(3):
        report = helper.ask("jobs", after="", wait=1)
        assert (report["server_up"], report["server_message"]) == (True, "")
    helper.ask("cancel", uid=site.uid, grace=0)
    site.await_observed(helper, site.uid, gone, "it can be deleted")
    helper.ask("remove", uid=site.uid)
    helper.ask("cancel", uid=site.other, grace=0)


def test_a_server_that_was_renamed_keeps_its_jobs(site: Site) -> None:
    first = site.helper()
    job_id = site.submit(first, site.uid, options="-q parked")
    first.close()
    (site.pod(site.uid) / "job.id").write_text(job_id.replace(".alpha", ".former") + "\n")
    helper = site.helper(lost_after=1.0)
    found = site.await_observed(helper, site.uid, present, "found by its name")
    assert (found["job_id"], found["status_problem"]) == (job_id, "")
    helper.ask("cancel", uid=site.uid, grace=0)
    site.await_observed(helper, site.uid, gone, "deleted")


def test_a_qsub_that_goes_to_another_server_is_refused_and_undone(site: Site) -> None:
    note = shadow(site, "qdel", 'echo "$@" >>$NOTE; [ "$1" = 77.omega ] || exec REAL "$@"')
    helper = site.helper(pbs_exec=str(site.folder / "shadow"))
    wrong = "hold() { echo 77.omega; }; hold"
    with pytest.raises(HelperError, match=r"77\.omega.* server .* is alpha: the job was deleted") as refused:
        site.submit(helper, site.uid, qsub=wrong)
    assert refused.value.kind == "rejected"
    assert note.read_text() == "77.omega\n"
    assert not (site.pod(site.uid) / "job.id").exists()
    long = 'hold() { qsub "$@" | sed "s/$/.example.org/"; }; hold'
    assert site.submit(helper, site.uid, qsub=long, options="-q parked").endswith(".alpha.example.org"), "its long name"


def test_a_wrapper_may_talk_around_the_id(site: Site) -> None:
    helper = site.helper()
    talk = 'hold() { echo "--> Checking that a project is given..."; qsub "$@"; echo "You have 19 % left."; }; hold'
    job_id = site.submit(helper, site.uid, qsub=talk, options="-q parked")
    assert (site.pod(site.uid) / "job.id").read_text() == f"{job_id}\n"
    assert site.jobs("-N", site.name(site.uid)).split() == [job_id]
    helper.ask("cancel", uid=site.uid, grace=0)


def test_a_hook_that_throws_is_the_sites_fault(site: Site) -> None:
    helper = site.helper()
    text = "qsub: request rejected as filter hook 'check_types' encountered an exception. Please inform Admin"
    with pytest.raises(HelperError, match="check_types") as refused:
        site.submit(helper, site.uid, qsub=f'hold() {{ echo "{text}" >&2; exit 175; }}; hold')
    assert refused.value.kind == "site"
    helper.ask("cancel", uid=site.uid, grace=0)


def test_a_history_that_cannot_be_read_is_no_answer(site: Site) -> None:
    """A lost reply is not tried again on the word of a qselect that failed."""
    shadow(
        site, "qselect", '[ "$1" != -x ] || { echo "qselect: cannot connect to server" >&2; exit 111; }; exec REAL "$@"'
    )
    helper = site.helper(pbs_exec=str(site.folder / "shadow"))
    lost = 'hold() { echo "qsub: Failed to recv data from background qsub" >&2; exit 1; }; hold'
    with pytest.raises(HelperError, match="cannot connect") as unclear:
        site.submit(helper, site.uid, qsub=lost)
    assert unclear.value.kind == "outcome"
