"""bridge.yaml: what is right loads, and every mistake is pointed at with its line and what would be right."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from bridge.api.load import SettingsError, load
from bridge.api.settings import Settings, SshTransport

HEAD = """\
clusters:
  - name: alpha
    accounts:
      - transport: {type: local}
        namespaces: [default]
"""


def problems(directory: Path, text: str) -> list[str]:
    """The mistakes in a file with this content, without the directory."""
    path = directory / "bridge.yaml"
    path.write_text(dedent(text), encoding="utf-8")
    try:
        load(path)
    except SettingsError as error:
        return [str(problem).removeprefix(f"{directory}/") for problem in error.problems]
    return []


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A directory with a private key and known_hosts."""
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "known_hosts").touch()
    return tmp_path


def test_least_settings_and_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "bridge.yaml").write_text(HEAD)
    settings = load(tmp_path / "bridge.yaml")
    (cluster,) = settings.clusters
    assert (cluster.node_name, cluster.walltime, cluster.memory, cluster.poll) == ("pbs-alpha", 3600, 1 << 30, 30)
    assert settings.agent.status_listen == "127.0.0.1:10280"
    assert settings == Settings.model_validate(settings.model_dump())


def test_paths_are_relative_to_the_file(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    text = """\
        clusters:
          - name: alpha
            accounts:
              - transport: {type: ssh, host: h, user: u, keyFile: key, knownHostsFile: ./known_hosts}
                namespaces: [default]
        """
    (keys / "bridge.yaml").write_text(dedent(text))
    transport = load(keys / "bridge.yaml").clusters[0].accounts[0].transport
    assert isinstance(transport, SshTransport)
    assert (transport.key_file, transport.known_hosts_file) == (str(keys / "key"), str(keys / "known_hosts"))


@pytest.mark.parametrize(
    ("line", "value"),
    [("walltime: 90", 90), ("walltime: 90s", 90), ("walltime: 1h30m", 5400), ("walltime: 01:30:00", 5400),
     ('walltime: "01:30:00"', 5400), ("walltime: 2d", 172800), ("walltime: 0.5", 0.5)],
)  # fmt: skip
def test_durations(tmp_path: Path, line: str, value: float) -> None:
    (tmp_path / "bridge.yaml").write_text(f"{HEAD}    {line}\n")
    assert load(tmp_path / "bridge.yaml").clusters[0].walltime == value


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("quue: x", "6: clusters[0].quue: is not known; did you mean queue?"),
        ("zzz: x", "6: clusters[0].zzz: is not known; known here: accounting, accounts, allowProject"),
        ("walltime: 5x", "6: clusters[0].walltime: '5x' is not a duration; write seconds, or for example 90s"),
        ("walltime: -5", "6: clusters[0].walltime: -5 is wrong; input should be greater than 0"),
        ("walltime: []", "6: clusters[0].walltime: is wrong; input should be a valid number"),
        ("memory: 2GB", "6: clusters[0].memory: '2GB' is not a size; write bytes, or for example 512Mi, 2Gi"),
        ("memory: 5", "6: clusters[0].memory: 5 is wrong; input should be greater than or equal to 1048576"),
        ("pods: many", "6: clusters[0].pods: 'many' is wrong; input should be a valid integer"),
        ("spool: here", "6: clusters[0].spool: 'here' is wrong; give a path that starts with / or ~/"),
        ("computeSpool: x", "6: clusters[0].computeSpool: 'x' is wrong; give a path that starts with /"),
        (
            "images: [{image: x, runtime: docker}]",
            "6: clusters[0].images[0].runtime: 'docker' is wrong; input should be",
        ),
        ("images: [{img: x}]", "6: clusters[0].images[0].image: is missing; give it a value"),
        ("images: [{image: x, runtime: apptainer}]", "6: clusters[0].images[0].path: is missing; give the SIF file"),
        ("images: [{image: x, path: /x.sif}]", "6: clusters[0].images[0].path: is only for runtime: apptainer"),
        (
            "images: [{image: x, runtime: apptainer, path: x.sif}]",
            "6: clusters[0].images[0].path: 'x.sif' is wrong; give a path that starts with /",
        ),
        ("imagePaths: [images]", "6: clusters[0].imagePaths[0]: 'images' is wrong; give a path that starts with /"),
        ("name: beta", "6: clusters[0].name: is there twice, first in line 2; keep one of them"),
        (
            "kubeletPort: 70000",
            "6: clusters[0].kubeletPort: 70000 is wrong; input should be less than or equal to 65535",
        ),
        ("queue: !secret x", "6: clusters[0].queue: 'x' has no meaning here; quote it"),
        (
            "hostPaths: [{path: data}]",
            "6: clusters[0].hostPaths[0].path: 'data' is wrong; give a path that starts with /",
        ),
    ],
)
def test_mistakes_in_a_cluster(tmp_path: Path, line: str, problem: str) -> None:
    found = problems(tmp_path, f"{HEAD}    {line}\n")
    assert any(each.startswith(f"bridge.yaml:{problem}") for each in found), found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1: is empty; examples/bridge.yaml shows what it holds"]),
        ("a: [", ["1: is not YAML: expected the node content, but found '<stream end>'"]),
        ("- x", ["1: is wrong; input should be a valid dictionary or instance of Settings"]),
        ("clusters: []", ["1: clusters: is empty; give at least one"]),
        ("agent: {}", ["1: clusters: is missing; give it a value"]),
        ("a: &a [*a]\n", ["1: a: is not known; known here: agent", "1: a[0]: refers to itself; write it out"]),
        (HEAD + "kubelet: {certFile: nix}", ["6: kubelet: certFile and keyFile belong together"]),
        (HEAD + "agent: {statusListen: x}", ["6: agent.statusListen: 'x' is wrong; give ADDRESS:PORT"]),
        (HEAD.replace("local", "telnet"), ["4: clusters[0].accounts[0].transport.type: is missing or not known; w"]),
        (HEAD.replace("type: local", "x: 1"), ["4: clusters[0].accounts[0].transport.type: is missing or not known"]),
        (HEAD.replace("[default]", "[a, b]"), ["5: clusters[0].accounts[0].namespaces: the pods of several"]),
        (HEAD.replace("alpha", "Al_pha"), ["2: clusters[0].name: 'Al_pha' is wrong; use lower-case letters"]),
        (HEAD + HEAD[10:], ["6: clusters[1].name: 'alpha' is that of clusters[0] too; give each its own"]),
    ],
)  # fmt: skip
def test_mistakes_elsewhere(tmp_path: Path, text: str, expected: list[str]) -> None:
    found = problems(tmp_path, text)
    assert all(any(each.startswith(f"bridge.yaml:{start}") for each in found) for start in expected), found


