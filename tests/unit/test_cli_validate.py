"""`hpc-bridge validate`, and the command as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import VERBS, main

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """examples/bridge.yaml with the files that it names."""
    path = tmp_path / "bridge.yaml"
    path.write_text((EXAMPLES / "bridge.yaml").read_text())
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/alpha").touch(mode=0o600)
    (tmp_path / "keys/known_hosts").touch()
    return path


def test_the_example_is_right(example: Path) -> None:
    done = CliRunner().invoke(main, ["validate", "-c", str(example)])
    assert done.exit_code == 0, done.output
    assert "cluster alpha: node pbs-alpha, images busybox:*, queue workq" in done.stdout
    assert "account default: ssh bridge@login.alpha.example.org:22, namespaces default" in done.stdout
    assert "account default: command ssh, namespaces default" in done.stdout


def test_every_mistake_is_a_line_on_stderr(example: Path) -> None:
    text = example.read_text().replace("walltime: 1h", "walltime: 1 hour").replace("queues:", "queus:")
    example.write_text(text)
    (example.parent / "keys/alpha").unlink()
    done = CliRunner().invoke(main, ["validate", "-c", str(example)])
    assert (done.exit_code, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{example}:") for line in lines)


def test_the_file_may_be_named_by_the_environment(example: Path) -> None:
    assert CliRunner(env={"HPC_BRIDGE_CONFIG": str(example)}).invoke(main, ["validate"]).exit_code == 0


def test_verbs_have_help() -> None:
    done = CliRunner().invoke(main, ["--help"])
    assert done.exit_code == 0
    assert {"render", "run", "status", "validate"} <= {verb for verb in VERBS if f"\n  {verb} " in done.output}
    assert CliRunner().invoke(main, ["nix"]).exit_code == 2


def test_two_ways_into_one_account_are_refused(tmp_path: Path) -> None:
    """Two clusters may share a home directory; two accounts of a cluster that are one user may not."""
    path = tmp_path / "bridge.yaml"
    for name in ("key", "known_hosts"):
        (tmp_path / name).touch(mode=0o600)
    ssh = "transport: {type: ssh, host: %s, user: %s, keyFile: key, knownHostsFile: known_hosts}, namespaces: [%s]"
    cluster = "  - name: %s\n    accounts:\n      - {name: a, %s}\n      - {name: %s, %s}\n"
    one, two, three = (
        ssh % (host, user, name) for host, user, name in (("l1", "ann", "x"), ("l2", "ann", "y"), ("l1", "bob", "y"))
    )
    path.write_text("clusters:\n" + cluster % ("alpha", one, "b", three) + cluster % ("beta", one, "b", three))
    done = CliRunner().invoke(main, ["validate", "-c", str(path)])
    assert done.exit_code == 0, done.output
    path.write_text("clusters:\n" + cluster % ("alpha", one, "a", two))
    done = CliRunner().invoke(main, ["validate", "-c", str(path)])
    assert done.exit_code == 2
    wrong = "clusters[0].accounts[1]"
    assert f"{wrong}.transport: is the same user of the cluster as accounts[0]" in done.stderr
    assert f"{wrong}.name: 'a' is that of accounts[0] too" in done.stderr


def test_a_local_transport_is_warned_about(tmp_path: Path) -> None:
    text = "clusters: [{name: a, accounts: [{transport: {type: local}, namespaces: [default]}]}]\n"
    (tmp_path / "bridge.yaml").write_text(text)
    done = CliRunner().invoke(main, ["validate", "-c", str(tmp_path / "bridge.yaml")])
    assert done.exit_code == 0
    assert done.stderr.startswith("warning: cluster a, account default: type: local runs the agent as the account")
