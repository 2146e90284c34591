"""podrun's files and small parts: CRI logs, status.json on a full file system, records, the clock, pod.json."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pbs_adapter.remote import (
    podrun_logs,
    podrun_loop,
    podrun_root,
    podrun_setup,
    podrun_spec,
    podrun_status,
)
from pbs_adapter.remote.podrun_logs import ContainerLog, Lines, LogFile, LogPump, stamp
from pbs_adapter.remote.podrun_process import Exit
from pbs_adapter.remote.podrun_spec import SpecError
from pbs_adapter.remote.podrun_state import Record

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
