"""Stopping: queued jobs go at once, running ones are asked first, and nothing is left without an owner."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from helperkit import POD_JSON, HelperError, Site, until

from pbs_adapter.minipbs import Server


def stop_json(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.pod(site.uid) / "stop.json").read_text())
    return found


def test_a_queued_job_is_deleted_and_gone_at_once(site: Site) -> None:
    helper = site.helper(lost_after=3600.0)
    site.submit(helper, site.uid, options="-q parked")
    helper.ask("cancel", uid=site.uid, grace=30, force=False)
    gone = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")
    assert gone["stopping"]
    assert not gone["claimed"]
    helper.ask("remove", uid=site.uid)


def test_a_running_pod_stops_by_itself(site: Site) -> None:
    helper = site.helper()
    site.submit(helper, site.uid)
    site.await_observed(helper, site.uid, lambda o: o["claimed"], "has started")
    with pytest.raises(HelperError, match="may still exist"):
        helper.ask("remove", uid=site.uid)
    helper.ask("cancel", uid=site.uid, grace=30, force=False)
    assert stop_json(site)["grace"] == 30
    ended = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")
    assert ended["status"]["phase"] == "Ended"
    assert "ended" in (site.pod(site.uid) / "logs/main/0.log").read_text(), "it was not killed"


def test_force_deletes_a_running_job(site: Site) -> None:
    helper = site.helper()
    site.submit(helper, site.uid, qsub="ln -s /nowhere stop.json; qsub")  # so that the job never hears of the request
    site.await_observed(helper, site.uid, lambda o: o["claimed"], "has started")
    (site.pod(site.uid) / "stop.json").unlink()
    helper.ask("cancel", uid=site.uid, grace=0, force=True)
    gone = site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")
    assert gone["claimed"]
    helper.ask("remove", uid=site.uid)


def test_the_earlier_end_holds(site: Site) -> None:
    helper = site.helper()
    site.submit(helper, site.uid, options="-q parked")
    helper.ask("cancel", uid=site.uid, grace=30, force=False)
    first = stop_json(site)
    helper.ask("cancel", uid=site.uid, grace=300, force=False)
    assert stop_json(site) == first
    helper.ask("cancel", uid=site.uid, grace=1, force=False)
    assert stop_json(site)["grace"] == 1


def test_what_was_cancelled_before_it_came_is_never_submitted(site: Site) -> None:
    helper = site.helper()
    helper.ask("cancel", uid=site.uid, grace=30, force=False)
    with pytest.raises(HelperError, match=r"permanent: cancelled"):
        site.submit(helper, site.uid)
    assert site.jobs("-x", "-N", site.name(site.uid)) == ""
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent" and o["stopping"], "a tombstone")
    helper.ask("remove", uid=site.uid)
    assert not site.pod(site.uid).exists()


def test_a_cancel_while_qsub_runs_leaves_no_orphan(site: Site) -> None:
    helper = site.helper()
    slow = 'hold() { qsub "$@"; touch reached; while [ ! -e go ]; do sleep 0.05; done; }; hold'
    submission = helper.start("submit", POD_JSON, **site.submission(site.uid, qsub=slow, options="-q parked"))
    until((site.pod(site.uid) / "reached").exists, "qsub is under way")
    cancel = helper.start("cancel", uid=site.uid, grace=0, force=False)
    until((site.pod(site.uid) / "stop.json").exists, "stop.json comes first")
    (site.pod(site.uid) / "go").touch()
    helper.result(submission)
    helper.result(cancel)
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")
    until(lambda: site.jobs("-N", site.name(site.uid)) == "", "no job is left")


def test_a_lock_without_id_is_resolved_by_cancel(site: Site) -> None:
    first = site.helper()
    slow = 'hold() { qsub "$@"; touch reached; while [ ! -e go ]; do sleep 0.05; done; }; hold'
    first.start("submit", POD_JSON, **site.submission(site.uid, qsub=slow, options="-q parked"))
    until((site.pod(site.uid) / "reached").exists, "qsub is under way")
    first.kill()
    second = site.helper()
    with pytest.raises(HelperError, match=r"retry: .* under way"):
        second.ask("cancel", uid=site.uid, grace=0, force=False)
    (site.pod(site.uid) / "go").touch()

    def cancelled() -> bool:
        try:
            second.ask("cancel", uid=site.uid, grace=0, force=False)
        except HelperError:
            return False
        return True

    until(cancelled, "the lock is resolved")
    site.await_observed(second, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")
    assert site.jobs("-N", site.name(site.uid)) == ""


def test_a_qdel_that_is_owed_survives_the_helper(site: Site) -> None:
    first = site.helper()
    site.submit(first, site.uid, options="-q parked")
    first.kill()
    stop = {"version": 1, "grace": 0, "at": time.time(), "force": False}
    (site.pod(site.uid) / "stop.json").write_text(json.dumps(stop))  # as if it had been killed before qdel
    site.await_observed(site.helper(), site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")


def test_mass_deletion_stays_within_the_budget(site: Site, pbs: Server) -> None:
    helper = site.helper(connections_per_minute=60)
    uids = [f"{site.uid}-{i}" for i in range(40)]
    for ident in [helper.start("submit", POD_JSON, **site.submission(uid, options="-q parked")) for uid in uids]:
        helper.result(ident)
    before = pbs.stats()["connections"]
    for ident in [helper.start("cancel", uid=uid, grace=0, force=False) for uid in uids]:
        helper.result(ident)
    started = time.monotonic()
    until(lambda: pbs.stats()["connections"] > before + 3, "qdel has begun")
    used = pbs.stats()["connections"] - before
    assert used <= 30 + (time.monotonic() - started) + 5, "half of the budget at once, then one a second"


def test_removing_what_is_not_there(site: Site) -> None:
    helper = site.helper()
    helper.ask("remove", uid=site.uid)


def test_a_directory_that_its_owner_made_unwritable_is_removed(site: Site) -> None:
    helper = site.helper()
    with pytest.raises(HelperError):
        site.submit(helper, site.uid, options="-q nosuchqueue")
    inner = site.pod(site.uid) / "volumes/data/inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    outside = site.folder / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (inner / "link").symlink_to(outside)
    inner.chmod(0o500)
    helper.ask("remove", uid=site.uid)
    assert not site.pod(site.uid).exists()
    until(lambda: not [p for p in Path(site.instance, "pods").iterdir() if p.name.startswith(".gone")], "all is gone")
    assert (outside / "precious").exists()
