"""Pod directories on disk: volumes as the kubelet lays them out, and no way out of the directory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pbs_adapter.remote import helper_dirs
from pbs_adapter.remote import helper_files as files
from pbs_adapter.remote.helper_dirs import Spool
from pbs_adapter.remote.helper_errors import OpError
from pbs_adapter.remote.helper_status import parse_status
from pbs_adapter.remote.helper_volumes import File, Volume, write_tree, write_volume

BODY = '{"version":1,"uid":"u","phase":"Running","seq":1,"containers":{"main":{"state":"running"%s}}%s}'


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def tree(root: Path) -> dict[str, bytes]:
    """What a container sees: files through the top-level links."""
    found: dict[str, bytes] = {}
    for top in root.iterdir():
        if top.name.startswith(".."):
            continue
        inner = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
        found |= {str(path.relative_to(root)): path.read_bytes() for path in inner}
    return found


def volume(**contents: bytes) -> Volume:
    return Volume("volumes/cfg", [File(name.replace("__", "/"), 0o644, data) for name, data in contents.items()])


def test_a_volume_is_swapped_in_one_step(tmp_path: Path, pod: int) -> None:
    root = tmp_path / "volumes/cfg"
    assert write_volume(pod, volume(a=b"1", dir__b=b"2", dir__deep__c=b"\xff\0"))
    assert tree(root) == {"a": b"1", "dir/b": b"2", "dir/deep/c": b"\xff\0"}
    assert os.readlink(root / "a") == "..data/a"
    first = os.readlink(root / "..data")
    assert first.startswith("..2")
    assert write_volume(pod, volume(a=b"changed", new=b"3"))
    assert tree(root) == {"a": b"changed", "new": b"3"}
    assert sorted(os.listdir(root)) == sorted(["..data", os.readlink(root / "..data"), "a", "new"])


def test_an_unchanged_volume_is_left_alone(tmp_path: Path, pod: int) -> None:
    assert write_volume(pod, volume(a=b"1", dir__b=b"2"))
    before = os.readlink(tmp_path / "volumes/cfg/..data")
    assert not write_volume(pod, volume(dir__b=b"2", a=b"1"))
    assert os.readlink(tmp_path / "volumes/cfg/..data") == before
    same_bytes_other_mode = Volume("volumes/cfg", [File("a", 0o600, b"1"), File("dir/b", 0o644, b"2")])
    assert write_volume(pod, same_bytes_other_mode)
    assert (tmp_path / "volumes/cfg/a").stat().st_mode & 0o777 == 0o600


def test_an_empty_dir_is_only_made(tmp_path: Path, pod: int) -> None:
    write_volume(pod, Volume("volumes/data", []))
    (tmp_path / "volumes/data/mine").write_text("x")
    write_volume(pod, Volume("volumes/data", []))
    assert (tmp_path / "volumes/data/mine").exists()
    assert (tmp_path / "volumes/data").stat().st_mode & 0o777 == 0o700


def test_a_volume_that_lost_its_last_file_is_emptied(tmp_path: Path, pod: int) -> None:
    root = tmp_path / "volumes/cfg"
    write_volume(pod, volume(a=b"1", dir__b=b"2"))
    nothing = Volume("volumes/cfg", [], managed=True)
    assert write_volume(pod, nothing)
    assert tree(root) == {}
    assert os.listdir(root / "..data") == []
    assert sorted(os.listdir(root)) == sorted(["..data", os.readlink(root / "..data")])
    assert not write_volume(pod, nothing)
    assert write_volume(pod, volume(a=b"back"))
    assert tree(root) == {"a": b"back"}


def test_what_the_pod_put_into_a_volume_does_not_lead_out(tmp_path: Path, pod: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "volumes/cfg"
    root.mkdir(parents=True)
    (root / "..data").symlink_to(outside)
    (root / "a").symlink_to(outside / "file")
    (root / "..2020_stale").symlink_to(outside)
    write_volume(pod, volume(a=b"1"))
    assert tree(root) == {"a": b"1"}
    assert os.listdir(outside) == []
    (tmp_path / "volumes/link").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        write_volume(pod, Volume("volumes/link", [File("a", 0o644, b"1")]))
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        write_tree(pod, [File("volumes/link/a", 0o644, b"1")])
    assert os.listdir(outside) == []


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../b", "a//b", "./a", "a/", "a\0b", "a/" * 3000])
def test_paths_that_could_lead_out_are_refused(pod: int, path: str) -> None:
    with pytest.raises(OSError, match="not a path"):
        write_tree(pod, [File(path, 0o600, b"")])


def test_files_are_replaced_whole_and_with_their_mode(tmp_path: Path, pod: int) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "file").symlink_to("target")
    files.replace("file", pod, b"new", 0o640, sync=True)
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["file", "target"]


def test_only_ordinary_files_of_bounded_size_are_read(tmp_path: Path, pod: int) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    assert files.read_bounded("file", pod, 5) == b"12345"
    for name, limit in (("file", 4), ("pipe", 9), ("link", 9), (".", 9)):
        with pytest.raises(OSError, match=r"larger|ordinary|symbolic"):
            files.read_bounded(name, pod, limit)


@pytest.mark.parametrize(
    ("container", "top", "good"),
    [
        ("", "", True),
        (',"exit_code":3,"restart_count":2,"last":{"exit_code":1,"run":0}', ',"result":null,"unknown":[1]', True),
        (',"exit_code":true', "", False),
        (',"exit_code":"0"', "", False),
        (',"restart_count":null', "", False),
        (',"last":[]', "", False),
        (',"last":{"run":"x"}', "", False),
        (',"message":5', "", False),
        (',"started_at":NaN', "", False),
        (',"started_at":1e999', "", False),
        (',"pid":' + "9" * 5000, "", False),
        ("", ',"result":"Maybe"', False),
        ("", ',"result":"Succeeded"', False),
        (',"exit_code":3,"state":"terminated"', ',"result":"Succeeded"', False),
        (',"exit_code":0,"state":"terminated"', ',"result":"Succeeded"', True),
        ("", ',"host":{}', False),
        ("", ',"x":' + "[" * 20 + "]" * 20, True),  # left out
        ("", ',"x":' + "[" * 100_000, False),
        ("", ',"message":"\\ud800"', True),  # replaced
    ],
)
def test_status_is_believed_only_in_the_right_shape(container: str, top: str, good: bool) -> None:
    status, problem = parse_status((BODY % (container, top)).encode(), "u")
    assert (status is not None) == good
    assert bool(problem) != good
    assert len(problem) < 500


def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"), "instance", "alpha", "token")


def test_a_pod_directory_appears_whole(tmp_path: Path) -> None:
    s = spool(tmp_path)
    assert s.marks("uid") is None
    assert s.stage("uid", [File("pod.json", 0o600, b"{}")], [volume(a=b"1")])
    assert not s.stage("uid", [], [])
    assert s.uids() == ["uid"]
    with pytest.raises(OSError, match="not a path"):
        s.stage("bad", [File("../x", 0o600, b"")], [])
    assert os.listdir(s.pods) == ["uid"]


def test_the_highest_epoch_wins(tmp_path: Path) -> None:
    s, later = spool(tmp_path), Spool(str(tmp_path / "spool"), "instance", "alpha", "later")
    s.lead(3)
    assert s.is_ours()
    s.check_epoch(3)
    later.lead(3)
    assert not s.is_ours()
    later.lead(4)
    for call in (s.check_epoch, s.lead):
        with pytest.raises(OpError) as caught:
            call(3)
        assert caught.value.kind == "fenced"


def test_a_forged_job_id_is_none(tmp_path: Path) -> None:
    s = spool(tmp_path)
    s.stage("uid", [File("job.id", 0o600, b"1.alpha\n")], [])
    assert s.pod_path("uid").endswith("/pods/uid")
    for text, expected in ((b"1.alpha\n", "1.alpha"), (b"-W force", None), (b"1.a 2.b", None), (b"\xff", None)):
        s.write("uid", [File("job.id", 0o600, text)], [])
        marks = s.marks("uid")
        assert marks is not None
        assert marks.job_id == expected


def deep(folder: Path, levels: int) -> None:
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_a_tree_of_any_depth_is_removed_with_a_few_descriptors(tmp_path: Path, pod: int) -> None:
    deep(tmp_path / "deep", 1500)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, before[1]))
    try:
        files.remove_tree("deep", pod)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert os.listdir(tmp_path) == []


def test_a_wide_tree_is_removed_in_batches(tmp_path: Path, pod: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BATCH", 7)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    for top in range(20):
        for inner in range(20):
            (tmp_path / f"wide/{top}/{inner}").mkdir(parents=True)
            (tmp_path / f"wide/{top}/{inner}/file").touch()
        (tmp_path / f"wide/{top}/link").symlink_to(outside)
        os.mkfifo(tmp_path / f"wide/{top}/pipe")
    files.remove_tree("wide", pod)
    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(outside) == ["precious"]


#: Removes `tree` in the directory of its argument, as an ordinary user: root may read and write everywhere.
AS_USER = """\
import os, sys
from pbs_adapter.remote import helper_files as files
if os.getuid() == 0:
    os.chown(sys.argv[1], 65534, -1)
    for root, names, others in os.walk(sys.argv[1], topdown=False):
        for name in names + others:
            os.chown(os.path.join(root, name), 65534, -1, follow_symlinks=False)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.chmod(sys.argv[1] + "/tree/a/b", 0)
