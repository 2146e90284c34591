"""A spool without room: nothing is lost that was there, and a job can still be ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest
from helperkit import HelperError, Site, until


@pytest.fixture
def full(site: Site) -> Iterator[Site]:
    """A site whose spool has two megabytes; `fill` uses them up."""
    site.spool.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(site.spool)]
    if os.getuid() != 0 or subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here (it takes root)")
    try:
        yield site
    finally:
        site.close()
        subprocess.run(["umount", "--lazy", str(site.spool)], check=True)


def fill(site: Site) -> None:
    """Leave not a byte."""
    with open(site.spool / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_pod_in_a_full_spool_is_ended_by_force(full: Site) -> None:
    helper = full.helper()
    job = full.submit(helper, full.uid)
    full.await_observed(helper, full.uid, lambda o: o["claimed"], "claimed")
    fill(full)
    with pytest.raises(HelperError, match="No space left") as refused:
        helper.ask("cancel", uid=full.uid, grace=30)
    assert refused.value.kind == "retry"
    with pytest.raises(HelperError, match="No space left"):
        full.submit(helper, full.other)
    assert full.observed(helper, full.uid)["job_id"] == job
    helper.ask("cancel", uid=full.uid, grace=0, force=True)
    until(lambda: job not in full.jobs(), "the job is deleted")
    (full.spool / "ballast").unlink()
    full.submit(helper, full.other)
    helper.ask("cancel", uid=full.other, grace=0)
