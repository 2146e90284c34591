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
