"""podrun's files and small parts: CRI logs, status.json on a full file system, records, the clock, pod.json."""

from __future__ import annotations

import errno
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
    podrun_logs,
    podrun_loop,
    podrun_orders,
    podrun_root,
    podrun_setup,
    podrun_spec,
    podrun_status,
)
from pbs_adapter.remote.podrun_logs import ContainerLog, Lines, LogFile, LogPump, stamp
from pbs_adapter.remote.podrun_process import Exit
from pbs_adapter.remote.podrun_spec import SpecError
from pbs_adapter.remote.podrun_state import Record
from pbs_adapter.remote.podrun_volumes import StartFailed

AT = 1796030799.123456
MARK = b"2026-11-30T09:26:39.123456001Z stdout "


def test_stamp_has_nanoseconds() -> None:
    assert stamp(AT).startswith(b"2026-11-30T09:26:39.12345")
    assert stamp(5.0) == b"1970-01-01T00:00:05.000000000Z"


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\n"], [b"F a"]),
        ([b"a", b"b\nc\n"], [b"F ab", b"F c"]),
        ([b"\n\n"], [b"F ", b"F "]),
        ([b"rest"], [b"P rest"]),
        ([b"x" * 16384 + b"\n"], [b"F " + b"x" * 16384]),
        ([b"x" * 16385 + b"\n"], [b"P " + b"x" * 16384, b"F x"]),
        ([b"x" * 20000, b"y" * 20000], [b"P " + b"x" * 16384, b"P " + b"x" * 3616 + b"y" * 12768, b"P " + b"y" * 7232]),
        ([b"\xff\x00\r\n"], [b"F \xff\x00\r"]),
    ],
)
def test_cri_lines(chunks: list[bytes], expected: list[bytes]) -> None:
    lines = Lines(b"stdout")
    out = b"".join([lines.feed(chunk, 5.0) for chunk in chunks] + [lines.finish(5.0)])
    prefix = stamp(5.0) + b" stdout "
    assert out == b"".join(prefix + text + b"\n" for text in expected)


def test_rotation_keeps_five_parts_and_two_runs(tmp_path: Path) -> None:
    for run in range(3):
        log = LogFile(str(tmp_path), run, max_file=100)
        for index in range(40):
            log.write(b"%02d %s\n" % (index, b"x" * 46))
        log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{run}.log{part}" for run in (1, 2) for part in ("", ".1", ".2", ".3", ".4")
    )
    kept = b"".join((tmp_path / name).read_bytes() for name in ("2.log.4", "2.log.3", "2.log.2", "2.log.1", "2.log"))
    assert [int(line[:2]) for line in kept.splitlines()] == list(range(30, 40))


def test_pump_moves_output_and_can_cut(tmp_path: Path) -> None:
    pump = LogPump()
    pump.start()
    whole, held = ContainerLog(str(tmp_path / "whole"), 0), ContainerLog(str(tmp_path / "held"), 0)
    for log in (whole, held):
        pump.attach(log)
        os.write(log.stdout, b"out\n")
        os.write(log.stderr, b"err")
    whole.started()
    assert whole.done.wait(30)
    assert not held.done.is_set()
    pump.cut(held)
    assert held.done.wait(30)
    held.started()
    pump.stop(30)
    assert not pump.is_alive()
    for name in ("whole", "held"):
        lines = sorted(line.split(b" ", 1)[1] for line in (tmp_path / name / "0.log").read_bytes().splitlines())
        assert lines == [b"stderr P err", b"stdout F out"]
    assert whole.last_lines() in (b"out\nerr", b"errout\n")


def test_lines_that_cannot_be_written_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogFile(str(tmp_path), 0)
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(podrun_logs.os, "write", full)
    log.write(b"lost\n")
    log.write(b"lost too\n")
    monkeypatch.setattr(podrun_logs.os, "write", real)
    log.write(b"kept\n")
    log.close()
    assert (tmp_path / "0.log").read_bytes() == b"kept\n"
    assert log.dropped == 14
    assert capsys.readouterr().out.count("are lost") == 1


def test_status_file_replaces_announces_and_uses_its_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "pods" / "u"
    directory.mkdir(parents=True)
    status = podrun_status.StatusFile(str(directory), "u")
    assert (directory / ".reserve").stat().st_size == 64 * 1024
    assert status.write({"a": 1})
    assert json.loads((directory / "status.json").read_text()) == {"a": 1, "seq": 1}
    first = (tmp_path / "dirty" / "u").stat().st_ino
    real = os.write

    def quota(descriptor: int, data: Any) -> int:
        if (directory / ".reserve").exists():
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return real(descriptor, data)

    monkeypatch.setattr(podrun_status.os, "write", quota)
    assert not status.write({"a": 2})
    assert status.full == "Disk quota exceeded"
    assert status.write({"a": 2}, last=True)
    assert json.loads((directory / "status.json").read_text()) == {"a": 2, "seq": 3}
    assert (tmp_path / "dirty" / "u").stat().st_ino != first
    status.release()
    assert sorted(path.name for path in directory.iterdir()) == ["status.json"]


