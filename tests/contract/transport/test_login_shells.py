"""Accounts whose login shell is csh or fish, with the real shells: install, init, doctor, helper and a job all work."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from bridge.api.settings import Cluster
from bridge.setup import login_checks, look
from bridge.setup.job import run_job
from bridge.testbed import sshd as testbed
from bridge.testbed.packages import ensure_packages
from bridge.testbed.pbs_cluster import PbsTestCluster
from pbs_adapter.cluster import HelperOptions, PbsCluster
from pbs_adapter.minipbs import Config, Host
from pbs_adapter.transport.line import command_line

from .conftest import ssh_to

SHELLS = ("bash", "dash", "tcsh", "csh", "fish", "zsh")
#: What a shell might make something of.
WORDS = (
    *("", " a  b ", "it's", '"', "!!", "!x", "$HOME", "${x}", "`id`", "$(id)", "\\", "\\n", "\\'", "*", "~", "~root"),
    *("line\nbreak", "tab\t", "^a^b", "{a,b}", "%1", "#", "a;b|c&d>e<f", "ünï", "-n", "=ls", "[a-z]", "x" * 30_000),
)


@pytest.fixture(scope="session", autouse=True)
def _shells() -> None:
    ensure_packages({"tcsh": "tcsh", "fish": "fish", "zsh": "zsh"})


@pytest.mark.parametrize("shell", SHELLS)
def test_every_word_arrives(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is missing and cannot be installed")
    argv = ["/bin/sh", "-c", 'cat; printf "%s\\0" "$@"\nexit 7', "name", *WORDS]
    line = command_line(argv)
    assert "\n" not in line
    done = subprocess.run([program, "-c", line], input=b"input\n", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (7, b"")
    assert done.stdout == b"input\n" + b"".join(word.encode() + b"\0" for word in WORDS)


@pytest.fixture(scope="module")
def pbs() -> Iterator[PbsTestCluster]:
    if not testbed.available():
        pytest.skip("sshd is missing and cannot be installed")
    with PbsTestCluster(Config(server="gamma", hosts=(Host("gamma-n1", 4),))) as running:
        yield running


@pytest.mark.parametrize("shell", ["tcsh", "fish"])
async def test_init_doctor_and_helper(pbs: PbsTestCluster, shell: str) -> None:
    server, program = pbs.sshd, shutil.which(shell)
    if server is None or program is None:
        pytest.skip(f"{shell} is missing and cannot be installed")
    # What sshd does for an account with that login shell.
    text = server._config.read_text().partition("ForceCommand")[0]
    server._config.write_text(f'{text}ForceCommand exec {program} -c "$SSH_ORIGINAL_COMMAND"\n')
    server.restart()
    settings = Cluster.model_validate(pbs.settings())
    connection = ssh_to(server)
    try:
        found = await look.look(connection, settings.pbs_exec)
        assert found.user == server.user
        assert found.python is not None
        assert [place.variable for place in found.places][:1] == ["HOME"]
        node = await login_checks.visit(connection, settings)
        assert node.spool == str(pbs.spool)
        assert node.parts["python"].ok
        seen = await run_job(connection, settings, settings.accounts[0], node, 60)
        assert seen.report["python"].ok
    finally:
        await connection.aclose()
    options = HelperOptions(
        instance="i", cluster="gamma", epoch=lambda: 1, spool=settings.spool, pbs_exec=settings.pbs_exec
    )
    cluster = PbsCluster({"work": lambda: ssh_to(server)}, options)
    await cluster.start()
    try:
        assert (await cluster.jobs("work", "", 60)).full
        assert (await cluster.census()).account == server.user
    finally:
        await cluster.aclose()
