"""Every recorded command, played again: same exit status, same stderr, same structure and types."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .runner import RECORDINGS, Result, SshRunner, minipbs, recorded_site
from .session import Recording, Session
from .shapes import document_shape, loads, of_any_site, plain, table_shape

LEFT_OUT = {"jobs_after_rerun": "it caught substate 41, the moment between server and MoM, which a busy machine misses"}
NAMES = sorted({path.stem for path in (RECORDINGS / "main").glob("*.json")} - set(LEFT_OUT))
DIALECTS = ("release", "main")
TARGET = os.environ.get("HPC_BRIDGE_PBS_SSH", "")


def play_embedded(dialect: str) -> dict[str, Result]:
    """One whole session against an embedded PBS of its own."""
    with minipbs(recorded_site(dialect), suffix=dialect[0]) as mini:
        return Session(mini).play()


@pytest.fixture(scope="module")
def embedded() -> dict[str, dict[str, Result]]:
    """Both dialects, at the same time: a session is mostly waiting."""
    with ThreadPoolExecutor() as pool:
        sessions = {dialect: pool.submit(play_embedded, dialect) for dialect in DIALECTS}
        return {dialect: session.result() for dialect, session in sessions.items()}


@pytest.fixture(scope="module")
def real() -> tuple[str, dict[str, Result]]:
    """The same session against a real OpenPBS, and which of the two versions it is."""
    if not TARGET:
        pytest.skip("HPC_BRIDGE_PBS_SSH=user@host:port names no real OpenPBS")
    runner = SshRunner(TARGET, os.environ.get("HPC_BRIDGE_PBS_USERS", "alice,pbsuser"))
    return runner.dialect, Session(runner).play()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_embedded(embedded: dict[str, dict[str, Result]], dialect: str, name: str) -> None:
    compare(Recording.load(dialect, name), embedded[dialect][name])


@pytest.mark.real_pbs
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_real(real: tuple[str, dict[str, Result]], name: str) -> None:
    dialect, results = real
    compare(Recording.load(dialect, name), results[name], of_any_site)


def compare(
    recording: Recording,
    result: Result,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document,
) -> None:
    """Exit status and stderr agree; stdout has the same structure, types and layout."""
    assert result.exit_status == recording.exit_status
    assert plain(renamed(result.stderr.decode())) == plain(renamed(recording.stderr))
    if "-F json" in recording.command:
        text, recorded = (raw.decode(errors="replace") for raw in (result.stdout, recording.stdout))
        assert document_shape(prepare(loads(text))) == document_shape(prepare(loads(recorded)))
        assert layout(text) == layout(recorded)
    elif recording.name == "jobs_odd_environment_text":
        assert text_keys(result.text) == text_keys(recording.stdout.decode(errors="replace"))
    else:
        assert table_shape(result.text) == table_shape(recording.stdout.decode())


def renamed(text: str) -> str:
    """Job ids differ, and so does the server's name in them."""
    return re.sub(r"\b\d+(\[\d*\])?\.pbs-[abx]\b", r"ID\1", text)


def layout(text: str) -> tuple[str, str, bool]:
    """How each version's emitter indents, separates and ends a document."""
    first = text.split("\n")[1]
    return first[: len(first) - len(first.lstrip())], first[first.index('":') + 2 :][:1], text.endswith("}\n")


def text_keys(text: str) -> list[str]:
    """The attributes of `qstat -f`, and how continuation lines begin (how many depends on the length of PATH)."""
    starts = [line.partition(" =")[0] if " = " in line else line[:1] for line in text.splitlines()]
    return [one for one, before in zip(starts, ["", *starts], strict=False) if not one.isalnum() and one != before]
