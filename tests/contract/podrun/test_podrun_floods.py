"""Containers that write without end, or into a file system without room: bounded, readable, and ended with a reason."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from podrunkit import Pod, container, mount, until

MIB = 1 << 20
bwrap = pytest.mark.usefixtures("bubblewrap")


def resident(pid: int) -> int:
    """The most memory that the process has had, in bytes; 0 when it is gone."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


@bwrap
def test_a_gigabyte_of_output_is_rotated_in_bounded_memory(pod: Pod) -> None:
    line = "x" * 99
    pod.write(container("main", f"yes {line} | head -c 1073741800; echo the end")).start()
    peak = 0

    def over() -> bool:
        nonlocal peak
        peak = max(peak, resident(pod.pid))
        return pod.process is not None and pod.process.poll() is not None

    until(over, "the pod to end")
    assert pod.status["result"] == "Succeeded"
    assert 0 < peak < 64 * MIB
    parts = sorted(path.name for path in pod.path("logs/main").iterdir())
    assert parts == ["0.log", "0.log.1", "0.log.2", "0.log.3", "0.log.4"]
    assert sum(path.stat().st_size for path in pod.path("logs/main").iterdir()) <= 5 * 10 * MIB
    assert pod.lines()[-1][1:] == ("F", b"the end")
    for part in parts:
        content = pod.path(f"logs/main/{part}").read_bytes()
        assert content.endswith(b"\n")
        assert all(each.endswith((line.encode(), b"the end")) for each in content.split(b"\n")[:-1])


@bwrap
def test_a_line_of_a_megabyte_and_binary_output_come_out_byte_for_byte(pod: Pod) -> None:
    noise = random.Random(7).randbytes(MIB)
    long = b"y" * MIB + b"\n"
    pod.write(container("main", "cat /data/noise /data/long", mounts=[mount("volumes/data", "/data")]))
    pod.put("volumes/data/noise", noise)
    pod.put("volumes/data/long", long)
    assert pod.run()["result"] == "Succeeded"
    assert pod.output() == noise + long
    assert max(len(text) for _, _, text in pod.lines()) <= 16 * 1024


@pytest.fixture
def small(program: Path) -> Iterator[Pod]:
    """A pod whose spool has four megabytes."""
    folder = Path(tempfile.mkdtemp(prefix="podrun-small-"))
    options = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(options, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("no file system can be mounted here (it takes root)")
    pod = Pod(folder, program, "11111111-2222-3333-4444-555555555555")
    pod.environment["TMPDIR"] = "/tmp"
    try:
        yield pod
    finally:
        pod.kill()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


FILL = "dd if=/dev/zero of=/data/fill bs=64k 2>/dev/null"
# Appended: a file that is written anew each time gives back the room that it finds.
FULL = "[ -s /data/fill ] && ! dd if=/dev/zero bs=64k count=1 2>/dev/null >>/data/more"


@bwrap
@pytest.mark.parametrize(
    "commands",
    [
        ["while :; do cat /dev/zero; done"],  # its own log fills the spool
        [f"{FILL}; while echo output; do sleep 0.1; done"],  # a volume does
        [f"{FILL}; exec sleep 1000", f"until {FULL}; do :; done"],  # nothing is logged: a container's end finds no room
    ],
    ids=["log", "volume", "silent"],
)
def test_no_room_in_the_spool_ends_the_pod_with_that_reason(small: Pod, commands: list[str]) -> None:
    mounts = [mount("volumes/data", "/data")]
    small.write(*(container(f"c{n}", line, mounts=mounts) for n, line in enumerate(commands)), grace=1).start()
    small.wait()
    status = small.status
    assert (status["phase"], status["result"], status["reason"]) == ("Ended", "Failed", "SpoolFull")
    assert "No space left on device" in status["message"]
    assert {each["state"] for each in status["containers"].values()} == {"terminated"}
    assert (small.spool / "instance" / "dirty" / small.uid).exists()