def test_mistakes_in_files_that_are_named(keys: Path) -> None:
    text = """\
        clusters:
          - name: alpha
            accounts:
              - transport:
                  type: ssh
                  host: h
                  user: u
                  prot: 22
                  keyFile: {}
                  knownHostsFile: nix
                namespaces: [default]
        """
    unknown = "bridge.yaml:8: clusters[0].accounts[0].transport.prot: is not known; did you mean port?"
    hosts = f"bridge.yaml:10: clusters[0].accounts[0].transport.knownHostsFile: {keys}/nix cannot be read: No such file"
    missing = problems(keys, text.format("gone"))
    assert missing[0] == unknown
    assert missing[1].endswith(f"keyFile: {keys}/gone cannot be read: No such file or directory")
    assert missing[2].startswith(hosts)
    assert "ssh-keyscan" in missing[2]
    os.chmod(keys / "key", 0o644)
    assert problems(keys, text.format("key"))[1].endswith(
        f"{keys}/key can be read by everybody (mode 0644); chmod 600 it"
    )
    assert problems(keys, text.format("."))[1].endswith("is not a file; name the file itself")


def test_a_missing_settings_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nix.yaml:1: cannot be read: No such file or directory; name the file"):
        load(tmp_path / "nix.yaml")


ACCOUNT = """\
clusters:
  - name: alpha
    accounts:
      - transport: {type: ssh, host: h, user: alice, keyFile: key, knownHostsFile: known_hosts}
        namespaces: [default]
"""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("hostPaths: [{path: /}]", "would show pods everything"),
        ("hostPaths: [{path: //}]", "would show pods everything"),
        ("hostPaths: [{path: /scratch/..}]", "would show pods everything"),
        ("hostPaths: [{path: /home}]", "reaches the spool"),
        ("hostPaths: [{path: /home/alice}]", "reaches the spool"),
        ("hostPaths: [{path: /home/alice/.hpc-bridge/x}]", "reaches the spool"),
        ("hostPaths: [{path: /users/alice}]", "reaches the spool"),
        ("{hostPaths: [{path: /home/alice}], spool: /scratch/spool}", "holds home directories"),
        ("{hostPaths: [{path: /root}], spool: /scratch/spool}", "holds home directories"),
        ("{hostPaths: [{path: /scratch}], spool: /scratch/bridge}", "reaches the spool (/scratch/bridge)"),
        ("{hostPaths: [{path: /mnt}], spool: /scratch/bridge, computeSpool: /mnt/bridge}", "(/mnt/bridge)"),
        ("{hostPaths: [{path: /scratch/bridge/x/y}], spool: /scratch/bridge}", "reaches the spool"),
        ("hostPaths: [{path: /proc/1/root}]", "every process"),
        ("{imagePaths: [/images, /scratch], spool: /scratch/bridge}", "reaches the spool"),
        ("imagePaths: [/home/alice/]", "reaches the spool"),
        ("spool: /opt/hpc-bridge", "which every container sees"),
        ("spool: /usr/local/x", "which every container sees"),
        ("spool: /etc", "which every container sees"),
        ("{spool: /scratch/x, computeSpool: //usr/x}", "which every container sees"),
    ],
)
def test_what_pods_see_is_apart_from_spool_and_home(keys: Path, lines: str, told: str) -> None:
    extra = lines.strip("{}") if lines.startswith("{") else lines
    text = ACCOUNT + "".join(f"    {part}\n" for part in extra.replace(", spool", "\nspool").replace(
        ", computeSpool", "\ncomputeSpool").split("\n"))  # fmt: skip
    (found,) = problems(keys, text)
    assert told in found
    assert "bridge.yaml:" in found