def test_status_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    assert not podrun_status.StatusFile(str(directory), "u").write({})


CONTAINER = {"name": "main", "kind": "app", "argv": ["true"], "env": [], "mounts": []}
POD = {"version": 1, "uid": "u", "name": "hello", "namespace": "default", "restart_policy": "Always"}


def parsed(**fields: Any) -> podrun_spec.Pod:
    return podrun_spec.parse(POD | {"containers": [CONTAINER | fields]}, {"key": b"\xff", "nul": b"\0"})


def test_spec_defaults_and_values() -> None:
    pod = parsed(argv=["a", {"secret": "key"}, "\udcff"], env=[["A", "b"]], cwd="/x")
    container = pod.containers[0]
    assert (container.argv, container.env, container.cwd) == ((b"a", b"\xff", b"\xff"), ((b"A", b"b"),), "/x")
    assert (pod.grace, pod.deadline, pod.walltime, pod.backoff) == (30.0, None, None, (10.0, 300.0, 600.0))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"argv": []}, "argv is empty"),
        ({"argv": [1]}, "a string or a secret"),
        ({"argv": [{"secret": "missing"}]}, "no key 'missing'"),
        ({"argv": [{"secret": "nul"}]}, "NUL"),
        ({"env": [["A=B", ""]]}, "name of a variable"),
        ({"env": [["", ""]]}, "name of a variable"),
        ({"env": ["A"]}, "pairs"),
        ({"name": "../x"}, "bad name"),
        ({"name": 1}, "wrong type"),
        ({"kind": "sidecar"}, "bad name or kind"),
        ({"cwd": "x"}, "cwd is not absolute"),
        ({"mounts": [{"source": "volumes/x", "path": "x"}]}, "path must be absolute"),
        ({"mounts": [{"source": "volumes/x", "path": "/a/.."}]}, "path must be absolute"),
        ({"mounts": [{"source": "../x", "path": "/x"}]}, "source"),
        ({"mounts": [{"source": "/x", "path": "/x"}]}, "does not fit absolute=False"),
        ({"mounts": [{"source": "volumes/x", "path": "/x", "sub_path": "../y"}]}, "sub_path"),
        ({"mounts": [3]}, "an object is needed"),
    ],
)
def test_spec_mistakes(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        parsed(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"restart_policy": "Sometimes"}, "restart_policy"),
        ({"containers": []}, "at least one"),
        ({"grace": True}, "type"),
    ],
)
def test_pod_mistakes(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        podrun_spec.parse(POD | {"containers": [CONTAINER]} | fields, {})


def test_record_through_two_runs() -> None:
    pod = parsed()
    record = Record(pod.containers[0], pod)
    assert record.shown(False)["reason"] == "ContainerCreating"
    for run, now in ((0, 10.0), (1, 20.0)):
        record.begin()
        record.started(42 + run, now, 1000.0 + now)
        assert record.shown(False)["pid"] == 42 + run
        record.ended(Exit(137, 9), "Error", "text", now + 1, 1001.0 + now)
    assert record.due == 31.0
    shown = record.shown(False)
    assert (shown["state"], shown["exit_code"], shown["signal"], shown["restart_count"]) == ("terminated", 137, 9, 1)
    assert (shown["started_at"], shown["finished_at"], shown["last"]["run"]) == (1020.0, 1021.0, 0)
    waiting = record.shown(True)
    assert (waiting["state"], waiting["last"]["run"], waiting["reason"]) == ("waiting", 1, "CrashLoopBackOff")
    assert waiting["message"] == "back-off 10s restarting failed container=main pod=hello_default(u)"


def test_clock_leaves_suspension_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 101.0, 161.0, 162.0])
    monkeypatch.setattr(podrun_loop.time, "monotonic", lambda: next(times))
    clock = podrun_loop.Clock()
    clock.tick()
    clock.resumed()
    clock.tick()  # a minute in suspension
    assert clock.now == pytest.approx(101.25)
    clock.tick()
    assert clock.now == pytest.approx(102.25)


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


def test_changes_of_the_setup_lines() -> None:
    dump = b"A=1\0B=new\nline\0PATH=/x=y\0_=/bin/cat\0PWD=/\0SHLVL=1\0BASH_FUNC_module%%=() { :; }\0EMPTY=\0"
    before = {b"A": b"1", b"PATH": b"/bin"}
    assert podrun_setup.changes(before, dump) == {b"B": b"new\nline", b"PATH": b"/x=y", b"EMPTY": b""}


def test_folder_without_the_mount_point_is_rebuilt() -> None:
    root = podrun_root.Root()
    root.host_tree(["/etc/made-up/x", "/etc/passwd", "/data", "/data/etc"], ["/etc/made-up/x/message"])
    options = root.finished("/", read_only=False)
    at = options.index(b"/etc", options.index(b"/dev"))
    assert options[at - 1] == b"--tmpfs"
    assert options.count(b"/etc/passwd") == 2  # bound once, from itself
    assert options[-4:] == [b"--remount-ro", b"/etc", b"--chdir", b"/"]


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
