"""Logs through the helper, and that one slow reader holds up nobody."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from helperkit import Helper, HelperError, Site, until

from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Frame


def record(text: str, stream: str = "stdout", tag: str = "F") -> bytes:
    return f"2026-11-30T10:00:01.000000000Z {stream} {tag} {text}\n".encode()


class Pod:
    """A pod directory with a status and logs, written by the test in podrun's place."""

    def __init__(self, site: Site, helper: Helper) -> None:
        self.site, self.helper, self.uid = site, helper, site.uid
        with pytest.raises(HelperError):
            site.submit(helper, site.uid, options="-q nosuchqueue")
        self.path = site.pod(site.uid)
        self.logs = self.path / "logs" / "main"
        self.logs.mkdir(parents=True)

    def status(self, state: str, run: int = 0, phase: str = "Running", **more: Any) -> None:
        main = {"kind": "app", "state": state, "run": run, "restart_count": run, **more}
        tree = {"version": 1, "uid": self.uid, "seq": 1, "phase": phase, "containers": {"main": main}}
        (self.path / ".status").write_text(json.dumps(tree))
        (self.path / ".status").replace(self.path / "status.json")

    def write(self, name: str, data: bytes) -> None:
        with open(self.logs / name, "ab") as file:
            file.write(data)

    def read(self, **query: Any) -> bytes:
        return b"".join(self.helper.stream(uid=self.uid, **{"container": "main", **query}))


@pytest.fixture
def pod(site: Site) -> Pod:
    return Pod(site, site.helper())


class Follower:
    """Reads a followed log in a thread."""

    def __init__(self, pod: Pod, **query: Any) -> None:
        self.data = b""
        self.ended = False
        self._chunks = pod.helper.stream(uid=pod.uid, container="main", follow=True, **query)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for chunk in self._chunks:
            self.data += chunk
        self.ended = True

    def expect(self, data: bytes) -> None:
        until(lambda: self.data == data, f"the log shows {data[-200:]!r}, not {self.data[-200:]!r}")

    def expect_end(self, data: bytes) -> None:
        until(lambda: self.ended, "the stream ends")
        assert self.data == data


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "old\n1\n2\n3\n"),
        ({"tail_lines": 0}, ""),
        ({"tail_lines": 1}, "3\n"),
        ({"tail_lines": 4}, "old\n1\n2\n3\n"),
        ({"tail_lines": 3, "limit_bytes": 3}, "1\n2"),
        ({"stream": "Stderr"}, "2\n"),
        ({"timestamps": True, "tail_lines": 1}, "2026-11-30T10:00:01.000000000Z 3\n"),
        ({"since_time": 1796032801.5}, ""),
        ({"since_time": 1796032800.5, "tail_lines": 2}, "2\n3\n"),
        ({"previous": True}, "earlier\n"),
    ],
)
def test_options(pod: Pod, query: dict[str, Any], expected: str) -> None:
    pod.write("0.log", record("earlier"))
    pod.write("1.log.1", record("old"))
    pod.write("1.log", record("1") + record("2", "stderr") + record("3"))
    pod.status("running", 1, last={"run": 0, "exit_code": 1})
    assert pod.read(**query).decode() == expected


def test_logs_of_a_real_run_are_followed_to_its_end(site: Site) -> None:
    helper = site.helper()
    site.submit(helper, site.uid)
    site.await_observed(helper, site.uid, lambda o: o["status"] is not None, "runs")
    chunks = helper.stream(uid=site.uid, container="main", follow=True)
    assert next(chunks) == b"started\n"
    (site.pod(site.uid) / "finish").touch()
    assert b"".join(chunks) == b"ended\n"


