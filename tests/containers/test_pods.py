"""Pods end to end on a cluster in a container, in real apptainer as an ordinary user."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from clusterkit import HOME, IMAGES, ContainerCluster
from world import World, container, job_annotation, pod, until

Json = dict[str, Any]
SIF, DIRECTORY, PLAIN = "tool:sif", f"{IMAGES}/tool", f"{IMAGES}/plain"
TIMEOUT = 120.0
ALL_BYTES = bytes(range(1, 256))

pytestmark = pytest.mark.usefixtures("apptainer")


def app(name: str, command: str | list[str] | None, image: str, **fields: Any) -> Json:
    """A pod of one container; `fields` are the container's, but for `spec`, which are the pod's."""
    spec = fields.pop("spec", {})
    thing = pod(name, command or "unused", **spec)
    main = thing["spec"]["containers"][0]
    main["image"] = image
    if command is None:
        del main["command"]
    main.update(fields)
    return thing


def ended(world: World, thing: Json, phase: str) -> Json:
    """Create the pod, wait for its end; the state of its container."""
    name = thing["metadata"]["name"]
    world.apply(thing)
    done = world.wait_phase(name, phase, timeout=TIMEOUT)
    state: Json = container(done)["state"]["terminated"]
    return state


@pytest.mark.parametrize(("name", "image"), [("sif", SIF), ("directory", DIRECTORY), ("plain", PLAIN)])
def test_exit_code_environment_and_volumes(world: World, cluster: ContainerCluster, name: str, image: str) -> None:
    values = {"NASTY": "$(id) `id` $HOME \"'\\ \n end", "EMPTY": "", "HOME": "/data", "LD_LIBRARY_PATH": "/a:/b"}
    world.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"cm-{name}"}, "data": {"f": "from config\n"}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"s-{name}"},
            "data": {"all": base64.b64encode(ALL_BYTES).decode()},
        },
    )
    reference = {"secretKeyRef": {"name": f"s-{name}", "key": "all"}}
    script = "; ".join(
        [
            "cat /proc/self/environ > /data/env",
            "cat /config/f > /data/config",
            "cat /secret/all > /data/secret",
            "pwd > /data/pwd",
            "touch /config/x 2> /data/refused",
            "id -u > /data/uid",
            "echo message > /dev/termination-log",
            "echo out; echo err >&2; exit 3",
        ]
    )
    thing = app(
        f"all-{name}",
        script,
        image,
        env=[*({"name": k, "value": v} for k, v in values.items()), {"name": "ALL", "valueFrom": reference}],
        workingDir="/data",
        volumeMounts=[
            {"name": "data", "mountPath": "/data"},
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "secret", "mountPath": "/secret", "readOnly": True},
        ],
        spec={
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "config", "configMap": {"name": f"cm-{name}"}},
                {"name": "secret", "secret": {"secretName": f"s-{name}"}},
            ]
        },
    )
    state = ended(world, thing, "Failed")
    assert (state["exitCode"], state["reason"], state["message"]) == (3, "Error", "message\n")
    assert sorted(world.logs(f"all-{name}").split()) == ["err", "out"]
    uid = world.pod(f"all-{name}")["metadata"]["uid"]
    data = f"{world.directory(uid)}/volumes/data"
    environment = dict(entry.partition(b"=")[::2] for entry in cluster.read(f"{data}/env").split(b"\0")[:-1])
    for key, value in values.items():
        assert environment[key.encode()] == value.encode()
    assert environment[b"ALL"] == ALL_BYTES
    assert environment[b"HOSTNAME"] == f"all-{name}".encode()
    assert not [key for key in environment if key.startswith(b"PBS_O_") or key == b"SSH_CONNECTION"]
    assert cluster.read(f"{data}/config") == b"from config\n"
    assert cluster.read(f"{data}/secret") == ALL_BYTES
    assert cluster.read(f"{data}/pwd") == b"/data\n"
    assert b"Read-only" in cluster.read(f"{data}/refused")
    assert cluster.read(f"{data}/uid").strip() == cluster.run("id -u").stdout.strip().encode()


@pytest.mark.parametrize(
    ("name", "args", "shown"), [("cmd", None, "<de fault><$(id)>"), ("args", ["a b", "$(id)", ""], "<a b><$(id)><>")]
)
@pytest.mark.parametrize(("kind", "image", "directory"), [("sif", SIF, "/srv/app"), ("dir", DIRECTORY, "/")])
def test_the_image_brings_its_command(
    world: World, name: str, args: list[str] | None, shown: str, kind: str, image: str, directory: str
) -> None:
    thing = app(f"own-{kind}-{name}", None, image, **({"args": args} if args is not None else {}))
    ended(world, thing, "Succeeded")
    lines = world.logs(f"own-{kind}-{name}").splitlines()
    assert lines[:3] == [directory, shown, "from the image"]
    assert lines[3].startswith("/bin:/usr/local/tool/bin")


def test_a_pod_sees_neither_home_nor_other_pods(world: World, cluster: ContainerCluster) -> None:
    keep = {"volumeMounts": [{"name": "v", "mountPath": "/v"}], "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    world.apply(app("victim", "echo secret > /v/mine; echo ready; sleep 1000", SIF, **keep))
    victim = world.wait_phase("victim", "Running", timeout=TIMEOUT)
    until(lambda: "ready" in world.logs("victim", check=False), "the victim's log")
    directory = world.directory(victim["metadata"]["uid"])
    assert cluster.read(f"{directory}/volumes/v/mine") == b"secret\n"
    attempts = [f"{directory}/volumes/v/mine", f"{directory}/pod.json", f"{HOME}/.ssh/authorized_keys", "/opt/pbs/etc"]
    attempts += [f"/proc/1/root{HOME}/.ssh", "/images/plain", "/home/hpc/.hpc-bridge"]
    script = "; ".join(f"ls {path} && echo SEEN {path}" for path in attempts)
    script += "; grep -h . /proc/[0-9]*/cmdline | od -c | head; ps; kill -9 -1; true"
    for name, image in (("thief-sif", SIF), ("thief-directory", PLAIN)):
        ended(world, app(name, f"({script}) 2>&1", image), "Succeeded")
        seen = world.logs(name)
        assert not [line for line in seen.splitlines() if line.startswith("SEEN")]
        assert "sleep 1000" not in seen
    assert container(world.pod("victim"))["state"].get("running")
    world.kubectl("delete", "pod", "victim", "--wait=false")
    world.wait_gone("victim", timeout=TIMEOUT)


@pytest.mark.parametrize(("name", "image"), [("sif", SIF), ("directory", DIRECTORY)])
def test_delete_gives_the_command_its_grace(world: World, cluster: ContainerCluster, name: str, image: str) -> None:
    script = "trap 'echo got TERM > /v/end; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    world.apply(
        app(
            f"stop-{name}",
            script,
            image,
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            spec={"volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 30},
        )
    )
    running = world.wait_phase(f"stop-{name}", "Running", timeout=TIMEOUT)
    until(lambda: "ready" in world.logs(f"stop-{name}", check=False), "the first line")
    world.kubectl("delete", "pod", f"stop-{name}", "--wait=false")
    world.wait_gone(f"stop-{name}", timeout=TIMEOUT)
    assert cluster.read(f"{world.directory(running['metadata']['uid'])}/volumes/v/end") == b"got TERM\n"
    job = job_annotation(running)
    until(lambda: job not in cluster.pbs("qselect").stdout.split(), "the job to be gone")
    assert "squashfuse" not in cluster.run("ps", "-eo", "args").stdout


def test_delete_ends_a_stubborn_one(world: World, cluster: ContainerCluster) -> None:
    script = "trap '' TERM; sleep 1001 & echo ready; while :; do sleep 1; done"
    world.apply(app("stubborn", script, SIF, spec={"terminationGracePeriodSeconds": 2}))
    world.wait_phase("stubborn", "Running", timeout=TIMEOUT)
    until(lambda: "ready" in world.logs("stubborn", check=False), "the first line")
    world.kubectl("delete", "pod", "stubborn", "--wait=false")
    world.wait_gone("stubborn", timeout=TIMEOUT)
    left = cluster.run("ps", "-eo", "args").stdout
    assert "sleep 1001" not in left
    assert "squashfuse" not in left


@pytest.mark.parametrize(("name", "image"), [("sif", SIF), ("directory", DIRECTORY)])
def test_ends_are_told_apart(world: World, name: str, image: str) -> None:
    hog = f"dd if=/dev/zero of=/dev/null bs={2 << 30} count=1"
    cases: list[tuple[str, str | list[str], int, str]] = [
        ("killed", "kill -9 $$$$", 137, "Error"),
        ("terminated", "kill -15 $$$$", 143, "Error"),
        ("exit255", "echo fine; exit 255", 255, "Error"),
        ("missing", ["no-such-program"], 128, "StartError"),
        ("oom", ["sh", "-c", f"exec {hog}"], 137, "OOMKilled"),
    ]
    for case, command, _, _ in cases:
        world.apply(app(f"{case}-{name}", command, image))
    for case, _, code, reason in cases:
        state = container(world.wait_phase(f"{case}-{name}", "Failed", timeout=TIMEOUT))["state"]["terminated"]
        assert (case, state["exitCode"], state["reason"]) == (case, code, reason)
        if case == "missing":
            assert state["message"] == '"no-such-program": executable file not found in $PATH'


@pytest.mark.parametrize(("name", "image"), [("sif", SIF), ("directory", DIRECTORY)])
def test_root_file_system(world: World, name: str, image: str) -> None:
    script = "touch /new && echo root; touch /tmp/new && echo tmp"
    ended(world, app(f"rw-{name}", script, image), "Succeeded")
    assert world.logs(f"rw-{name}").split() == ["root", "tmp"]
    frozen = app(f"ro-{name}", f"({script}) 2>&1", image, securityContext={"readOnlyRootFilesystem": True})
    ended(world, frozen, "Failed")
    assert world.logs(f"ro-{name}").count("Read-only file system") == 2


def test_init_containers_side_by_side_and_other_runtimes(world: World) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    thing = app("mixed", "cat /v/first /v/sub/deep; echo main > /v/main", SIF, volumeMounts=mounts)
    host = {"name": "host", "image": "busybox:1", "volumeMounts": mounts}
    host["command"] = ["/bin/sh", "-c", "until test -s /v/main; do sleep 0.1; done; cat /v/main"]
    thing["spec"]["containers"].append(host)
    thing["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    first = {"name": "init", "image": PLAIN, "command": ["/bin/sh", "-c", "echo first > /v/first; echo deep > /o/deep"]}
    first["volumeMounts"] = [*mounts, {"name": "v", "mountPath": "/o", "subPath": "sub"}]
    thing["spec"]["initContainers"] = [first]
    world.apply(thing)
    world.wait_phase("mixed", "Succeeded", timeout=TIMEOUT)
    assert world.logs("mixed", "-c", "main").split() == ["first", "deep"]
    assert world.logs("mixed", "-c", "host").split() == ["main"]


def test_an_image_that_is_not_there(world: World) -> None:
    world.apply(app("gone", "true", "tool:gone"))
    failed = world.wait_phase("gone", "Failed", timeout=TIMEOUT)
    assert failed["status"]["reason"] == "PBSStartFailed"
    assert f"image {IMAGES}/gone.sif of container main does not exist on cluster" in failed["status"]["message"]


def test_an_image_of_a_registry_is_refused(world: World) -> None:
    world.apply(app("pulled", "true", "ubuntu:24.04"))
    failed = world.wait_phase("pulled", "Failed")
    assert failed["status"]["reason"] == "ImageNotMapped"
    assert "images are not pulled from registries yet" in failed["status"]["message"]


@pytest.mark.parametrize(("name", "image"), [("sif", SIF), ("directory", DIRECTORY)])
def test_mounts_that_are_compared_before_the_command(
    world: World, cluster: ContainerCluster, name: str, image: str
) -> None:
    """apptainer binds by path: podrun looks at each mount that others could exchange before the command starts."""
    folder = f"/var/tmp/{name}"
    cluster.run(
        f"mkdir -p {folder}/real; ln -s real {folder}/inside; ln -s {HOME} {folder}/out; echo hi > {folder}/real/f"
    )
    volumes: list[Json] = [
        {"name": "data", "emptyDir": {}},
        {"name": "fast", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": f"{folder}/inside"}},
        {"name": "out", "hostPath": {"path": f"{folder}/out"}},
    ]
    mounts: list[Json] = [
        {"name": "data", "mountPath": "/data"},
        {"name": "data", "mountPath": "/part", "subPath": "a/b"},
        {"name": "fast", "mountPath": "/data/deep"},
        {"name": "fast", "mountPath": "/fast"},
        {"name": "host", "mountPath": "/host"},
    ]
    script = "cat /host/f; touch /part/x; ls /data/a/b; echo shared > /data/deep/y; cat /fast/y; stat -f -c %T /fast"
    state = ended(
        world, app(f"bound-{name}", script, image, volumeMounts=mounts, spec={"volumes": volumes}), "Succeeded"
    )
    assert state["containerID"].startswith("pbs+apptainer://")
    assert world.logs(f"bound-{name}").split() == ["hi", "x", "shared", "tmpfs"]
    bad = app(
        f"out-{name}",
        "ls /host",
        image,
        volumeMounts=[{"name": "out", "mountPath": "/host"}],
        spec={"volumes": volumes},
    )
    state = ended(world, bad, "Failed")
    assert (state["reason"], "by a symbolic link" in state["message"]) == ("StartError", True)
