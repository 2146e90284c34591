"""The apptainer runtime of podrun, as far as no apptainer is needed: quoting, names, SIF headers, OOM counters."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import pytest

from pbs_adapter.remote import podrun_apptainer, podrun_oom, podrun_shellenv
from pbs_adapter.remote.podrun_apptainer import Apptainer
from pbs_adapter.remote.podrun_process import Exit
from pbs_adapter.remote.podrun_runtime import Places, StartFailed
from pbs_adapter.remote.podrun_sif import working_directory
from pbs_adapter.remote.podrun_spec import Container, Mount

ALL = bytes(range(1, 256))


@pytest.mark.parametrize("value", [ALL, b"", b"\x01ab\xffcd", b"lit \\u000A \\n", b"$(id) `id` ${HOME}", b"it's"])
def test_a_shell_reads_the_very_bytes(value: bytes) -> None:
    command = b"printf %s " + podrun_shellenv.quoted(value)
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout == value


def test_names_that_no_shell_variable_can_have() -> None:
    assert podrun_shellenv.impossible([b"A", b"_b1"]) is None
    for name in (b"a.b", b"1a", b"a-b", b"a b", b"UID", b"a;id", b"a\n", b"", "é".encode()):
        assert podrun_shellenv.impossible([b"OK", name]) == name


def test_the_script_waits_first() -> None:
    lines = podrun_shellenv.script({b"A": b"1", b"B": b"\n"}, "/dev/termination-log").splitlines()
    assert lines == [
        b"{ until read -r REPLY < $'/.singularity.d/env/zz-hpc-bridge.gate'; do :; done; } > $'/dev/termination-log'",
        b"unset REPLY",
        b"export A=$'1'",
        b"export B=$'\\x0a'",
    ]
    assert podrun_shellenv.script({}, None).startswith(b"until read -r REPLY < ")


def sif(path: Path, config: bytes, *, name: bytes = b"oci-config.json", magic: bytes = b"SIF_MAGIC") -> str:
    """A file with one data object, laid out as apptainer does."""
    header = struct.pack("<32s10s3s3s16s8q", b"#!x\n", magic, b"01", b"02", b"", 0, 0, 0, 1, 128, 585, 713, len(config))
    item = struct.pack("<i?IIIqqqqqqq128s384s", 0x4006, True, 1, 1, 0, 713, len(config), 0, 0, 0, 0, 0, name, b"")
    path.write_bytes(header + item + config)
    return str(path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"WorkingDir": "/srv/app"}, "/srv/app"),
        ({"WorkingDir": "/srv/../app//x/"}, "/app/x"),
        ({"WorkingDir": ""}, None),
        ({"WorkingDir": "relative"}, None),
        ({"WorkingDir": 7}, None),
        ({}, None),
        ([], None),
    ],
)
def test_working_directory_of_a_sif(tmp_path: Path, config: object, expected: str | None) -> None:
    assert working_directory(sif(tmp_path / "x.sif", json.dumps(config).encode())) == expected


def test_files_that_say_nothing(tmp_path: Path) -> None:
    good = json.dumps({"WorkingDir": "/x"}).encode()
    assert working_directory(sif(tmp_path / "a", good, name=b"other")) is None
    assert working_directory(sif(tmp_path / "b", good, magic=b"SIF")) is None
    assert working_directory(sif(tmp_path / "c", b"{")) is None
    (tmp_path / "short").write_bytes(b"#!")
    assert working_directory(str(tmp_path / "short")) is None
    assert working_directory(str(tmp_path)) is None
    assert working_directory(str(tmp_path / "missing")) is None


def container(**fields: object) -> Container:
    """A container of runtime apptainer."""
    base = Container("main", "app", "apptainer", (b"true",), (), None, (), "", "File", False, "/", False, "")
    return base._replace(**fields)  # type: ignore[arg-type]


MODERN = frozenset({"--no-eval", "--no-mount", "--mount", "--containall"})
OLD = frozenset({"--containall"})


def launched(tmp_path: Path, which: Container, flags: frozenset[str] = MODERN) -> list[str]:
    """The command line for a container."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    launch = Apptainer("/usr/bin/apptainer", flags, b"/bin").command(which, Places(str(tmp_path), str(scratch)), {})
    return [word.decode() for word in launch.argv]


def test_command_line(tmp_path: Path) -> None:
    (tmp_path / "volumes" / "v").mkdir(parents=True)
    mounts = (Mount("volumes/v", False, '/data,"x:y', True, None, ""),)
    argv = launched(tmp_path, container(mounts=mounts, gpus="nvidia", cwd="/w"))
    assert argv[:3] == ["/usr/bin/apptainer", "--silent", "exec"]
    assert argv[-2:] == ["/", "true"]
    for wanted in ("--containall", "--no-home", "--cleanenv", "--no-eval", "--writable-tmpfs", "--nv"):
        assert wanted in argv
    assert argv[argv.index("--pwd") + 1] == "/w"
    assert f'type=bind,source={tmp_path}/volumes/v,"destination=/data,""x:y",ro' in argv


def test_the_image_brings_the_command(tmp_path: Path) -> None:
    argv = launched(tmp_path, container(image_command=True, argv=(), read_only_root=True, gpus="amd"))
    assert argv[2] == "run"
    assert argv[-1] == "/"
    assert "--writable-tmpfs" not in argv
    assert "--rocm" in argv