@pytest.mark.parametrize(
    "line",
    ["hostPaths: [{path: /scratch/shared}]", "hostPaths: [{path: /home/alice/data}]", "hostPaths: [{path: /home2}]",
     "imagePaths: [/home/alice/images]", "spool: /scratch/bridge", "spool: /optional/x",
     "hostPaths: [{path: /scratch/alice}]"],
)  # fmt: skip
def test_directories_that_pods_may_see(keys: Path, line: str) -> None:
    assert problems(keys, f"{ACCOUNT}    {line}\n") == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("queue: casper@casper-pbs", "queue: 'casper@casper-pbs' is not allowed: a queue name has at most 15"),
        ("queues: [workq, main@desched1]", "queues[1]: 'main@desched1' is not allowed"),
        ("queue: a_name_that_is_too_long", "a queue name has at most 15"),
        ("queue: '-q'", "a queue name has"),
        ("projects: {a: 'x y'}", "projects: of a: 'x y' is not allowed"),
        ("accounting: {a: '-A'}", "accounting: of a: '-A' is not allowed"),
        ("groups: {a: 'g1,g2'}", "groups: of a: 'g1,g2' is not allowed: the name of a Unix group"),
        ("resources: {nvidia.com/gpu: ncpus}", "it follows from the pod's spec"),
        ("resources: {nvidia.com/gpu: 'n:x'}", "resources: of nvidia.com/gpu"),
        (
            "jobResources: {filesystems: 'home:eagle -A x'}",
            "of filesystems: 'home:eagle -A x' is not allowed",
        ),
        ("jobResources: {select: '2'}", "it follows from the pod's spec"),
        ("jobResources: {walltime: '1'}", "it follows from the pod's spec"),
        ("jobResources: {storage: {a: 'x,y'}}", "jobResources: of storage: 'x,y' is not allowed"),
        ("chunkResources: {system: 'a:b'}", "chunkResources: of system: 'a:b' is not allowed"),
        ("chunkResources: {mem: 1gb}", "it follows from the pod's spec"),
        ("placements: [sideways]", "placements"),
    ],
)
def test_options_of_qsub_are_checked_when_they_are_read(keys: Path, line: str, told: str) -> None:
    found = problems(keys, f"{ACCOUNT}    {line}\n")
    assert len(found) == 1
    assert told in found[0]


def test_a_resource_is_fixed_or_asked_for(keys: Path) -> None:
    lines = "    resources: {nvidia.com/gpu: ngpus}\n    chunkResources: {ngpus: '1'}\n"
    (found,) = problems(keys, ACCOUNT + lines)
    assert "ngpus is asked for by pods" in found
