"""`hpc-bridge render`: what stands in the script, where pods are found, and what is said of refused ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli import main
from bridge.cli.documents import Unreadable, pods

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = """\
clusters:
  - name: alpha
    accounts: [{transport: {type: local}, namespaces: [default]}]
    images: [{image: "busybox:*"}]
    queue: workq
    pbsExec: /opt/pbs
  - name: beta
    accounts: [{transport: {type: local}, namespaces: [default]}]
    images: [{image: "busybox:*"}]
    spool: /shared/bridge
    computeSpool: /mnt/bridge
"""
SPEC = (
    '{containers: [{name: c, image: "busybox:1", command: [sh, -c, "echo $(A)"], env: [{name: A, value: "\'; id"}]}]}'
)
POD = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: ns}}\nspec: {SPEC}\n"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A bridge.yaml with two clusters."""
    path = tmp_path / "bridge.yaml"
    path.write_text(SETTINGS)
    return path


def render(settings: Path, text: str, *options: str) -> Result:
    """Run the verb with a text on standard input."""
    return CliRunner().invoke(main, ["render", "-c", str(settings), "-", *options], input=text)


def test_the_script_of_a_pod(settings: Path) -> None:
    done = render(settings, POD)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "#!/bin/sh",
        "# cluster alpha; words in capitals are known only when the pod runs",
        "# pod ns/p",
        "/opt/pbs/bin/qsub -r n -c n -m n -j oe -koed -o /HOME/.hpc-bridge/INSTANCE/alpha/pods/POD-UID/job.out "
        "-N p.POD-UID.INSTANCE -q workq -l select=1:ncpus=1:mem=1310720kb -l walltime=01:01:30 "
        "-- /usr/bin/python3 /HOME/.hpc-bridge/bin/podrun-VERSION.pyz /HOME/.hpc-bridge/INSTANCE/alpha/pods/POD-UID",
    ]


def test_another_cluster(settings: Path) -> None:
    done = render(settings, POD, "--cluster", "beta")
    assert "-o /mnt/bridge/INSTANCE/beta/pods/POD-UID/job.out" in done.stdout
    assert "-q " not in done.stdout
    done = render(settings, POD, "--cluster", "nix")
    assert done.exit_code == 2
    assert "there are: alpha, beta" in done.stderr


def test_the_example_job(settings: Path) -> None:
    done = CliRunner().invoke(main, ["render", "-c", str(settings), str(EXAMPLES / "hello-job.yaml")])
    assert (done.exit_code, done.stderr) == (0, "")
    assert "-N hello-xxxxx.POD-UID.INSTANCE" in done.stdout
    assert "-l walltime=00:11:30" in done.stdout


def test_pod_json_and_inputs(settings: Path) -> None:
    extra = "volumes: [{name: v, secret: {secretName: s, items: [{key: k, path: k}]}}, {name: w, configMap: {name: c}}]"
    text = POD.replace("}]}]}", "}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}]}], " + extra + "}")
    done = render(settings, text, "-o", "json")
    assert done.exit_code == 0, done.output
    (entry,) = json.loads(done.stdout)
    assert entry["needs"] == ["Secret s", "ConfigMap c"]
    (container,) = entry["podJson"]["containers"]
    assert container["argv"] == ["sh", "-c", "echo '; id"]
    assert container["env"] == [["HOSTNAME", "p"], ["A", "'; id"], ["B", {"secret": "v0"}]]
    assert "# read from Kubernetes before this is submitted: Secret s, ConfigMap c" in render(settings, text).stdout


def test_refused_pods_go_to_stderr_and_the_rest_is_printed(settings: Path) -> None:
    bad = POD.replace("name: p", "name: bad").replace("command:", "tty: true, command:")
    done = render(settings, f"{bad}---\n{POD}")
    assert done.exit_code == 1
    assert done.stderr == (
        "ns/bad: UnsupportedPodField: spec.containers[0].tty: containers get no terminal yet; set tty: false\n"
    )
    assert done.stdout.count("qsub") == 1
    done = render(settings, bad, "-o", "json")
    assert (done.exit_code, done.stdout) == (1, "[]\n")


def test_what_pbs_would_not_take_is_refused_too(settings: Path) -> None:
    settings.write_text(SETTINGS.replace("/opt/pbs", '"/opt/p bs"'))
    done = render(settings, POD)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "pbsExec '/opt/p bs' is not allowed" in done.stderr


