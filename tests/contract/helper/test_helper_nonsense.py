"""qstat that answers with nonsense, or with nothing: PBS counts as down, and no job as gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helperkit import Site, until

NONSENSE = {
    "prose": "echo 'The system is down for maintenance.'",
    "nothing": "exit 0",
    "binary": "head -c 5000 /dev/urandom",
    "failure": "echo 'qstat: segmentation fault' >&2; exit 139",
    "json": 'echo \'{"Jobs": {"1.alpha": []}, "Jobs": 7}\'',
    "hang-up": "kill -9 $$",
}


@contextmanager
def qstat_says(site: Site, line: str) -> Iterator[Path]:
    """Another program in qstat's place; it notes what it was asked in the file that is returned."""
    program, asked = site.pbs / "bin" / "qstat", site.folder / "asked"
    kept = program.with_name("qstat.kept")
    program.rename(kept)
    try:
        program.write_text(f'#!/bin/sh\necho "$1" >>{asked}\n{line}\n')
        program.chmod(0o755)
        yield asked
    finally:
        kept.rename(program)


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_no_news_of_any_job(site: Site, kind: str) -> None:
    helper = site.helper(lost_after=1.0)
    job = site.submit(helper, site.uid, options="-q parked")
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["state"] == "Q" and o["pbs"]["substate"], "queued")
    with qstat_says(site, NONSENSE[kind]) as asked:

        def polled(times: int) -> bool:
            return asked.exists() and asked.read_text().split().count("-u") >= times

        until(lambda: polled(4), "four polls")
        report = helper.ask("jobs", after="", wait=0)
        (seen,) = [found for found in report["observations"] if found["uid"] == site.uid]
        assert seen["pbs"]["seen"] != "absent"
        assert not report["server_up"]
        assert report["server_message"]
    site.await_observed(helper, site.uid, lambda o: o["pbs"]["seen"] == "present", "seen again")
    until(lambda: helper.ask("jobs", after="", wait=0)["server_up"], "PBS is up again")
    assert site.submit(helper, site.uid) == job
    helper.ask("cancel", uid=site.uid, grace=0)
