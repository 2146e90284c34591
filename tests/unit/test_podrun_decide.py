"""podrun's decisions as a table: states of containers and events against what happens next."""

from __future__ import annotations

import pytest

from pbs_adapter.remote.podrun_decide import (
    Decision,
    Ending,
    Seen,
    Situation,
    decide,
    ended_result,
    exit_status,
    pause_after,
    walltime_end,
    why_end,
)
from pbs_adapter.remote.podrun_spec import Backoff, Pod

NOW = 100.0
Spec = str


def seen(text: str) -> list[Seen]:
    """`I` init, `A` app; then `-` waiting, `+` running, a number: ended with that code, `@` and when it is due."""
    items = []
    for index, word in enumerate(text.split()):
        kind, rest = ("init" if word[0] == "I" else "app"), word[1:]
        state = {"-": "waiting", "+": "running"}.get(rest, "terminated")
        code, _, due = rest.partition("@")
        ended = (int(code), float(due or NOW)) if state == "terminated" else (0, 0.0)
        items.append(Seen(f"{word[0].lower()}{index}", kind, state, *ended))
    return items


TABLE = [
    # policy, containers → start, backing off, phase, result, wake
    ("Never", "A-", "a0", "", "Running", None, None),
    ("Never", "A- A-", "a0 a1", "", "Running", None, None),
    ("Never", "A+", "", "", "Running", None, None),
    ("Never", "A+ A-", "a1", "", "Running", None, None),
    ("Never", "A0", "", "", "Running", "Succeeded", None),
    ("Never", "A0 A0", "", "", "Running", "Succeeded", None),
    ("Never", "A0 A+", "", "", "Running", None, None),
    ("Never", "A3 A+", "", "", "Running", None, None),
    ("Never", "A3 A0", "", "", "Running", "Failed", None),
    ("Never", "A0 A3", "", "", "Running", "Failed", None),
    ("Never", "A128", "", "", "Running", "Failed", None),
    ("Never", "I- A-", "i0", "", "Initializing", None, None),
    ("Never", "I+ A-", "", "", "Initializing", None, None),
    ("Never", "I0 A-", "a1", "", "Running", None, None),
    ("Never", "I4 A-", "", "", "Initializing", "Failed", None),
    ("Never", "I- I- A-", "i0", "", "Initializing", None, None),
    ("Never", "I+ I- A-", "", "", "Initializing", None, None),
    ("Never", "I0 I- A-", "i1", "", "Initializing", None, None),
    ("Never", "I0 I+ A-", "", "", "Initializing", None, None),
    ("Never", "I0 I4 A-", "", "", "Initializing", "Failed", None),
    ("Never", "I0 I0 A-", "a2", "", "Running", None, None),
    ("Never", "I0 I0 A+", "", "", "Running", None, None),
    ("Never", "I0 I0 A0", "", "", "Running", "Succeeded", None),
    ("OnFailure", "A-", "a0", "", "Running", None, None),
    ("OnFailure", "A0", "", "", "Running", "Succeeded", None),
    ("OnFailure", "A3", "a0", "", "Running", None, None),
    ("OnFailure", "A3@110", "", "a0", "Running", None, 110.0),
    ("OnFailure", "A3@99", "a0", "", "Running", None, None),
    ("OnFailure", "A3@110 A0", "", "a0", "Running", None, 110.0),
    ("OnFailure", "A3@110 A4@105", "", "a0 a1", "Running", None, 105.0),
    ("OnFailure", "A3@110 A4", "a1", "a0", "Running", None, 110.0),
    ("OnFailure", "A0 A+", "", "", "Running", None, None),
    ("OnFailure", "A137@101", "", "a0", "Running", None, 101.0),
    ("OnFailure", "I4 A-", "i0", "", "Initializing", None, None),
    ("OnFailure", "I4@110 A-", "", "i0", "Initializing", None, 110.0),
    ("OnFailure", "I0 I4@110 A-", "", "i1", "Initializing", None, 110.0),
    ("OnFailure", "I0 A3@110", "", "a1", "Running", None, 110.0),
    ("Always", "A-", "a0", "", "Running", None, None),
    ("Always", "A0", "a0", "", "Running", None, None),
    ("Always", "A0@110", "", "a0", "Running", None, 110.0),
    ("Always", "A3@110 A+", "", "a0", "Running", None, 110.0),
    ("Always", "A3@100 A0@100", "a0 a1", "", "Running", None, None),
    ("Always", "I0 A0@110", "", "a1", "Running", None, 110.0),
    ("Always", "I4@110 A-", "", "i0", "Initializing", None, 110.0),
    ("Always", "I4@90 A-", "i0", "", "Initializing", None, None),
    ("Always", "I0 A+", "", "", "Running", None, None),
]


@pytest.mark.parametrize(("policy", "text", "start", "later", "phase", "result", "wake"), TABLE)
def test_decide(
    policy: str, text: str, start: str, later: str, phase: str, result: str | None, wake: float | None
) -> None:
    expected = Decision(tuple(start.split()), tuple(later.split()), phase, result, wake)
    assert decide(policy, seen(text), NOW) == expected


