"""The tutorial's commands, run in the order of the page against the running product: what readers type is what works.

`bash` blocks are run as they are; in `console` blocks each line after `$ ` is a command and the others are lines that
its output must have, with `…` for anything. Other blocks only show something.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/tutorial/demo.md"
BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE = 150.0  # s for one command; each waits for its own condition and gives up earlier


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, lines that its output must have) in the order of the page."""
    for kind, body in BLOCK.findall(text):
        if kind == "bash":
            yield body, []
            continue
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, *expected = part.splitlines()
            yield command, [line for line in expected if line.strip(" …")]


def words(line: str) -> str:
    """The line with single spaces: columns are as wide as their widest cell."""
    return " ".join(line.split())


def shows(output: str, expected: str) -> bool:
    """Has the output a line like this?"""
    pattern = ".*".join(re.escape(part.strip()) for part in words(expected).split("…"))
    return any(re.search(pattern, words(line)) for line in output.splitlines())


@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_works(bridge: World) -> None:
    env = os.environ | {
        "KUBECONFIG": str(bridge.control_plane.admin_kubeconfig),
        "KUBECACHEDIR": str(bridge.control_plane.workdir / "kubectl-cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AGENT": f"127.0.0.1:{bridge.agent.status_port}",
        "CONFIG": str(bridge.agent.config),
    }
    found = list(steps(PAGE.read_text(encoding="utf-8")))
    assert len(found) > 25, "the page has lost its commands"
    for command, expected in found:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        for line in expected:
            assert shows(done.stdout, line), f"$ {command}\n{done.stdout}\nhas no line like\n{line}"
