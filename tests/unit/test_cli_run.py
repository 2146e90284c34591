"""`hpc-bridge run` with settings that are wrong: exit 2, each mistake by file, line and field, and nothing started."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import main

TEXT = """\
agent:
  statusListen: 127.0.0.1:{status}
clusters:
  - name: alpha
    accounts:
      - transport:
          type: ssh
          host: 127.0.0.1
          port: {port}
          user: alice
          keyFile: key
          knownHostsFile: known_hosts
        namespaces: [default]
    walltime: 1h
"""


@pytest.fixture
def login() -> Iterator[socket.socket]:
    """A port in place of the login node and of the API server; a connection would wait in its backlog."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.mark.parametrize(
    ("old", "new", "mode", "expected"),
    [
        ("walltime: 1h", "waltime: 1h", 0o600, "14: clusters[0].waltime: is not known; did you mean walltime?"),
        ("walltime: 1h", "walltime: 1 hour", 0o600, "14: clusters[0].walltime: '1 hour' is not a duration; write"),
        ("walltime: 1h", "memory: 4 GB", 0o600, "14: clusters[0].memory: '4 GB' is not a size; write bytes, or"),
        (
            "    walltime: 1h\n",
            "  - name: alpha\n    accounts: [{transport: {type: local}, namespaces: [default]}]\n",
            0o600,
            "14: clusters[1].name: 'alpha' is that of clusters[0] too; give each its own",
        ),
        ("keyFile: key", "keyFile: nix", 0o600, "11: clusters[0].accounts[0].transport.keyFile: "),
        ("", "", 0o604, "11: clusters[0].accounts[0].transport.keyFile: "),
    ],
)
@pytest.mark.parametrize("verb", ["run", "doctor"])
def test_mistakes_start_nothing(
    tmp_path: Path, login: socket.socket, verb: str, old: str, new: str, mode: int, expected: str
) -> None:
    (tmp_path / "key").touch()
    os.chmod(tmp_path / "key", mode)
    (tmp_path / "known_hosts").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        status = other.getsockname()[1]
        text = TEXT.format(status=status, port=login.getsockname()[1]).replace(old, new)
        (tmp_path / "bridge.yaml").write_text(text)
        done = CliRunner().invoke(main, [verb, "-c", str(tmp_path / "bridge.yaml"), "--kubeconfig", "/nowhere"])
    assert (done.exit_code, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{tmp_path}/bridge.yaml:{expected}")
    with pytest.raises(BlockingIOError):
        login.accept()


@pytest.mark.parametrize(("name", "mode"), [("known_hosts", 0o646), ("known_hosts", 0o602), ("key", 0o602)])
def test_files_that_say_whom_to_trust_are_not_everybodys_to_write(tmp_path: Path, name: str, mode: int) -> None:
    for file in ("key", "known_hosts"):
        (tmp_path / file).touch()
        os.chmod(tmp_path / file, 0o600)
    os.chmod(tmp_path / name, mode)
    (tmp_path / "bridge.yaml").write_text(TEXT.format(status=1, port=22))
    done = CliRunner().invoke(main, ["validate", "-c", str(tmp_path / "bridge.yaml")])
    assert done.exit_code == 2
    assert "by everybody" in done.stderr
