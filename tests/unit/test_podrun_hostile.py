"""podrun against hostile contents: pod.json, orders, the pod directory, links in volumes, bubblewrap itself."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pbs_adapter.remote import (
    podrun_bwrap,
    podrun_files,
    podrun_orders,
    podrun_root,
    podrun_spec,
    podrun_status,
    podrun_verify,
)
from pbs_adapter.remote.podrun_logs import LogFile
from pbs_adapter.remote.podrun_spec import SpecError
from pbs_adapter.remote.podrun_volumes import StartFailed

CONTAINER = {"name": "main", "kind": "app", "argv": ["true"], "env": [], "mounts": []}
POD = {"version": 1, "uid": "u", "name": "hello", "namespace": "default", "restart_policy": "Always"}


def parsed(**fields: Any) -> podrun_spec.Pod:
    return podrun_spec.parse(POD | {"containers": [CONTAINER | fields]}, {})


def test_stop_request(tmp_path: Path) -> None:
    assert podrun_orders.stop_grace(str(tmp_path), 30.0) is None
    for content, grace in (
        ('{"version":1,"grace":5}', 5.0),
        ('{"grace":-1}', 2.0),
        ('{"grace":0}', 2.0),  # a kubelet never gives less either
        ("{", 30.0),
        ("[" * 100_000, 30.0),
        ("[]", 30.0),
        ('{"grace":"x"}', 30.0),
        ('{"grace":NaN}', 30.0),
        ('{"grace":true}', 30.0),
        ('{"grace":3' + " " * 70_000 + "}", 30.0),
    ):
        (tmp_path / "stop.json").write_text(content)
        assert podrun_orders.stop_grace(str(tmp_path), 30.0) == grace


@pytest.mark.parametrize(
    ("content", "deadline"),
    [
        ('{"version":1,"activeDeadlineSeconds":5}', 5.0),
        ('{"version":1,"activeDeadlineSeconds":7200,"later":[]}', 7200.0),
        ('{"version":2,"activeDeadlineSeconds":5}', 60.0),
        ('{"activeDeadlineSeconds":5}', 60.0),
        *(
            (f'{{"version":1,"activeDeadlineSeconds":{value}}}', 60.0)
            for value in ("0", "-1", "true", "null", "1.5", '"5"', "NaN", "1" + "0" * 400, "[5]")
        ),
        ("[]", 60.0),
        ("{", 60.0),
        ("\xff", 60.0),
        ("[" * 60_000, 60.0),
        ('{"version":1,"activeDeadlineSeconds":5' + " " * 70_000 + "}", 60.0),
    ],
)
def test_a_changed_deadline(tmp_path: Path, content: str, deadline: float) -> None:
    assert podrun_orders.deadline(str(tmp_path), 60.0) == 60.0
    (tmp_path / "limits.json").write_text(content)
    assert podrun_orders.deadline(str(tmp_path), 60.0) == deadline


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "socket", "huge", "folder is a link"])
def test_nothing_in_a_pod_directory_is_followed_or_waited_for(tmp_path: Path, kind: str) -> None:
    """Every file that podrun opens there: read ones count as nonsense, written ones are replaced."""
    directory, elsewhere = tmp_path / "pods" / "u", tmp_path / "elsewhere"
    (directory / "logs" / "main").mkdir(parents=True)
    (directory / "secrets").mkdir()
    (tmp_path / "dirty").mkdir()
    elsewhere.mkdir()
    precious = elsewhere / "precious"
    precious.write_text('{"version":1,"activeDeadlineSeconds":5,"grace":5}')
    read = ["pod.json", "stop.json", "limits.json", "secrets/values.json"]
    written = ["status.json", ".status.json.podrun", ".reserve", "..reserve.podrun", "logs/main/0.log", "../../dirty/u"]
    for name in read + written:
        plant(directory / name, kind, precious)
    if kind == "folder is a link":
        for name in ("logs/main", "secrets"):
            (directory / name).rmdir()
            (directory / name).symlink_to(elsewhere)
        (elsewhere / "values.json").write_text("{}")
    with pytest.raises(SpecError):
        podrun_spec.load(str(directory))
    assert podrun_orders.stop_grace(str(directory), 30.0) in (30.0, None)
    assert podrun_orders.deadline(str(directory), 60.0) == 60.0
    status = podrun_status.StatusFile(str(directory), "u")
    written_well = status.write({"containers": {}})
    assert written_well == (kind != "directory")
    try:
        LogFile(str(directory / "logs" / "main"), 0).close()
    except OSError:
        pass
    assert sorted(path.name for path in elsewhere.iterdir() if path.name != "values.json") == ["precious"]
    assert precious.read_text() == '{"version":1,"activeDeadlineSeconds":5,"grace":5}'


def plant(path: Path, kind: str, precious: Path) -> None:
    """Put something in the way that is no ordinary file."""
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        (path / "x").mkdir(parents=True)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "huge" and path.suffix == ".json":
        with path.open("wb") as file:
            file.truncate(1 << 40)


def test_a_status_that_would_be_too_large_is_shortened() -> None:
    """The helper reads 256 KiB; more would freeze the pod as it was seen last."""
    run = {"reason": "Error", "message": "\x00" * 4096, "started_at": 1.5, "finished_at": 2.5, "exit_code": 1}
    entry = {"kind": "app", "state": "terminated", "restart_count": 1, "run": 1, "signal": None, "last": run} | run
    for count in (1, 12, 100, podrun_spec.MOST_CONTAINERS):
        document = {"version": 1, "message": "x" * 4096, "containers": {f"c{n:062d}": entry for n in range(count)}}
        content = podrun_status.bounded(document)
        assert len(content) <= podrun_status.LIMIT
        read = json.loads(content)["containers"]
        assert {each["exit_code"] for each in read.values()} == {1}
        assert len(read) == count
        if count == 1:
            assert read == document["containers"]


def test_a_tree_deeper_than_pythons_stack_is_removed(tmp_path: Path) -> None:
    """A container makes such a one in its /tmp: `while mkdir d && cd d; do :; done`."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    folder = os.open(tree, os.O_RDONLY)
    for level in range(1200):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        if level % 100 == 0:
            os.symlink(str(outside), "link", dir_fd=folder)
            os.mkdir("closed", 0, dir_fd=folder)
            os.fchmod(folder, 0o500)
        os.close(folder)
        folder = inner
    os.close(folder)
    podrun_files.remove_tree(str(tree))
    left = tree.exists()
    subprocess.run(["rm", "-rf", str(tree)], check=True)  # pytest's own removal would fail at it
    assert not left
    podrun_files.remove_tree(str(tree))
    assert (outside / "kept").exists()