def test_an_old_singularity(tmp_path: Path) -> None:
    (tmp_path / "volumes" / "v").mkdir(parents=True)
    argv = launched(tmp_path, container(mounts=(Mount("volumes/v", False, "/data", True, None, ""),)), OLD)
    assert f"{tmp_path}/volumes/v:/data:ro" in argv
    assert not set(argv) & {"--no-eval", "--no-mount", "--mount"}


def test_what_an_old_singularity_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "volumes" / "v").mkdir(parents=True)
    with pytest.raises(StartFailed, match="a path has : or"):
        launched(tmp_path, container(mounts=(Mount("volumes/v", False, "/a:b", True, None, ""),)), OLD)
    runtime = Apptainer("singularity", OLD, b"/bin")
    runtime.check([container(argv=(b"$(id)",)), container(argv=(b"x",), image_command=True)])
    with pytest.raises(StartFailed, match="would evaluate"):
        runtime.check([container(argv=(b"$(id)",), image_command=True)])


def test_what_is_checked_before_a_start() -> None:
    runtime = Apptainer("apptainer", MODERN, b"/bin")
    runtime.check([container(argv=(b"$(id)",), image_command=True, env=((b"A", b"1"),))])
    with pytest.raises(StartFailed, match=r"variable a\.b of container main"):
        runtime.check([container(env=((b"a.b", b"1"),))])
    with pytest.raises(StartFailed, match="does not exist on"):
        runtime.check([container(image_path="/nonexistent.sif")])


def test_failures_are_told_from_exit_codes() -> None:
    runtime = Apptainer("apptainer", MODERN, b"/bin")
    fatal = b'some output\nFATAL:   "nope": executable file not found in $PATH\n'
    assert runtime.judged(Exit(255), fatal) == Exit(128, None, started=False)
    assert runtime.judged(Exit(255), b"fine\n") == Exit(255)
    assert runtime.judged(Exit(1), fatal) == Exit(1)
    assert runtime.failure(container(), fatal) == '"nope": executable file not found in $PATH'
    assert "readOnlyRootFilesystem" in runtime.failure(container(), b"FATAL:   while setting up overlay: x")


def test_site_settings_that_make_no_sense_in_an_image() -> None:
    setup = {
        b"PATH": b"/opt/x",
        b"LD_LIBRARY_PATH": b"/y",
        b"MANPATH": b"/z",
        b"APPTAINER_BIND": b"/w",
        b"LICENSE": b"1@h",
    }
    assert Apptainer("apptainer", MODERN, b"").site(setup) == {b"LICENSE": b"1@h"}


def test_neither_program_is_there(tmp_path: Path) -> None:
    found, why = podrun_apptainer.find(str(tmp_path).encode())
    assert found is None
    assert "neither apptainer nor singularity" in why


def test_singularity_is_found(tmp_path: Path) -> None:
    program = tmp_path / "singularity"
    program.write_text("#!/bin/sh\necho '  --containall  x'; echo '  -B, --bind strings'; echo '  --no-eval'\n")
    program.chmod(0o755)
    found, _ = podrun_apptainer.find(f"{tmp_path}:/usr/bin:/bin".encode())
    assert found is not None
    assert found._flags >= {"--containall", "--bind", "--no-eval"}


def proc(tmp_path: Path, cgroup: str, mountinfo: str) -> str:
    """A stand-in for /proc/self."""
    (tmp_path / "cgroup").write_text(cgroup)
    (tmp_path / "mountinfo").write_text(mountinfo)
    return str(tmp_path)


def test_out_of_memory_kills_in_cgroup_2(tmp_path: Path) -> None:
    (tmp_path / "fs/job").mkdir(parents=True)
    (tmp_path / "fs/job/memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    mounts = f"30 1 0:26 / {tmp_path}/fs rw - cgroup2 cgroup2 rw\n"
    assert podrun_oom.kills(proc(tmp_path, "0::/job\n", mounts)) == 2


def test_out_of_memory_kills_in_cgroup_1(tmp_path: Path) -> None:
    (tmp_path / "fs/job").mkdir(parents=True)
    (tmp_path / "fs/job/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    mounts = (
        f"30 1 0:26 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu\n"
        f"31 1 0:26 /outer {tmp_path}/fs rw shared:1 - cgroup cgroup rw,memory\n"
    )
    assert podrun_oom.kills(proc(tmp_path, "3:cpu:/x\n2:memory:/outer/job\n0::/x\n", mounts)) == 5


def test_out_of_memory_kills_seen_from_inside_a_container(tmp_path: Path) -> None:
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs/memory.oom_control").write_text("oom_kill 1\n")
    mounts = f"31 1 0:26 /docker/abc {tmp_path}/fs ro - cgroup cgroup rw,memory\n"
    assert podrun_oom.kills(proc(tmp_path, "2:memory:/docker/abc\n", mounts)) == 1


def test_nothing_tells_of_kills(tmp_path: Path) -> None:
    assert podrun_oom.kills(str(tmp_path)) is None
    assert podrun_oom.kills(proc(tmp_path, "0::/job\n", f"30 1 0:26 / {tmp_path}/no rw - cgroup2 c rw\n")) is None