def test_follow_across_rotation_and_to_the_end(pod: Pod) -> None:
    pod.write("0.log", record("1"))
    pod.status("running")
    follower = Follower(pod)
    follower.expect(b"1\n")
    pod.write("0.log", record("half", tag="P"))
    follower.expect(b"1\nhalf")
    for name in ("0.log.1", "0.log"):
        if (pod.logs / name).exists():
            (pod.logs / name).rename(pod.logs / f"0.log.{2 if name.endswith('1') else 1}")
    pod.write("0.log", record(" whole") + record("2"))
    follower.expect(b"1\nhalf whole\n2\n")
    (pod.logs / "0.log.1").rename(pod.logs / "0.log.2")
    (pod.logs / "0.log").rename(pod.logs / "0.log.1")
    pod.write("0.log.1", record("late"))
    pod.write("0.log", record("last"))
    pod.status("terminated", phase="Ended")
    follower.expect_end(b"1\nhalf whole\n2\nlate\nlast\n")


def test_follow_ends_with_its_run_when_the_container_restarts(pod: Pod) -> None:
    pod.write("0.log", record("first run"))
    pod.status("running")
    follower = Follower(pod)
    follower.expect(b"first run\n")
    pod.write("1.log", record("second run"))
    pod.status("running", 1, last={"run": 0, "exit_code": 1})
    follower.expect_end(b"first run\n")


def test_follow_starts_before_the_first_line(pod: Pod) -> None:
    pod.status("running")
    follower = Follower(pod)
    pod.write("0.log", record("at last"))
    follower.expect(b"at last\n")
    pod.status("terminated", phase="Ended")
    follower.expect_end(b"at last\n")


def test_limit_ends_a_follow(pod: Pod) -> None:
    pod.write("0.log", record("12345"))
    pod.status("running")
    Follower(pod, limit_bytes=3).expect_end(b"123")


def test_a_container_that_has_not_started(pod: Pod) -> None:
    for follow in (False, True):
        with pytest.raises(HelperError, match=r'permanent: container "main" in pod "hello" is waiting to start'):
            pod.read(follow=follow)
    with pytest.raises(HelperError, match=r"container nope is not valid for pod hello"):
        pod.read(container="nope")
    pod.status("waiting", reason="PodInitializing")
    with pytest.raises(HelperError, match=r"is waiting to start: PodInitializing"):
        pod.read()
    pod.status("running")
    with pytest.raises(HelperError, match=r'previous terminated container "main" in pod "hello" not found'):
        pod.read(previous=True)
    with pytest.raises(HelperError, match=r"not a container name"):
        pod.read(container="../main")


def test_logs_are_read_without_a_believable_status(pod: Pod) -> None:
    pod.write("0.log", record("first"))
    pod.write("1.log", record("second"))
    (pod.path / "status.json").write_text("{")
    assert pod.read() == b"second\n"
    assert pod.read(previous=True) == b"first\n"


def test_links_out_of_the_directory_are_not_followed(pod: Pod, tmp_path: Path) -> None:
    pod.status("running")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "0.log").write_bytes(record("secret"))
    (pod.logs / "0.log").symlink_to(secret / "0.log")
    with pytest.raises(HelperError, match="cannot be read"):
        pod.read()
    (pod.logs / "0.log").unlink()
    pod.logs.rmdir()
    pod.logs.symlink_to(secret)
    with pytest.raises(HelperError, match="cannot be read"):
        pod.read()


def test_any_bytes_and_many_of_them(pod: Pod) -> None:
    lines = [os.urandom(3000).replace(b"\n", b"") for _ in range(400)]
    pod.write("0.log", b"".join(b"2026-11-30T10:00:01.000000000Z stdout F " + line + b"\n" for line in lines))
    pod.status("terminated")
    assert pod.read() == b"".join(line + b"\n" for line in lines)
    assert pod.read(tail_lines=50) == b"".join(line + b"\n" for line in lines[-50:])


def test_a_reader_without_credit_holds_up_nobody(pod: Pod) -> None:
    pod.write("0.log", record("x" * 1000) * 2000)
    pod.status("terminated")
    ident = pod.helper.start("logs", uid=pod.uid, container="main")
    received = 0
    while received < wire.CREDIT_WINDOW:
        received += len(pod.helper.frame(ident).body)
    assert received == wire.CREDIT_WINDOW
    assert pod.helper.ask("jobs", after="", wait=0)["observations"]
    pod.helper.send(Frame(ident, wire.CREDIT, {"bytes": 10}))
    assert len(pod.helper.frame(ident).body) == 10
    pod.helper.send(Frame(ident, wire.CANCEL))
    assert pod.helper.frame(ident).kind == wire.END