def test_what_the_site_wants_is_shown(settings: Path) -> None:
    more = "jobResources: {filesystems: 'home:eagle'}\n    chunkResources: {system: polaris}\n    groups: {ns: g01}"
    settings.write_text(SETTINGS.replace("queue: workq", f"queue: workq\n    {more}"))
    done = render(settings, POD)
    assert "-W group_list=g01 -l select=1:ncpus=1:mem=1310720kb:system=polaris -l walltime=01:01:30" in done.stdout
    assert "-l filesystems=home:eagle --" in done.stdout


def test_disk_that_nobody_maps_is_refused(settings: Path) -> None:
    text = POD.replace("name: c,", "name: c, resources: {requests: {ephemeral-storage: 10Gi}},")
    done = render(settings, text)
    assert done.exit_code == 1
    assert "ephemeral-storage has no PBS resource on cluster alpha" in done.stderr


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("Job", "spec: {template: {spec: %s}}"),
        ("CronJob", "spec: {jobTemplate: {spec: {template: {spec: %s}}}}"),
        ("Deployment", "spec: {template: {spec: %s}}"),
        ("StatefulSet", "spec: {template: {spec: %s}}"),
        ("ReplicaSet", "spec: {template: {spec: %s}}"),
        ("PodTemplate", "template: {spec: %s}"),
    ],
)
def test_templates_are_found(kind: str, where: str) -> None:
    found, others = pods(f"kind: {kind}\nmetadata: {{name: x}}\n" + where % SPEC)
    assert (found[0]["metadata"]["name"], found[0]["spec"]["containers"][0]["name"], others) == ("x-xxxxx", "c", [])


def test_lists_and_generated_names() -> None:
    inner = f"{{kind: Pod, metadata: {{generateName: gen-}}, spec: {SPEC}}}"
    found, others = pods(f"kind: List\nitems: [{inner}, {{kind: Service, metadata: {{name: s}}}}]\n")
    assert ([p["metadata"]["name"] for p in found], others) == (["gen-xxxxx"], ["Service s"])


def test_daemon_sets_are_refused(settings: Path) -> None:
    done = render(settings, f"kind: DaemonSet\nmetadata: {{name: d}}\nspec: {{template: {{spec: {SPEC}}}}}\n")
    assert done.exit_code == 1
    assert "DaemonSet pods do not run on virtual nodes" in done.stderr


@pytest.mark.parametrize("text", ["a: [", "just text", "kind: Job\nspec: 5", "kind: Pod", "- 1"])
def test_odd_files_end_in_a_message(settings: Path, text: str) -> None:
    done = render(settings, text)
    assert done.exit_code == 1
    assert done.stderr
    assert not isinstance(done.exception, Exception)


def test_a_file_without_pods(settings: Path) -> None:
    done = render(settings, "kind: ConfigMap\nmetadata: {name: c}\n")
    assert done.exit_code == 2
    assert "ConfigMap c: makes no pod, left out" in done.stderr


def test_yaml_errors_have_a_line() -> None:
    with pytest.raises(Unreadable, match=r"line 3: not YAML"):
        pods("a: 1\nb: [\n")


def test_no_key_is_needed(tmp_path: Path) -> None:
    """A pod's author may read the settings, not the agent's key: nothing is contacted, so nothing secret is read."""
    transport = "{type: ssh, host: h, user: u, keyFile: no-such-key, knownHostsFile: nor-this}"
    (tmp_path / "bridge.yaml").write_text(SETTINGS.replace("{type: local}", transport))
    done = render(tmp_path / "bridge.yaml", POD)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "qsub" in done.stdout
    assert CliRunner().invoke(main, ["validate", "-c", str(tmp_path / "bridge.yaml")]).exit_code == 2


def test_a_pod_that_cannot_reach_the_api_server_is_told_before_it_is_submitted(settings: Path) -> None:
    text = POD.replace("spec: {", "spec: {serviceAccountName: workflow, ")
    done = render(settings, text)
    assert done.exit_code == 0
    assert "ns/p: note: runs as ServiceAccount workflow, and cluster alpha has no address" in done.stderr
    settings.write_text(SETTINGS.replace("queue: workq", "apiServer: {host: k8s.example.org}"))
    assert render(settings, text).stderr == ""
