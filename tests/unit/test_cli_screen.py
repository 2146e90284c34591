"""Texts of others on the admin's terminal: shown, and without any effect, whichever verb shows them."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_cli_routing import ANSWERS, agent

import bridge.cli
from bridge.cli import main
from bridge.cli.doctor import _table
from bridge.setup.checks import Check, State

__all__ = ["agent"]  # a fixture
HOSTILE = "\x1b]8;;http://evil\x1b\\\x9b2J[/x][link=http://evil]click[/link][bold]\r\x07\x00\n:smile:"
STATUS: dict[str, Any] = {
    "version": "0.1", "leading": True, "epoch": 3,
    "clusters": [{
        "name": "alpha", "node": "pbs-alpha", "reachable": False, "message": "down", "reportAgeSeconds": 5.0,
        "pbsVersion": "23", "pods": {"Running": 3},
        "channels": [{"account": "a", "connected": False, "since": 0, "message": "refused", "rttMs": None}],
        "queues": [{"name": "workq", "enabled": True, "started": True, "queued": 1, "running": 2}],
    }],
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every text."""
    if isinstance(value, str):
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def everywhere(document: Any) -> Any:
    """The document with the hostile text behind every text, and as a key of free maps."""
    made = copy.deepcopy(document)
    for path in list(places(made)):
        parent = made
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] += HOSTILE
    return made


@pytest.mark.parametrize(
    ("path", "document", "verb"),
    [
        ("/status", STATUS, ["status"]),
        ("/clusters", ANSWERS["/clusters"][1], ["clusters"]),
        ("/explain", ANSWERS["/explain"][1], ["explain", "pod/hello"]),
    ],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_no_text_of_an_agent_has_an_effect(
    agent: str, monkeypatch: pytest.MonkeyPatch, path: str, document: Any, verb: list[str], output: str
) -> None:
    made = everywhere(document)
    for cluster in made.get("clusters", []):
        if "pods" in cluster:
            cluster["pods"] = {HOSTILE: 3}
    monkeypatch.setitem(ANSWERS, path, (200, made))
    done = CliRunner().invoke(main, [*verb, "--agent", agent, "-o", output])
    assert (done.exit_code, done.exception) == (0, None)
    assert all(c.isprintable() or c == "\n" for c in done.output)
    if output == "table":
        assert "[/x]" in "".join(done.output.split())


def test_no_error_of_an_agent_has_an_effect(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "/status", (500, {"error": HOSTILE}))
    done = CliRunner().invoke(main, ["status", "--agent", agent])
    assert done.exit_code == 1
    assert all(c.isprintable() or c == "\n" for c in done.output)


def test_no_text_of_a_cluster_has_an_effect_in_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    _table([Check(HOSTILE, HOSTILE, State.FAILED, HOSTILE, HOSTILE)]).show()
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert ":smile:" in "".join(shown.split())


def test_one_module_prints() -> None:
    """rich is used in `screen` alone; what goes to click.echo directly is JSON or a text of our own making."""
    for file in Path(bridge.cli.__file__).parent.glob("*.py"):
        names = {
            alias.name.partition(".")[0] if isinstance(node, ast.Import) else (node.module or "").partition(".")[0]
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert "rich" not in names or file.name in ("screen.py", "demo.py"), file
