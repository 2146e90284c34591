"""Hostile texts and names in every field of a pod: refused, or without any power over what runs on the cluster.

Arbitrary text goes through plan, freeze and podrun to the very arguments that bubblewrap and apptainer are given; they
are compared by structure with those of a harmless pod. Names that the API server lets through become no other path.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import csv
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openapi_fields import paths as schema_paths
from openapi_fields import read
from plancases import INSTANCE, NODE, cluster, config_map, container, inputs, pod, secret

from bridge.kube import paths
from bridge.kube.clock import SystemClock
from bridge.kube.errors import Invalid
from bridge.plan import InputRef, MissingInput, freeze, plan
from bridge.plan.fields import verdict
from bridge.plan.texts import control
from bridge.plan.verdicts import Refused
from bridge.pods.inputs import InputSource
from pbs_adapter.models import JobRequest
from pbs_adapter.remote import podrun_spec
from pbs_adapter.remote.podrun_apptainer import Apptainer
from pbs_adapter.remote.podrun_bwrap import Bubblewrap
from pbs_adapter.remote.podrun_runtime import Places, StartFailed, environment
from pbs_adapter.remote.podrun_spec import Container, Pod, SpecError

Json = dict[str, Any]
SCHEMA = schema_paths(read((Path(__file__).parent / "fixtures/podspec-1.36.txt").read_text()))
NAMES = [
    "../../victim/secrets/db",
    "..",
    ".",
    "a/b",
    "/",
    "a%2fb",
    "%2e%2e",
    "a?watch=1",
    "a#b",
    "A",
    "a b",
    "a\0b",
    "ä",
]
ATTACKS = [
    "\0--bind\0/\0/host", "/tmp\0--bind\0/\0/host", "\n", "x\n--bind", "--bind", "--", "-B/:/host", "../..", "/..",
    "$(B)", ",source=/,destination=/host", '","', '"', "'", "\\", ":/host:rw", ":", "\x7f", "\x85", "\ud800", "é",
    "..", "/",
]  # fmt: skip
SPEC: Json = {
    "hostname": "h",
    "serviceAccountName": "sa",
    "restartPolicy": "Never",
    "priorityClassName": "p",
    "imagePullSecrets": [{"name": "pull"}],
    "volumes": [
        {"name": "v", "emptyDir": {}},
        {"name": "h", "hostPath": {"path": "/allowed/x", "type": ""}},
        {"name": "cm", "configMap": {"name": "cm", "items": [{"key": "k", "path": "k"}]}},
        {"name": "s", "secret": {"secretName": "s", "items": [{"key": "k", "path": "k"}]}},
        {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "a"}}]}},
        {"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ],
    "containers": [
        container(
            image="busybox:1",
            command=["c"],
            args=["a"],
            workingDir="/work",
            terminationMessagePath="/msg",
            terminationMessagePolicy="File",
            env=[
                {"name": "B", "value": "b"},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
                {"name": "D", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            envFrom=[{"prefix": "P_", "configMapRef": {"name": "cm"}}],
            volumeMounts=[
                {"name": "v", "mountPath": "/v", "subPath": "sub"},
                {"name": "v", "mountPath": "/w", "subPathExpr": "$(B)"},
                {"name": "h", "mountPath": "/h"},
                {"name": "cm", "mountPath": "/cm"},
                {"name": "s", "mountPath": "/s"},
            ],
        )
    ],
}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every text in a structure."""
    if isinstance(value, str):
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from leaves(child, (*path, key))


def changed(path: tuple[Any, ...], text: str) -> Json:
    """The harmless pod with one text replaced, or its end."""
    spec = copy.deepcopy(SPEC)
    parent: Any = spec
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = text.replace("*", parent[path[-1]], 1)
    return pod(**spec)