os.chmod(sys.argv[1] + "/tree/a", 0o500)
os.chmod(sys.argv[1] + "/tree", 0)
with files.directory(sys.argv[1]) as fd:
    files.remove_tree("tree", fd)
print(os.listdir(sys.argv[1]))
"""


def test_what_its_owner_made_unreadable_is_removed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "work/tree/a/b/c").mkdir(parents=True)
        (Path(folder) / "work/tree/a/b/file").touch()
        done = subprocess.run(
            [sys.executable, "-c", AS_USER, f"{folder}/work"], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("[]\n", "")


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path, pod: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "stuck", "z"):
        (tmp_path / "tree/inner").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree/inner" / name).touch()
        (tmp_path / "tree" / name).touch()
    unlink = os.unlink

    def busy(name: str, *, dir_fd: int | None = None) -> None:
        if name == "stuck":
            raise OSError(16, "Device or resource busy")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", busy)
    with pytest.raises(OSError, match=r"busy|not empty"):
        files.remove_tree("tree", pod)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert [name.rpartition("/")[2] for name in left] == ["stuck", "stuck"]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "large"])
def test_a_log_is_opened_whatever_is_in_its_place(tmp_path: Path, pod: int, kind: str) -> None:
    for name in ("log", "log.1"):
        if kind == "pipe":
            os.mkfifo(tmp_path / name)
        elif kind == "link":
            (tmp_path / name).symlink_to("/etc/passwd")
        elif kind == "folder":
            (tmp_path / name / "inner").mkdir(parents=True)
        else:
            (tmp_path / name).write_bytes(b"x" * 101)
    for text in (b"one\n", b"two\n"):
        fd = files.open_log("log", pod, 100)
        os.write(fd, text)
        os.close(fd)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_a_directory_in_a_files_place_is_moved_aside(tmp_path: Path, pod: int) -> None:
    (tmp_path / "epoch/inner").mkdir(parents=True)
    files.replace("epoch", pod, b"1")
    assert (tmp_path / "epoch").read_bytes() == b"1"


def test_a_directory_of_millions_still_shows_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_dirs, "_MOST_NAMES", 50)
    s = spool(tmp_path)
    s.stage("uid", [File("job.id", 0o600, b"1.alpha")], [])
    for index in range(200):
        Path(s.pod_path("uid"), f"x{index}").touch()
    Path(s.pod_path("uid"), "submit.lock").mkdir()
    marks = s.marks("uid")
    assert marks is not None
    assert (marks.job_id, marks.locked, marks.claimed) == ("1.alpha", True, False)


def test_a_dirty_list_of_junk_gives_its_marks(tmp_path: Path) -> None:
    s = spool(tmp_path)
    dirty = Path(s.path, "dirty")
    for index in range(1500):
        (dirty / f".junk{index}").touch()
    (dirty / "uid").touch()
    taken: list[str] = []
    for _ in range(5):
        taken += s.take_dirty()
    assert taken == ["uid"]
    assert os.listdir(dirty) == []
