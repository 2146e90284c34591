"""`hpc-bridge explain` and `clusters` against an agent that answers what a real one answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from routingcases import judged

from bridge.api.routing import RoutingRuleSpec, Rule
from bridge.cli import main
from bridge.routing.choose import choose
from bridge.routing.decide import Verdict
from bridge.routing.explain import Outcome
from bridge.routing.local import LocalFit
from bridge.routing.rules import Match

SPEC = RoutingRuleSpec.model_validate({"objective": "earliestStart"})
CHOICE = choose(
    [judged("alpha", 60), judged("beta", 7200, queue="fast"), judged("gamma", refused=("asks ncpus 99",))], SPEC
)
OUTCOME = Outcome(
    "default/hello",
    Match(Rule("genomics", 1, SPEC), "can", "rule genomics is for it", (("old", "rule genomics names it"),)),
    LocalFit("", True, 0.5, "no local node has room now"),
    CHOICE,
    Verdict("open", "the local cluster did not take it in time", CHOICE.chosen),
    1_796_030_800.0,
)
ANSWERS: dict[str, tuple[int, Any]] = {
    "/explain": (200, OUTCOME.to_json() | {"recorded": None, "node": None}),
    "/clusters": (200, {"version": 1, "clusters": [
        {"name": "alpha", "reportAgeSeconds": 4, "trouble": "", "queues": [
            {"name": "workq", "queued": 1, "running": 2, "freeCores": 30, "largestNow": 16, "largestEver": 16,
             "largestInDomainNow": None, "largestInDomainEver": 8,
             "waits": [{"ncpus": 1, "walltimeSeconds": 3600, "p50": 5.0, "p90": 300.0, "samples": 9},
                       {"ncpus": 32, "walltimeSeconds": 86400, "p50": None, "p90": None, "samples": 9}]}]},
        {"name": "beta", "reportAgeSeconds": None, "trouble": "cannot be reached: no route", "queues": []}]}),
}  # fmt: skip


class Answers(BaseHTTPRequestHandler):
    asked: list[tuple[str, Any]] = []  # noqa: RUF012 - emptied by the fixture

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.asked.append((self.path, body))
        status, document = ANSWERS[self.path]
        if body is not None and body.get("name") == "gone":
            status, document = 404, {"error": "there is no pod default/gone"}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def agent() -> Iterator[str]:
    Answers.asked.clear()
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(*args: str, text: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(main, args, input=text)
    return done.exit_code, done.stdout, done.stderr


def test_a_pod_that_is_there(agent: str) -> None:
    status, out, _ = run("explain", "pod/hello", "-n", "space", "--agent", agent)
    assert (status, Answers.asked) == (0, [("/explain", {"namespace": "space", "name": "hello"})])
    assert "pod default/hello: to cluster alpha: the local cluster did not take it in time" in out
    assert "rule: genomics (mode can): rule genomics is for it" in out
    assert "gave way: rule old: rule genomics names it" in out
    assert "local cluster: no local node has room now" in out
    assert "gamma: asks ncpus 99" in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith(("1 ", "2 ", "- "))] == [
        ["1", "alpha"], ["2", "beta/fast"], ["-", "gamma"],
    ]  # fmt: skip


def test_a_pod_that_runs_is_told_first_what_was_decided(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The annotation is text of the API server: odd content is shown as such."""
    then = {"at": "2026-11-30T10:00:00Z", "decision": "cluster", "to": "beta", "queue": "fast", "why": "it was free"}
    for recorded, first in (
        (then, "on node pbs-beta; decided at 2026-11-30T10:00:00Z: to cluster beta/fast: it was free"),
        ({"decision": 7}, "on node pbs-beta; decided at None: ?: None"),
        (None, "on node pbs-beta; not routed"),
    ):
        monkeypatch.setitem(ANSWERS, "/explain", (200, OUTCOME.to_json() | {"recorded": recorded, "node": "pbs-beta"}))
        status, out, _ = run("explain", "pod/hello", "--agent", agent)
        assert (status, out.splitlines()[0]) == (0, f"pod default/hello: {first}")
        assert "by what is known now: to cluster alpha: the local cluster did not take it in time" in out


def test_pods_of_a_file(agent: str, tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "main"}]}}
    job = {"kind": "Job", "metadata": {"name": "j", "labels": {"hpctransfer": "can"}}, "spec": {"template": template}}
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job) + "\n---\nkind: Service\n")
    status, out, err = run("explain", str(file), "--agent", agent, "-o", "json")
    (_, body), = Answers.asked  # fmt: skip
    assert (status, body["pod"]["metadata"]["labels"]) == (0, {"hpctransfer": "can"})
    assert json.loads(out)["candidates"][0]["cluster"] == "alpha"
    assert "Service: makes no pod, left out" in err


@pytest.mark.parametrize(
    ("args", "text", "expected"),
    [
        (("pod/gone",), "", (1, "there is no pod default/gone")),
        (("-",), "kind: Service", (2, "- holds no pod, nor anything that makes pods")),
        (("-",), "{", (1, "not YAML")),
        (("/nowhere.yaml",), "", (1, "No such file")),
    ],
)
def test_what_cannot_be_explained(agent: str, args: tuple[str, ...], text: str, expected: tuple[int, str]) -> None:
    status, _, err = run("explain", *args, "--agent", agent, text=text)
    assert status == expected[0]
    assert expected[1] in err


def test_no_agent() -> None:
    status, _, err = run("clusters", "--agent", "127.0.0.1:1")
    assert status == 1
    assert "no agent answers at 127.0.0.1:1" in err


def test_clusters(agent: str) -> None:
    status, out, _ = run("clusters", "--agent", agent)
    _, alpha, beta, trouble = out.splitlines()
    assert status == 0
    assert " ".join(alpha.split()) == "alpha 4 s workq 1 2 30 16 16 ? 8 5 s / 5 min (9) too large"
    assert beta.split() == ["beta", "never", "?"]
    assert trouble == "beta: cannot be reached: no route"
    assert json.loads(run("clusters", "--agent", agent, "-o", "json")[1]) == ANSWERS["/clusters"][1]


def test_the_annotation_tells_of_the_first_candidates_and_counts_the_rest() -> None:
    found = json.loads(OUTCOME.annotation())
    assert (len(found["candidates"]), found["leftOut"]) == (3, 0)
    short = OUTCOME.to_json(1)
    assert ([each["cluster"] for each in short["candidates"]], short["leftOut"]) == (["alpha"], 2)
    assert len(OUTCOME.annotation()) < 4000


def test_the_sentence_of_the_event() -> None:
    told = OUTCOME.sentence()
    assert told.startswith("released to cluster alpha: the local cluster did not take it in time; fits now, wait P50 ")
    for part in ("next beta/fast: fits now", "gamma: asks ncpus 99", "rule genomics is for it"):
        assert part in told


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/explain.md").read_text(encoding="utf-8")
    whole = OUTCOME.to_json() | {"recorded": None, "node": None}
    for key in (*whole, *whole["local"], *whole["candidates"][0]):
        assert f"`{key}`" in page