def frozen(thing: Json, runtime: str, allowed: Path) -> JobRequest | None:
    """The job; None where the pod is refused, now or for what it refers to."""
    image = [{"image": "*", "runtime": runtime} | ({"path": "/i.sif"} if runtime == "apptainer" else {})]
    for volume in thing["spec"]["volumes"]:  # the allowed directory is made anew for each run
        if isinstance(path := (volume.get("hostPath") or {}).get("path"), str):
            volume["hostPath"]["path"] = path.replace("/allowed", str(allowed), 1)
    where = cluster(images=image, hostPaths=[{"path": str(allowed)}])
    planned = plan(thing, where)
    if planned.refusals:
        assert not any(control(refusal.field) for refusal in planned.refusals)
        return None
    found = inputs(config_map(data={"k": "v"}), secret(k=b"v"), token="t", refs=planned.inputs)
    try:
        return freeze(thing, planned, found, node=NODE, instance=INSTANCE, cluster=where, account="a")
    except MissingInput:
        return None


def bound(request: JobRequest) -> Pod:
    """The job as podrun reads it."""
    files = {file.path: file.content for file in request.files}
    values = json.loads(files.get("secrets/values.json", b"{}"))
    return podrun_spec.parse(json.loads(files["pod.json"]), {k: base64.b64decode(v) for k, v in values.items()})


ARITY = {
    "--tmpfs": 1, "--symlink": 2, "--ro-bind": 2, "--bind": 2, "--ro-bind-try": 2, "--dev-bind-try": 2, "--proc": 1,
    "--dev": 1, "--dir": 1, "--remount-ro": 1, "--chdir": 1, "--unshare-pid": 0, "--unshare-ipc": 0, "--setenv": 2,
    "--json-status-fd": 1, "--bind-fd": 2, "--ro-bind-fd": 2, "--unshare-uts": 0, "--hostname": 1, "--size": 1,
    "--block-fd": 1,
}  # fmt: skip
# What follows from where a path lies in the host's tree, not from what it is.
TREE = {"--tmpfs", "--symlink", "--ro-bind-try", "--dev-bind-try", "--dir", "--remount-ro", "--setenv", "--block-fd"}


BUBBLEWRAP = Bubblewrap("/bin/true")  # it is asked for its options, never for a container


def options_of_bubblewrap(words: list[bytes], allowed: Path) -> list[str]:
    """The options as bubblewrap takes them apart; a bind of anything but volumes and the system's own is told."""
    shape, left = [], list(words)
    while left:
        name = left.pop(0).decode()
        given_to, left = left[: ARITY[name]], left[ARITY[name] :]
        if name == "--bind":
            assert given_to[0].startswith(os.fsencode(allowed.parent)), words
        if name not in TREE:
            shape.append(name)
    return shape


def bubblewrap(one: Container, whole: Pod, places: Places, allowed: Path) -> list[str]:
    """The structure of what bubblewrap would be given."""
    launch = BUBBLEWRAP.command(one, places, environment(one, whole, {}, {}))
    try:
        at = launch.argv.index(b"--args")
        with os.fdopen(os.dup(int(launch.argv[at + 1])), "rb") as file:
            words = file.read().split(b"\0")
    finally:
        held = -1 if launch.verifier is None else launch.verifier.held
        if launch.verifier is not None:
            launch.verifier.close()
        for descriptor in {*launch.fds, *launch.close, launch.status} - {-1, held}:
            os.close(descriptor)
    assert words.pop() == b""
    assert launch.argv[at + 2] == b"--"
    assert launch.argv[at + 3 :] == one.argv
    return options_of_bubblewrap(words, allowed)


def apptainer(one: Container, whole: Pod, places: Places, allowed: Path) -> list[str]:
    """The structure of what apptainer would be given."""
    flags = frozenset({"--mount", "--no-mount", "--no-eval", "--containall"})
    launch = Apptainer("/bin/apptainer", flags, b"/bin").command(one, places, environment(one, whole, {}, {}))
    if launch.verifier is not None:
        launch.verifier.close()
    words = [word.decode("utf-8", "surrogateescape") for word in launch.argv]
    at = words.index("/i.sif")
    assert launch.argv[at + 1 :] == one.argv
    left, shape = words[3:at], words[:3]
    while left:
        name = left.pop(0)
        shape.append(name)
        if name in ("--pwd", "--workdir", "--no-mount", "--mount"):
            value = left.pop(0)
        if name == "--mount":
            (fields,) = csv.reader([value])
            shape += [field.partition("=")[0] for field in fields]
            assert fields[1].startswith(f"source={allowed.parent}"), fields
    assert all("\0" not in word for word in words)
    return shape