def walked(root: Path, path: str, make: str = "") -> str:
    """Where a path below `root` leads."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        chain = podrun_files.walk(descriptor, (str(root),), path, make)
        found = podrun_files.path_of(chain[-1])
        podrun_files.close(chain)
        return found
    finally:
        os.close(descriptor)


def test_links_inside_volumes_lead_nowhere(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volumes" / "v", tmp_path / "outside"
    (volume / "real").mkdir(parents=True)
    outside.mkdir()
    links = {
        "link": str(outside),
        "inner": "real",
        "up": "..",
        "round": "round",
        "proc": "/proc/self/root",
        "dots": "a/../..",
    }
    for name, target in links.items():
        (volume / name).symlink_to(target)
    (volume / "back").symlink_to(volume / "inner")
    for good in ("inner", "back", "real/../inner", "./real//"):
        assert walked(volume, good) == str(volume / "real")
    assert walked(volume, "inner/new/deep", "directory") == str(volume / "real/new/deep")
    for bad in ("link", "link/x", "inner/../..", "up", "up/v", "proc", "proc/etc", "dots"):
        with pytest.raises(podrun_files.Outside):
            walked(volume, bad, "directory")
    with pytest.raises(OSError, match="Too many"):
        walked(volume, "round")
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "volumes"]


CONTROLS = ["\0", "\n", "\x1b", "\x7f", "\x85", "\ud800"]


@pytest.mark.parametrize("control", CONTROLS)
def test_no_text_of_pod_json_holds_a_control_character(control: str) -> None:
    """Found by the security review: a NUL in workingDir, mountPath or terminationMessagePath added options."""
    mounts = [
        {"source": "volumes/x", "path": "/x", "sub_path": "y", "medium": "Memory"},
        {"source": "/h", "path": "/y", "absolute": True, "allowed": "/h", "type": "Directory"},
    ]
    fields = {"cwd": "/w", "mounts": mounts, "termination_message_path": "/m", "termination_message_policy": "File"}
    more = {"image_path": "/i.sif", "gpus": "nvidia", "kind": "app", "runtime": "host"}
    whole: Any = POD | {"hostname": "h", "containers": [CONTAINER | fields | more], "isolation": "required"}
    podrun_spec.parse(whole, {})
    seen = 0
    for path in texts(whole):
        if "argv" in path:
            continue
        broken = json.loads(json.dumps(whole))
        place = broken
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] += control
        with pytest.raises(SpecError):
            podrun_spec.parse(broken, {})
        seen += 1
    assert seen > 18


def texts(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts of a document are."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    if isinstance(tree, str):
        yield path
    for key, child in children:
        yield from texts(child, (*path, key))


def test_an_option_with_a_nul_is_never_joined(tmp_path: Path) -> None:
    root = podrun_root.Root()
    for option in ("/tmp\0--bind\0/\0/host", "/a\nb"):
        with pytest.raises(StartFailed, match="control character"):
            root.bind("/x", option, read_only=True)
        with pytest.raises(StartFailed, match="control character"):
            root.finished(option, read_only=True)
    with pytest.raises(StartFailed, match="NUL"):
        podrun_bwrap._descriptor([b"--setenv", b"LD_X", b"a\0--bind"], str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"allowed": "/other"}, "does not hold"),
        ({"allowed": "/scr"}, "does not hold"),
        ({"allowed": ""}, "does not hold"),
        ({"source": "/scratch/../etc"}, "source"),
        ({"type": "Anything"}, "type"),
    ],
)
def test_host_paths_of_pod_json(fields: dict[str, Any], text: str) -> None:
    entry = {"source": "/scratch/x", "absolute": True, "path": "/x", "allowed": "/scratch"}
    assert parsed(mounts=[entry]).containers[0].mounts[0].allowed == "/scratch"
    with pytest.raises(SpecError, match=text):
        parsed(mounts=[entry | fields])


def test_too_many_containers() -> None:
    many = [CONTAINER | {"name": f"c{n}"} for n in range(podrun_spec.MOST_CONTAINERS + 1)]
    with pytest.raises(SpecError, match="more than 256"):
        podrun_spec.parse(POD | {"containers": many}, {})


def test_a_probe_that_hangs_is_no_answer(tmp_path: Path) -> None:
    """Nor does it hang podrun: what it left behind holds its output."""
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\nsleep 1000 &\nsleep 1000\n")
    program.chmod(0o755)
    answer = podrun_bwrap.probe(str(program), 0.2)
    assert (answer.found, answer.certain, answer.why) == (None, False, f"{program} did not answer within 0.2 s")
    assert podrun_bwrap.probe(str(tmp_path / "missing")).certain


@pytest.mark.parametrize(
    ("says", "certain"),
    [
        ("Creating new namespace failed: Operation not permitted", True),
        ("Creating new namespace failed: Resource temporarily unavailable", False),
        ("Can't mount proc: Cannot allocate memory", False),
    ],
)
def test_what_bubblewrap_says_about_itself(tmp_path: Path, says: str, certain: bool) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f'#!/bin/sh\necho "bwrap: {says}" >&2; exit 1\n')
    program.chmod(0o755)
    answer = podrun_bwrap.probe(str(program))
    assert (answer.found, answer.certain, answer.why) == (None, certain, f"bwrap: {says}")


def test_mounts_are_compared_by_the_table_where_the_tree_is_closed(tmp_path: Path) -> None:
    """Apptainer's: an image that FUSE serves cannot be walked from outside."""
    (tmp_path / "a b").mkdir()
    table = tmp_path / "mountinfo"
    table.write_text("40 1 0:9 /x\\040y /m\\134n rw - tmpfs t rw\n")
    assert podrun_verify.mounts_of(str(table)) == [podrun_verify.MountEntry(40, b"0:9", b"/x y", b"/m\\n")]
    root, inside = os.open("/proc", os.O_PATH), os.open(tmp_path / "a b", os.O_PATH)
    try:
        right = podrun_verify.Verifier([(root, "/p")])
        assert right.wrong(os.getpid()) == ""  # it is mounted here too
        twice = podrun_verify.Verifier([(root, "/p"), (inside, "/i")])
        assert "mount /i is not what it was" in twice.wrong(os.getpid())
        assert "cannot be looked at" in right.wrong(2**22 + 1)
        for verifier in (right, twice):
            verifier.close()
    finally:
        podrun_files.close([root, inside])