def test_cancelling_a_follow(pod: Pod) -> None:
    pod.status("running")
    ident = pod.helper.start("logs", uid=pod.uid, container="main", follow=True)
    pod.helper.send(Frame(ident, wire.CANCEL))
    assert pod.helper.frame(ident).kind == wire.END


def test_too_many_streams_are_refused(pod: Pod) -> None:
    pod.status("running")
    idents = [pod.helper.start("logs", uid=pod.uid, container="main", follow=True) for _ in range(70)]
    refused = [pod.helper.frame(ident) for ident in idents[-6:]]
    assert [frame.head["kind"] for frame in refused] == ["retry"] * 6
    assert pod.helper.ask("write", uid=pod.uid, files=[], volumes=[]) == {}
    for _ in range(20):  # stern on a Job took the poll's place, and the account was unusable
        assert pod.helper.ask("jobs", after="", wait=0)["observations"]
    assert pod.helper.census("queues", "vnodes")[1]
    for ident in idents[:6]:  # those that were refused hold no place
        pod.helper.send(Frame(ident, wire.CANCEL))
        assert pod.helper.frame(ident).kind == wire.END
    again = [pod.helper.start("logs", uid=pod.uid, container="main", follow=True) for _ in range(7)]
    assert pod.helper.frame(again[-1]).head["kind"] == "retry"
    pod.helper.send(Frame(again[0], wire.CANCEL))
    assert pod.helper.frame(again[0]).kind == wire.END
    pod.helper.close()


def test_volumes_are_written_and_refreshed(pod: Pod) -> None:
    def write(**contents: bytes) -> None:
        entries = [{"path": name, "mode": 0o640, "size": len(data)} for name, data in contents.items()]
        cfg = {"root": "volumes/cfg", "files": entries, "managed": True}
        volumes = [cfg, {"root": "volumes/empty", "files": []}]
        files = [{"path": "secrets/values.json", "mode": 0o600, "size": 2}]
        body = b"{}" + b"".join(contents.values())
        pod.helper.ask("write", body, uid=pod.uid, files=files, volumes=volumes)

    root = pod.path / "volumes/cfg"
    large = os.urandom(3 * wire.MAX_BODY)
    write(a=b"1", large=large)
    assert (root / "large").read_bytes() == large
    assert (root / "a").stat().st_mode & 0o777 == 0o640
    assert (pod.path / "volumes/empty").is_dir()
    assert (pod.path / "secrets/values.json").read_bytes() == b"{}"
    before = os.readlink(root / "..data")
    write(a=b"2")
    assert os.readlink(root / "..data") != before
    assert sorted(name for name in os.listdir(root) if not name.startswith("..")) == ["a"]
    assert (root / "a").read_bytes() == b"2"
    (pod.path / "volumes/empty/own").touch()
    write()
    assert [name for name in os.listdir(root) if not name.startswith("..")] == []
    assert (pod.path / "volumes/empty/own").exists()


def test_a_volume_that_became_a_link_is_not_written_through(pod: Pod, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (pod.path / "volumes").mkdir()
    (pod.path / "volumes/cfg").symlink_to(outside)
    entries = [{"path": "a", "mode": 0o600, "size": 1}]
    with pytest.raises(HelperError, match=r"permanent: file system"):
        pod.helper.ask("write", b"x", uid=pod.uid, files=[], volumes=[{"root": "volumes/cfg", "files": entries}])
    assert os.listdir(outside) == []
    for path in ("../x", "/etc/x", "a/../../x"):
        with pytest.raises(HelperError):
            pod.helper.ask("write", b"x", uid=pod.uid, files=[{"path": path, "mode": 384, "size": 1}], volumes=[])
