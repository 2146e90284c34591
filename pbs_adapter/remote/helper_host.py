"""What the helper tells of the login host: where PBS is, what the host is, which of podrun's runtimes it could use."""

import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from .helper_errors import OpError
from .helper_pbs import Pbs, Result

MAX_TABLE = 24 * 1024 * 1024  # bytes of the table of all jobs: about 180,000 jobs
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


def census(pbs: Pbs, jobs: bool = False) -> "tuple[Dict[str, Any], bytes]":
    """(head, body) of the census: PBS's own output about server, queues, vnodes and jobs, one after the other.

    The table of everyone's jobs only where asked for: one command more. Where PBS does not give it, the head says why.
    """
    outputs = [
        _output(pbs, ["qstat", "-B", "-f", "-F", "json"]),
        _output(pbs, ["qstat", "-Q", "-f", "-F", "json"]),
        _output(pbs, ["pbsnodes", "-av", "-F", "json"]),
    ]
    head: Dict[str, Any] = {"at": time.time(), "host": facts(), "runtimes": runtimes()}
    if jobs:
        head["jobs_at"] = time.time()
        table, head["jobs_problem"] = _job_table(pbs)
        outputs.append(table)
    head.update(zip(("server_size", "queues_size", "vnodes_size", "jobs_size"), map(len, outputs)))
    return head, b"".join(outputs)


def _job_table(pbs: Pbs) -> "tuple[bytes, str]":
    """(table, why there is none). Arrays are one line each."""
    try:
        table = _output(pbs, ["qstat", "-a", "-w"])
    except OpError as error:
        print("no list of all jobs: {}".format(error.message))
        return b"", error.message
    if len(table) > MAX_TABLE:
        return b"", "the table of all jobs has {} bytes".format(len(table))
    return table, ""


def _output(pbs: Pbs, argv: List[str]) -> bytes:
    result: Result = pbs.query(argv)
    if result.status != 0:
        raise OpError("pbs", "{}: {}".format(argv[0], result.text()))
    return result.stdout