@pytest.mark.parametrize(
    ("runs", "pause", "ran", "expected"),
    [
        (1, 0, 1, 0),  # the first restart is immediate, as the kubelet's
        (2, 0, 1, 10),
        (3, 10, 1, 20),
        (4, 20, 1, 40),
        (7, 160, 1, 300),
        (8, 300, 599, 300),
        (9, 300, 600, 0),  # it ran for ten minutes: forgotten
        (10, 0, 1, 10),
    ],
)
def test_crash_loop_pause(runs: int, pause: float, ran: float, expected: float) -> None:
    assert pause_after(runs, pause, ran, Backoff()) == expected


def pod(**fields: object) -> Pod:
    values: dict[str, object] = dict.fromkeys(Pod._fields, "") | {
        "grace": 30.0,
        "deadline": None,
        "walltime": None,
        "end_margin": 20.0,
        "kill_delay": None,
    }
    return Pod(**(values | fields))  # type: ignore[arg-type]


def at(now: float = NOW, **fields: object) -> Situation:
    values: dict[str, object] = {"now": now, "started": 0.0, "elapsed": now} | fields
    return Situation(**values)  # type: ignore[arg-type]


STOPPED = Ending("Stopped", "", 90.0, 120.0)

ENDINGS = [
    # pod, situation, ending so far → reason, SIGKILL at
    (pod(), at(), None, None, None),
    (pod(), at(stop_grace=5.0), None, "Stopped", 105.0),
    (pod(), at(stop_grace=0.0), None, "Stopped", 102.0),  # never both signals in the same instant
    (pod(grace=0.0, deadline=1.0), at(), None, "DeadlineExceeded", 102.0),
    (pod(), at(signalled=True), None, "PBSJobDeleted", 108.0),
    (pod(grace=2.0), at(signalled=True), None, "PBSJobDeleted", 102.0),
    (pod(kill_delay=5.0), at(signalled=True), None, "PBSJobDeleted", 103.0),  # the queue's own, less the last status
    (pod(kill_delay=2.0), at(signalled=True), None, "PBSJobDeleted", 101.0),
    (pod(kill_delay=0.0), at(signalled=True), None, "PBSJobDeleted", 100.0),
    (pod(kill_delay=60.0), at(signalled=True), None, "PBSJobDeleted", 130.0),
    (pod(), at(signalled=True, stop_grace=30.0), None, "Stopped", 108.0),
    (pod(deadline=100.0), at(), None, "DeadlineExceeded", 130.0),
    (pod(deadline=100.5), at(), None, None, None),
    (pod(deadline=100.0), at(50.0, elapsed=100.0), None, "DeadlineExceeded", 80.0),  # real time: a suspension counts
    (pod(walltime=150.0), at(), None, "PBSWalltimeExceeded", 130.0),
    (pod(walltime=150.1), at(), None, None, None),
    (pod(walltime=200.0), at(200.0, started=100.0), None, None, None),
    (pod(walltime=150.0, deadline=100.0), at(), None, "DeadlineExceeded", 130.0),
    (pod(), at(stop_grace=30.0), STOPPED, "Stopped", 120.0),  # never longer
    (pod(), at(stop_grace=3.0), STOPPED, "Stopped", 103.0),
    (pod(), at(signalled=True), STOPPED, "Stopped", 108.0),
    (pod(deadline=1.0, grace=1.0), at(), STOPPED, "Stopped", 120.0),
    (pod(), at(130.0, signalled=True), STOPPED, "Stopped", 120.0),
    (pod(), at(), STOPPED, "Stopped", 120.0),
]


@pytest.mark.parametrize(("pod", "situation", "ending", "reason", "kill_at"), ENDINGS)
def test_why_end(pod: Pod, situation: Situation, ending: Ending | None, reason: str | None, kill_at: float) -> None:
    found = why_end(pod, situation, ending)
    assert (found and found.reason, found and found.kill_at) == (reason, kill_at)


@pytest.mark.parametrize(
    ("walltime", "margin", "grace", "end", "allowed"),
    [
        (3600, 20, 30, 3550, 30),
        (100, 20, 30, 50, 30),
        (60, 20, 30, 30, 15),  # too short for all: half is for work, the rest shared
        (10, 20, 30, 5, 2.5),
        (60, 0, 0, 60, 0),
    ],
)
def test_walltime_end(walltime: float, margin: float, grace: float, end: float, allowed: float) -> None:
    assert walltime_end(pod(walltime=walltime, end_margin=margin, grace=grace)) == (end, allowed)


@pytest.mark.parametrize(
    ("reason", "text", "result"),
    [
        ("Stopped", "A0 A0", "Succeeded"),
        ("Stopped", "I0 A0", "Succeeded"),
        ("Stopped", "A0 A137", "Failed"),
        ("Stopped", "A0 A-", "Failed"),
        ("Stopped", "I143 A-", "Failed"),
        ("DeadlineExceeded", "A0", "Failed"),
        ("PBSJobDeleted", "A0", "Failed"),
        ("PBSWalltimeExceeded", "A0", "Failed"),
    ],
)
def test_result_of_an_ended_pod(reason: str, text: str, result: str) -> None:
    assert ended_result(reason, seen(text)) == result


@pytest.mark.parametrize(
    ("result", "text", "status"),
    [("Succeeded", "A0", 0), ("Failed", "A0 A3 A4", 3), ("Failed", "I4 A-", 1), ("Failed", "A0", 1)],
)
def test_exit_status(result: str, text: str, status: int) -> None:
    assert exit_status(result, seen(text)) == status
