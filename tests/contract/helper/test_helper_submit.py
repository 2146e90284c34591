"""Submitting: once for a pod, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
from helperkit import POD_JSON, HelperError, Site, until

DIALECTS = ("release", "main")


def test_a_pod_is_submitted_runs_and_ends(site: Site) -> None:
    helper = site.helper()
    job_id = site.submit(helper, site.uid)
    assert job_id.endswith(".alpha")
    assert (site.pod(site.uid) / "job.id").read_text() == job_id + "\n"
    running = site.await_observed(
        helper, site.uid, lambda o: o["status"] is not None and o["pbs"]["exec_vnode"], "runs"
    )
    assert running["job_id"] == job_id
    assert running["claimed"]
    assert not running["submitting"]
    assert running["status"]["phase"] == "Running"
    assert (running["pbs"]["seen"], running["pbs"]["state"]) == ("present", "R")
    (site.pod(site.uid) / "finish").touch()
    ended = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone from PBS")
    assert ended["status"]["result"] == "Succeeded"
    helper.ask("remove", uid=site.uid)
    assert site.observed(helper, site.uid) == {}
    assert not site.pod(site.uid).exists()
    assert helper.close() == 0


def test_submitting_again_gives_the_same_job(site: Site) -> None:
    helper = site.helper()
    first = site.submit(helper, site.uid)
    answers = [helper.start("submit", POD_JSON, **site.submission(site.uid)) for _ in range(5)]
    assert {helper.result(ident).head["job_id"] for ident in answers} == {first}
    helper.close()
    assert site.submit(site.helper(), site.uid) == first
    assert len(site.jobs("-N", site.name(site.uid)).split()) == 1


def test_many_at_once(site: Site) -> None:
    helper = site.helper()
    uids = [f"{site.uid}-{i}" for i in range(30)]
    idents = [helper.start("submit", POD_JSON, **site.submission(uid, options="-q parked")) for uid in uids]
    assert len({helper.result(ident).head["job_id"] for ident in idents}) == len(uids)
    for uid in uids:
        helper.ask("cancel", uid=uid, grace=5, force=False)
    for uid in uids:
        site.await_observed(helper, uid, lambda o: o["pbs"]["seen"] == "absent", "queued jobs are gone")


#: A qsub that stops where a test wants to kill the helper.
SLOW_BEFORE = "touch reached; while [ ! -e go ]; do sleep 0.05; done; qsub"
SLOW_AFTER = 'hold() { qsub "$@"; touch reached; while [ ! -e go ]; do sleep 0.05; done; }; hold'


@pytest.mark.parametrize("qsub", [SLOW_BEFORE, SLOW_AFTER], ids=["before-qsub", "after-qsub"])
def test_a_helper_killed_between_lock_and_id_leaves_one_job(site: Site, qsub: str) -> None:
    first = site.helper()
    first.start("submit", POD_JSON, **site.submission(site.uid, qsub=qsub))
    until((site.pod(site.uid) / "reached").exists, "qsub is under way")
    first.kill()
    second = site.helper()
    waiting = site.await_observed(second, site.uid, lambda o: bool(o), "known")
    assert waiting["submitting"]
    assert waiting["pbs"]["seen"] == "unknown"
    with pytest.raises(HelperError, match=r"retry: .* under way"):
        site.submit(second, site.uid)
    (site.pod(site.uid) / "go").touch()

    def submitted() -> str:
        try:
            return site.submit(second, site.uid)
        except HelperError as error:
            return "" if error.kind == "retry" else str(error)

    job_id = until(submitted, "the submission is resolved")
    assert site.jobs("-x", "-N", site.name(site.uid)).split() == [job_id]


def test_a_lock_whose_qsub_never_ran_is_broken(site: Site) -> None:
    helper = site.helper()
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    lock = site.pod(site.uid) / "submit.lock"
    lock.mkdir()
    (lock / "owner").write_text(
        json.dumps({"host": os.uname().nodename, "boot": "another", "pid": 1, "name": site.name(site.uid)})
    )
    job_id = site.submit(helper, site.uid)
    assert site.jobs("-x", "-N", site.name(site.uid)).split() == [job_id]


def test_a_lock_of_another_login_host_is_respected(site: Site) -> None:
    helper = site.helper()
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    lock = site.pod(site.uid) / "submit.lock"
    lock.mkdir()
    (lock / "owner").write_text(
        json.dumps({"host": "login2", "boot": "another", "pid": 1, "name": site.name(site.uid)})
    )
    with pytest.raises(HelperError, match="under way"):
        site.submit(helper, site.uid)


def test_a_claim_is_never_submitted_again(site: Site) -> None:
    helper = site.helper()
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    (site.pod(site.uid) / "claim").mkdir()
    with pytest.raises(HelperError, match=r"permanent: .*started once"):
        site.submit(helper, site.uid)
    status = {"version": 1, "uid": site.uid, "phase": "Running", "containers": {}, "job_id": "4711.alpha"}
    (site.pod(site.uid) / "status.json").write_text(json.dumps(status))
    assert site.submit(helper, site.uid) == "4711.alpha"


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ("-q nosuchqueue", "rejected", "Unknown queue"),
        ("-l nosuchres=1", "rejected", "nosuchres"),
        ("-q closed", "rejected", "not enabled"),
    ],
)
def test_refusals_say_what_pbs_said(site: Site, options: str, kind: str, text: str) -> None:
    helper = site.helper()
    with pytest.raises(HelperError, match=text) as caught:
        site.submit(helper, site.uid, options=options)
    assert caught.value.kind == kind
    assert not (site.pod(site.uid) / "submit.lock").exists()
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent" and not o["submitting"], "no job")
    helper.ask("remove", uid=site.uid)


def test_a_full_queue_is_a_wait(site: Site) -> None:
    helper = site.helper()
    site.submit(helper, site.uid, options="-q small -h")
    with pytest.raises(HelperError, match=r"backlog: .*limit"):
        site.submit(helper, site.other, options="-q small -h")
    helper.ask("cancel", uid=site.uid, grace=0, force=False)
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "made room")
    site.submit(helper, site.other, options="-q small -h")


def test_a_lost_reply_is_resolved_by_name(site: Site, pbs: object) -> None:
    helper = site.helper()
    lost = 'hold() { qsub "$@" >/dev/null; echo "qsub: Failed to recv data from background qsub" >&2; exit 1; }; hold'
    job_id = site.submit(helper, site.uid, qsub=lost)
    assert site.jobs("-x", "-N", site.name(site.uid)).split() == [job_id]


def test_an_unclear_failure_without_a_job_may_be_tried_again(site: Site) -> None:
    helper = site.helper()
    failed = 'hold() { echo "qsub: Failed to recv data from background qsub" >&2; exit 1; }; hold'
    with pytest.raises(HelperError, match=r"retry: .*there is no such job"):
        site.submit(helper, site.uid, qsub=failed)
    site.submit(helper, site.uid)
    assert len(site.jobs("-x", "-N", site.name(site.uid)).split()) == 1


def test_the_end_of_input_waits_for_qsub(site: Site) -> None:
    helper = site.helper()
    helper.start("submit", POD_JSON, **site.submission(site.uid, qsub=SLOW_AFTER))
    until((site.pod(site.uid) / "reached").exists, "qsub is under way")
    closing = threading.Thread(target=helper.close)
    closing.start()
    (site.pod(site.uid) / "go").touch()
    closing.join(60)
    assert (site.pod(site.uid) / "job.id").exists()


def test_sigterm_waits_for_qsub(site: Site) -> None:
    helper = site.helper()
    helper.start("submit", POD_JSON, **site.submission(site.uid, qsub=SLOW_AFTER))
    until((site.pod(site.uid) / "reached").exists, "qsub is under way")
    helper.process.send_signal(signal.SIGTERM)
    (site.pod(site.uid) / "go").touch()
    helper.process.wait(60)
    assert (site.pod(site.uid) / "job.id").exists()


def test_qsub_sees_nothing_of_the_session(site: Site) -> None:
    helper = site.helper()
    site.submit(helper, site.uid, qsub="env >seen; qsub")
    seen = (site.pod(site.uid) / "seen").read_text()
    assert "SECRET_OF_THE_SESSION" not in seen
    assert "TZ=UTC" in seen
