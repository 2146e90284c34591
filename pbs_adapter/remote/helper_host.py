"""What the helper tells of the login host: where PBS is, what the host is, which of podrun's runtimes it could use."""

import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from . import wire
from .helper_errors import OpError
from .helper_pbs import Pbs, Result

MAX_TABLE = 8 * 1024 * 1024  # bytes of the table of all jobs: about 60,000 jobs
PARTS = ("server", "queues", "vnodes", "jobs")
_COMMANDS = {
    "server": ["qstat", "-B", "-f", "-F", "json"],
    "queues": ["qstat", "-Q", "-f", "-F", "json"],
    "vnodes": ["pbsnodes", "-av", "-F", "json"],
    "jobs": ["qstat", "-a", "-w"],
}
_INDENT = re.compile(rb"\n[ \t]+")
_PATIENCE = 60.0  # s for PBS and the budget
_BWRAP = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]


def pbs_exec(given: Optional[str]) -> Optional[str]:
    """PBS's installation: as given, else PBS_EXEC of /etc/pbs.conf, else by qstat on PATH; None: not found."""
    if given:
        return given
    try:
        with open(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf"), encoding="utf-8", errors="replace") as file:
            match = re.search(r"^\s*PBS_EXEC\s*=\s*[\"']?([^\"'\s]+)", file.read(), re.MULTILINE)
    except OSError:
        match = None
    if match is not None and os.path.isdir(os.path.join(match.group(1), "bin")):
        return match.group(1)
    program = shutil.which("qstat")
    return os.path.dirname(os.path.dirname(os.path.realpath(program))) if program else None


def os_name() -> str:
    """PRETTY_NAME of /etc/os-release, else what Python says."""
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            match = re.search(r"^PRETTY_NAME=[\"']?(.*?)[\"']?\s*$", file.read(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else platform.system()


def facts() -> Dict[str, str]:
    """`models.Census.host`."""
    name = os.uname()
    version = "{}.{}.{}".format(*sys.version_info[:3])
    return {
        "os": os_name(),
        "kernel": name.release,
        "arch": name.machine,
        "hostname": name.nodename,
        "python": version,
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "home": os.path.expanduser("~"),
    }


def runtimes() -> List[str]:
    """podrun's runtimes that work on the login host (apptainer: is installed); the compute nodes may differ."""
    images = ["apptainer"] if shutil.which("apptainer") or shutil.which("singularity") else []
    return ["host"] + (["host+bwrap"] if _bubblewrap_works() else []) + images


def _bubblewrap_works() -> bool:
    program = shutil.which("bwrap")
    if program is None:
        return False
    try:
        done = subprocess.run(
            [program] + _BWRAP,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def census(pbs: Pbs, parts: Sequence[str], patience: float = _PATIENCE) -> Iterator[bytes]:
    """The census as a stream: its head as a line of JSON, then PBS's own output, one part after the other.

    Parts that are not asked for cost no command. Where PBS does not give the table of everyone's jobs, the head says
    why. Without `server` nothing is said of the host either. patience: seconds that the budget may take each time.
    """
    outputs: List[bytes] = []
    head: Dict[str, Any] = {"at": time.time()}
    if "server" in parts:
        head.update(host=facts(), runtimes=runtimes())
    for part in PARTS[:3]:
        if part in parts:
            output = _output(pbs, _COMMANDS[part], patience)
            outputs.append(_INDENT.sub(b"\n", output))
            head[part + "_size"] = len(outputs[-1])
    if "jobs" in parts:
        head["jobs_at"] = time.time()
        table, head["jobs_problem"] = _job_table(pbs)
        outputs.append(table)
        head["jobs_size"] = len(table)
    yield json.dumps(head).encode("ascii") + b"\n"
    for output in outputs:
        for at in range(0, len(output), wire.CHUNK):
            yield output[at : at + wire.CHUNK]


def _job_table(pbs: Pbs) -> "Tuple[bytes, str]":
    """(table, why there is none). Arrays are one line each."""
    try:
        table = _output(pbs, _COMMANDS["jobs"], _PATIENCE)
    except OpError as error:
        print("no list of all jobs: {}".format(error.message))
        return b"", error.message
    if len(table) > MAX_TABLE:
        return b"", "the table of all jobs has {} bytes".format(len(table))
    return table, ""


def _output(pbs: Pbs, argv: List[str], patience: float) -> bytes:
    result: Result = pbs.query(argv, patience)
    if result.status != 0:
        raise OpError("pbs", "{}: {}".format(argv[0], result.text()))
    return result.stdout
