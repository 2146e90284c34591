"""Hostile content of a pod directory costs that pod its news, and nobody else: at each entry point of the helper."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import hostile
import pytest
from helperkit import POD_JSON, Helper, HelperError, Site, until

ENDED = {"version": 1, "phase": "Ended", "result": "Failed", "containers": {}, "seq": 9}


@pytest.fixture(params=sorted(hostile.KINDS))
def spoil(request: pytest.FixtureRequest) -> str:
    """A kind of hostile content."""
    return str(request.param)


def made(site: Site, helper: Helper, uid: str) -> None:
    """A pod directory without a job."""
    with pytest.raises(HelperError):
        site.submit(helper, uid, options="-q nosuchqueue")


def has_news(site: Site, helper: Helper, text: str) -> None:
    """Another pod's next status is seen."""
    (site.pod(site.other) / "status.json").write_text(json.dumps(ENDED | {"uid": site.other, "message": text}))
    (site.instance / "dirty" / site.other).touch()
    site.await_observed(
        helper, site.other, lambda o: bool(o["status"]) and o["status"]["message"] == text, "the other pod's news"
    )


def complete(helper: Helper) -> bool:
    return bool(helper.ask("jobs", after="", wait=0)["complete"])


def answered(helper: Helper, op: str, body: bytes = b"", **head: object) -> None:
    """Some answer comes."""
    answer = helper.frame(helper.start(op, body, **head)).head
    assert "the helper failed" not in answer.get("message", "")


def no_rubbish(site: Site) -> bool:
    return not [name for name in os.listdir(site.instance / "pods") if name.startswith(".")]


def test_the_scan_goes_on(site: Site, spoil: str) -> None:
    helper = site.helper()
    for uid in (site.uid, site.other):
        made(site, helper, uid)
    helper.close()
    hostile.KINDS[spoil](site.pod(site.uid))
    later = site.helper()
    until(lambda: complete(later), "the scan is over")
    assert site.observed(later, site.uid), "it has an observation"
    has_news(site, later, "after the scan")


def test_the_dirty_list_goes_on(site: Site, spoil: str) -> None:
    helper = site.helper()
    for uid in (site.uid, site.other):
        made(site, helper, uid)
    until(lambda: complete(helper), "the scan is over")
    hostile.KINDS[spoil](site.pod(site.uid))
    for name in (site.uid, "nobody", "0"):
        (site.instance / "dirty" / name).touch()
    has_news(site, helper, "one")
    (site.instance / "dirty" / "1").mkdir()
    (site.instance / "dirty" / "1" / "inner").mkdir()
    (site.instance / "dirty" / "2").symlink_to("/")
    os.mkfifo(site.instance / "dirty" / "3")
    has_news(site, helper, "two")
    until(lambda: not os.listdir(site.instance / "dirty"), "every mark is taken")


def test_each_operation_answers_and_the_pod_can_be_removed(site: Site, spoil: str) -> None:
    helper = site.helper(lost_after=1.0)
    for uid in (site.uid, site.other):
        made(site, helper, uid)
    hostile.KINDS[spoil](site.pod(site.uid))
    files = [{"path": "volumes/cfg/a", "mode": 0o600, "size": 1}]
    answered(helper, "write", b"x", uid=site.uid, files=files, volumes=[])
    answered(helper, "cancel", uid=site.uid, grace=1)
    answered(helper, "submit", POD_JSON, **site.submission(site.uid))
    with pytest.raises(HelperError):
        list(helper.stream(uid=site.uid, container="main"))
    helper.ask("cancel", uid=site.uid, grace=0, force=True)
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "absent", "is gone")
    helper.ask("remove", uid=site.uid)
    assert not os.path.lexists(site.pod(site.uid))
    until(lambda: no_rubbish(site), "all of it is removed")
    has_news(site, helper, "still")


def test_what_an_earlier_helper_left_is_removed_without_delaying_the_scan(site: Site) -> None:
    helper = site.helper()
    made(site, helper, site.other)
    helper.close()
    for index in range(5):
        hostile.deep(site.instance / "pods" / f".gone-{index}")
    later = site.helper()
    until(lambda: complete(later), "the scan is over")
    until(lambda: no_rubbish(site), "all of it is removed")
    has_news(site, later, "still")


@pytest.mark.parametrize("kind", ["pipe", "link", "loop", "folder", "huge", "binary"])
def test_files_of_the_account_greet_all_the_same(site: Site, kind: str) -> None:
    """The epoch, the log and the budget are the helper's own files; a job outside a container can reach them too."""
    first = site.helper()
    until(lambda: complete(first), "complete")
    first.close()
    for name in ("helper.log", "helper.log.1", "epoch", "budget"):
        hostile.put(site.instance / name, kind)
    later = site.helper()
    until(lambda: complete(later), "complete")
    assert (site.instance / "epoch").read_text().startswith("1 ")
    assert site.submit(later, site.uid, options="-q parked")
    later.ask("cancel", uid=site.uid, grace=0)
    assert Path("/etc/passwd").read_text().startswith("root:"), "no link was followed"


def test_an_epoch_that_no_leader_can_have_is_said_and_fails_no_pod(site: Site) -> None:
    helper = site.helper()
    (site.instance / "epoch").write_text("999999999999 x\n")
    with pytest.raises(HelperError, match=r"retry: .*epoch.* says 999999999999, which no leader can be") as refused:
        site.submit(helper, site.uid)
    assert refused.value.kind == "retry"
    with pytest.raises(HelperError, match=r"permanent: .*remove that file"):
        site.helper()
    (site.instance / "epoch").write_text(f"{int(time.time()) - 1577836800} y\n")
    with pytest.raises(HelperError, match="fenced"):
        site.helper()
    (site.instance / "epoch").unlink()
    site.submit(site.helper(), site.uid, options="-q parked")


def test_a_refresh_makes_no_secrets_of_a_pod_that_ends(site: Site) -> None:
    helper = site.helper()
    secret = [{"path": "secrets/token", "mode": 0o600, "size": 1}]
    made(site, helper, site.uid)
    helper.ask("write", b"x", uid=site.uid, files=secret, volumes=[])
    assert (site.pod(site.uid) / "secrets/token").exists()
    (site.pod(site.uid) / "status.json").write_text(json.dumps(ENDED | {"uid": site.uid}))
    with pytest.raises(HelperError, match=r"permanent: .*has ended"):
        helper.ask("write", b"x", uid=site.uid, files=secret, volumes=[])
    assert not (site.pod(site.uid) / "secrets").exists()
    # Made again between podrun's removal and its last status: gone when that is seen.
    (site.pod(site.uid) / "secrets").mkdir()
    (site.instance / "dirty" / site.uid).touch()
    until(lambda: not (site.pod(site.uid) / "secrets").exists(), "the secrets are gone")
    made(site, helper, site.other)
    helper.ask("cancel", uid=site.other, grace=30)
    with pytest.raises(HelperError, match=r"permanent: .*is to stop"):
        helper.ask("write", b"x", uid=site.other, files=secret, volumes=[])