def structure(runtime: str, thing: Json) -> list[str] | None:
    """What would be started, by structure; None: it is refused, or not started."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name).resolve()
        allowed = base / "allowed"
        (allowed / "x").mkdir(parents=True)
        request = frozen(thing, runtime, allowed)
        if request is None:
            return None
        try:
            whole = bound(request)
        except SpecError:
            return None
        (one,) = whole.containers
        places = Places(str(base / "spool/pods/u"), str(base / "scratch"))
        (base / "scratch").mkdir()
        for mount in one.mounts:
            (base / "spool/pods/u" / mount.source.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (base / "spool/pods/u/secrets/volumes/s").mkdir(parents=True, exist_ok=True)
        try:
            return sorted((bubblewrap if runtime == "host" else apptainer)(one, whole, places, allowed))
        except StartFailed:
            return None


HARMLESS = {runtime: structure(runtime, pod(**copy.deepcopy(SPEC))) for runtime in ("host", "apptainer")}
TEXTS = st.one_of(
    st.text(st.characters(), max_size=12),
    st.builds(lambda kept, text: kept + text, st.sampled_from(["*", "/", "*/", "a"]), st.text(max_size=8)),
    st.builds(lambda kept, text: kept + text, st.sampled_from(["", "*", "/"]), st.sampled_from(ATTACKS)),
)


@pytest.mark.parametrize("runtime", ["host", "apptainer"])
@settings(max_examples=100, deadline=None)
@given(path=st.sampled_from(list(leaves(SPEC))), text=TEXTS)
@example(path=("containers", 0, "workingDir"), text="/tmp\0--bind\0/\0/host")
@example(path=("containers", 0, "terminationMessagePath"), text="*\0--bind\0/\0/host")
@example(path=("containers", 0, "volumeMounts", 0, "mountPath"), text="*\0--bind\0/\0/host")
@example(path=("containers", 0, "volumeMounts", 1, "mountPath"), text="/x,source=/")
def test_no_text_changes_the_structure_of_what_is_started(runtime: str, path: tuple[Any, ...], text: str) -> None:
    assert HARMLESS[runtime]
    found = structure(runtime, changed(path, text))
    if found is None:
        return
    kept = [word for word in HARMLESS[runtime] or [] if word != "ro"]
    if path[-1] == "terminationMessagePath" and len(found) < len(kept):
        return  # a path that is none: the container has no such file
    assert [word for word in found if word != "ro"] == kept


def test_the_texts_of_a_program_are_its_own() -> None:
    """A kubelet hands them on as they are, and so does podrun: newlines, tabs and escape codes too."""
    odd = "a\n\t\x1b[31m\x7f\x85é"
    thing = pod(containers=[container(command=["sh", odd], args=[odd], env=[{"name": "A", "value": odd}])])
    request = freeze(thing, plan(thing, cluster()), {}, node=NODE, instance=INSTANCE, cluster=cluster(), account="a")
    (one,) = bound(request).containers
    assert one.argv == (b"sh", odd.encode(), odd.encode())
    assert dict(one.env)[b"A"] == odd.encode()


@pytest.mark.parametrize("path", list(leaves(SPEC)), ids=lambda path: ".".join(map(str, path)))
def test_a_nul_is_refused_wherever_it_stands(path: tuple[Any, ...]) -> None:
    refused = plan(changed(path, "*\0x"), cluster(hostPaths=[{"path": "/allowed"}])).refusals
    field = "spec." + ".".join(map(str, path))
    assert re.sub(r"\.(\d+)", r"[\1]", field) in [refusal.field for refusal in refused]


def nested(path: str, value: Any) -> Json:
    """A spec with `value` at a schema path, its lists of one element, and what those need."""
    first, _, rest = path.partition(".")
    inner: Any = nested(rest, value) if rest else value
    base = {"containers[]": container(), "initContainers[]": container("i"), "volumes[]": {"name": "v"}}.get(first, {})
    base = {"name": "A"} if first == "env[]" else base
    return {first.removesuffix("[]"): [base | inner] if first.endswith("[]") else inner}


def names_an_object(path: str) -> bool:
    """By the words of the schema: it ends in a name, and not in that of something within the pod."""
    leaf, parent = path.rpartition(".")[2], path.rpartition(".")[0].rpartition(".")[2]
    if path.startswith("ephemeralContainers") or isinstance(verdict(path), Refused):
        return False
    if leaf in ("secretName", "claimName", "serviceAccountName", "serviceAccount", "priorityClassName", "nodeName"):
        return True
    kinds = ("configMap", "secret", "imagePullSecrets[]", "KeyRef")
    return leaf == "runtimeClassName" or (leaf == "name" and (parent.endswith("Ref") or parent in kinds))


OBJECTS = [path for path in SCHEMA if names_an_object(path)]


def test_the_schema_names_objects_where_we_think() -> None:
    assert {
        "containers[].env[].valueFrom.secretKeyRef.name", "initContainers[].envFrom[].configMapRef.name",
        "volumes[].secret.secretName", "volumes[].configMap.name", "volumes[].projected.sources[].secret.name",
        "imagePullSecrets[].name", "serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName",
    } <= set(OBJECTS)  # fmt: skip
    assert len(OBJECTS) == 18


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", OBJECTS)
def test_hostile_names_of_objects_are_refused(path: str, name: str) -> None:
    spec = {"containers": [container()]} | nested(path, name)
    field = "spec." + re.sub(r"\[\](?=.)", "[0]", path)
    assert field in [refusal.field for refusal in plan({"metadata": {}, "spec": spec}, cluster()).refusals]


@pytest.mark.parametrize("path", OBJECTS)
def test_names_that_objects_have_are_not(path: str) -> None:
    spec = {"containers": [container()]} | nested(path, "a.b-c.0")
    field = "spec." + re.sub(r"\[\](?=.)", "[0]", path)
    assert field not in [refusal.field for refusal in plan({"metadata": {}, "spec": spec}, cluster()).refusals]


@given(name=st.one_of(st.text(max_size=20), st.sampled_from([*NAMES, ""])))
def test_a_name_is_one_segment_of_a_path_or_none(name: str) -> None:
    for made, before, after in (
        (paths.secret, "/api/v1/namespaces/team-a/secrets/", ""),
        (paths.config_map, "/api/v1/namespaces/team-a/configmaps/", ""),
        (paths.service_account_token, "/api/v1/namespaces/team-a/serviceaccounts/", "/token"),
        (paths.pod_status, "/api/v1/namespaces/team-a/pods/", "/status"),
    ):
        try:
            path = made("team-a", name)
        except Invalid:
            assert name in ("", ".", "..") or set("/%") & set(name)
            continue
        segment = path.removeprefix(before).removesuffix(after)
        assert path == before + segment + after
        assert re.fullmatch(r"[A-Za-z0-9_.~%-]+", segment)
        assert segment not in (".", "..")


class Deaf:
    """A Kubernetes that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called")


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap", "Token"])
@pytest.mark.parametrize("name", ["", "..", "../../victim/secrets/db", "%2e%2e"])
def test_no_request_is_made_for_what_is_no_name(kind: Any, name: str) -> None:
    """Should a name slip through a plan one day."""
    source = InputSource(Deaf(), SystemClock())  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        asyncio.run(source.gather(pod(), [InputRef(kind, name)]))
