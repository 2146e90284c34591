"""`hpc-bridge explain`: where a pod goes and why, asked of the running agent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from bridge.cli.agent import agent_option, ask
from bridge.cli.documents import Unreadable, pods
from bridge.cli.screen import Grid, echo, line
from bridge.routing.explain import seconds

Json = dict[str, Any]


@click.command()
@click.argument("what", metavar="POD.yaml|pod/NAME")
@click.option("-n", "--namespace", metavar="NAME", help="Of pod/NAME; `default` if left out.")
@agent_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def explain(what: str, namespace: str | None, agent: str, output: str) -> None:
    """Say where a pod goes and why: each pod of a file (`-`: standard input), or one that is there."""
    if what.startswith(("pod/", "pods/")):
        asked: list[Json] = [{"namespace": namespace or "default", "name": what.partition("/")[2]}]
    else:
        asked = [{"pod": _placed(pod, namespace)} for pod in _read(what)]
    answers = [ask(agent, "/explain", body) for body in asked]
    if output == "json":
        click.echo(json.dumps(answers if len(answers) > 1 else answers[0], indent=2))
        return
    for answer in answers:
        _show(answer)


def _placed(pod: Json, namespace: str | None) -> Json:
    return pod if namespace is None else {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}


def _read(name: str) -> list[Json]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        found, others = pods(text)
    except (OSError, Unreadable, UnicodeDecodeError) as error:
        raise click.ClickException(f"{name}: {error}") from None
    for other in others:
        echo(f"{other}: makes no pod, left out", err=True)
    if not found:
        raise click.UsageError(f"{name} holds no pod, nor anything that makes pods")
    return found


def _show(answer: Json) -> None:
    recorded, node = answer["recorded"], answer["node"]
    head, lines = f"pod {answer['pod']}: ", []
    if recorded or node:  # what is done is what people ask about; the rest is how it would be judged now
        done = f"decided at {recorded.get('at')}: {_decision(recorded)}" if recorded else "not routed"
        head += f"on node {node}; {done}" if node else done
        lines.append(f"by what is known now: {_decision(answer)}")
    else:
        head += _decision(answer)
    line(head, wide=True)
    lines += [f"rule: {answer['rule'] or 'none'} (mode {answer['mode']}): {answer['whyRule']}"]
    lines += [f"gave way: rule {each['rule']}: {each['why']}" for each in answer["otherRules"]]
    if answer["objective"]:
        lines.append(f"objective: {answer['objective']} at quantile {answer['quantile']}")
        local = answer["local"]
        lines.append(f"local cluster: {'fits now on ' + local['node'] if local['fitsNow'] else local['why']}")
    lines += [f"note: {answer['note']}"] if answer["note"] else []
    for each in lines:
        line(f"  {each}", wide=True)
    if answer["candidates"]:
        _table(answer["candidates"]).show(wide=True)
    for each in answer["candidates"]:
        said = [*each["refused"], *([each["unavailable"]] if each["unavailable"] else [])]
        said += [] if said else [*each["waitsFor"], *each["doubts"]]
        if said:
            line(f"  {_to(each, 'cluster')}: {'; '.join(said)}", wide=True)


def _decision(told: Json) -> str:
    """`told` may be an annotation, which others could have written."""
    where = {"local": "to the local cluster", "wait": "waits", "cluster": f"to cluster {_to(told)}"}
    return f"{where.get(str(told.get('decision')), '?')}: {told.get('why')}"


def _to(thing: Json, key: str = "to") -> str:
    return f"{thing.get(key)}/{thing['queue']}" if thing.get("queue") else str(thing.get(key))


def _table(candidates: list[Json]) -> Grid:
    table = Grid(
        "rank", "cluster", "runs in", "fits now", "ever", "wait P50", "P90", "sure", "samples", "NUMA now", "best",
        "slowdown", "ends in",
    )  # fmt: skip
    for each in candidates:
        wait, numa = each["wait"], each["numa"]
        table.row(
            str(each["rank"] or "-"),
            _to(each, "cluster"),
            each["executionQueue"] or "-",
            _flag(each["fitsNow"]),
            _flag(each["fitsEver"]),
            *((seconds(wait["p50"]), seconds(wait["p90"]), f"{wait['sure']:.0%}", _samples(wait)) if wait else "----"),
            *(_numa(numa) if numa else "---"),
            "-" if each["completionSeconds"] is None or each["refused"] else seconds(each["completionSeconds"]),
        )
    return table


def _samples(wait: Json) -> str:
    return f"{wait['samples']} ({wait['basis']})"


def _flag(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "?"}[value]


def _numa(numa: Json) -> tuple[str, str, str]:
    now = numa["domainsNow"]
    spans = "?" if now is None else str(now[0]) if now[0] == now[1] else f"{now[0]}-{now[1]}"
    low, high = numa["slowdown"]
    return spans, str(numa["domainsBest"] or "?"), f"{low:.2f}-{high:.2f}"
