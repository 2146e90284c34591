"""`hpc-bridge render`: the submit script that a pod becomes, and what of it is refused and why. Contacts nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TextIO

import click

from bridge.api.settings import Cluster, Settings
from bridge.cli.documents import UNKNOWN_UID, Unreadable, pods
from bridge.cli.screen import echo
from bridge.cli.settings import config_option, read_settings
from bridge.plan import InputRef, MissingInput, NodeFacts, Plan, freeze, plan
from bridge.plan.model import Json
from pbs_adapter.errors import Rejected
from pbs_adapter.models import JobRequest
from pbs_adapter.script import Site
from pbs_adapter.script import render as render_script

# Known only to a running agent and cluster; a reader sees at once that they stand for something.
_HOME, _INSTANCE, _PODRUN = "/HOME", "INSTANCE", "podrun-VERSION.pyz"


@click.command()
@config_option
@click.argument("file", type=click.File(encoding="utf-8"), metavar="POD.yaml")
@click.option("--cluster", "name", metavar="NAME", help="Which cluster; the first of the settings if left out.")
@click.option("-o", "--output", type=click.Choice(["script", "json"]), default="script", help="json adds pod.json.")
def render(config: str, file: TextIO, name: str | None, output: str) -> None:
    """Print the qsub script of each pod in a file (`-`: standard input).

    The file may hold pods, and Jobs, CronJobs, Deployments and the like. What cannot be honoured goes to stderr, with
    exit status 1.
    """
    cluster = _cluster(read_settings(config, files=False), name)
    try:
        found, others = pods(file.read())
    except (Unreadable, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file.name}: {error}") from None
    for other in others:
        echo(f"{other}: makes no pod, left out", err=True)
    if not found:
        raise click.UsageError(f"{file.name} holds no pod, nor anything that makes pods")
    rendered: list[Json] = []
    for pod in found:
        planned = plan(pod, cluster)
        for refusal in planned.refusals:
            echo(f"{planned.namespace}/{planned.name}: {refusal.reason}: {refusal}", err=True)
        for _, text in planned.notes:
            echo(f"{planned.namespace}/{planned.name}: note: {text}", err=True)
        if not planned.refusals:
            rendered += _rendered(pod, planned, cluster)
    if output == "json":
        click.echo(json.dumps(rendered, indent=2))
    elif rendered:
        click.echo("\n".join(map(_text, rendered)), nl=False)
    if len(rendered) < len(found):
        raise SystemExit(1)


def _cluster(settings: Settings, name: str | None) -> Cluster:
    for cluster in settings.clusters:
        if name in (None, cluster.name):
            return cluster
    known = ", ".join(cluster.name for cluster in settings.clusters)
    raise click.UsageError(f"there is no cluster {name!r} in the settings; there are: {known}")


def _rendered(pod: Json, planned: Plan, cluster: Cluster) -> Iterator[Json]:
    node = NodeFacts(cluster.node_name, "NODE-ADDRESS")
    stand_ins = {ref: _stand_in(ref, pod) for ref in planned.inputs if not ref.optional}
    try:
        request = freeze(
            pod, planned, stand_ins, node=node, instance=_INSTANCE, cluster=cluster, account=cluster.accounts[0].name
        )
        script = render_script(request, _site(cluster, planned))
    except (MissingInput, Rejected) as error:
        echo(f"{planned.namespace}/{planned.name}: {error}", err=True)
        return
    yield {
        "pod": f"{planned.namespace}/{planned.name}",
        "cluster": cluster.name,
        "needs": [_need(ref) for ref in planned.inputs],
        "script": script,
        "podJson": _document(request),
    }


def _site(cluster: Cluster, planned: Plan) -> Site:
    spool = cluster.compute_spool or cluster.spool.replace("~", _HOME, 1)
    directory = f"{spool}/{_INSTANCE}/{cluster.name}/pods/{planned.uid or UNKNOWN_UID}"
    return Site(directory, f"{spool}/bin/{_PODRUN}", cluster.compute_python, cluster.pbs_exec)


def _document(request: JobRequest) -> Json:
    document: Json = json.loads(request.files[0].content)
    return document


def _need(ref: InputRef) -> str:
    return f"{ref.kind} {ref.name}{' (optional)' if ref.optional else ''}"


def _text(entry: Json) -> str:
    shebang, _, rest = entry["script"].partition("\n")
    notes = [f"# cluster {entry['cluster']}; words in capitals are known only when the pod runs"]
    notes += [f"# read from Kubernetes before this is submitted: {', '.join(entry['needs'])}"] if entry["needs"] else []
    return "\n".join([shebang, *notes, rest])


def _stand_in(ref: InputRef, pod: Json) -> Json:
    """An object with every key that the pod names, so that the pod can be frozen without Kubernetes."""
    if ref.kind == "Token":
        return {"status": {"token": "TOKEN"}}
    shown = "U0VDUkVU" if ref.kind == "Secret" else f"CONFIGMAP:{ref.name}"  # base64 of SECRET
    return {"data": dict.fromkeys(_keys(pod["spec"]), shown)}


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("key"), str):
            yield value["key"]
        for inner in value.values():
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)
