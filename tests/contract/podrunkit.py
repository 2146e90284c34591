"""Runs the real podrun as PBS would: a program of its own session, as an ordinary user, with a pod directory."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

USER = 54321 if os.getuid() == 0 else os.getuid()  # jobs never run as root; this number belongs to nobody
# The python3 of the system, which an ordinary user may run; HPC_BRIDGE_TEST_PYTHON names another, an old one perhaps.
_PYTHONS = (os.environ.get("HPC_BRIDGE_TEST_PYTHON", ""), "/usr/bin/python3", "/usr/local/bin/python3")
PYTHON = next((path for path in _PYTHONS if os.access(path, os.X_OK)), "")
DEADLINE = 60.0  # generous: the machine may be busy
Json = dict[str, Any]
T = TypeVar("T")


def until(look: Callable[[], T], what: str) -> T:
    """Poll `look` until it returns something true."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"timed out: {what}")


class Entry(NamedTuple):
    """One process."""

    pid: int
    state: bytes
    session: int


def table() -> list[Entry]:
    """The process table."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        found.append(Entry(int(name), fields[0], int(fields[3])))
    return found


def session(leader: int) -> list[int]:
    """Processes of a session, as MoM finds them."""
    return [entry.pid for entry in table() if entry.session == leader and entry.state != b"Z"]


def container(name: str = "main", *argv: str | Json, **fields: Any) -> Json:
    """One container of pod.json; the command is a shell script when it is one string."""
    command = ["/bin/sh", "-c", *argv] if len(argv) == 1 else list(argv)
    base = {"name": name, "kind": "app", "runtime": "host", "image": "host", "image_id": "host", "argv": command}
    more: Json = {"env": [], "cwd": None, "mounts": [], "termination_message_path": "/dev/termination-log"}
    return base | more | {"termination_message_policy": "File", "read_only_root": False} | fields


def mount(source: str, path: str, **fields: Any) -> Json:
    base = {"source": source, "absolute": False, "path": path, "read_only": False, "sub_path": None}
    return base | ({"allowed": source} if fields.get("absolute") else {}) | fields


class Pod:
    """One pod directory in a spool, and the podrun that runs it."""

    def __init__(self, spool: Path, program: Path, uid: str) -> None:
        self.spool, self.uid, self._program = spool, uid, program
        self.directory = spool / "instance" / "pods" / uid
        self.directory.mkdir(parents=True, mode=0o700)
        self.process: subprocess.Popen[bytes] | None = None
        self.isolation = "required"
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(spool), "TMPDIR": str(spool), "PBS_JOBID": "12.alpha"}

    def write(self, *containers: Json, secrets: dict[str, bytes] | None = None, **fields: Any) -> Pod:
        document = {"version": 1, "uid": self.uid, "namespace": "default", "name": "hello", "hostname": "hello"}
        document |= {"restart_policy": "Never", "grace": 30, "walltime": 3600, "end_margin": 20, "setup": []}
        document |= {
            "isolation": self.isolation,
            "crash_backoff": {"base": 0.2, "max": 0.4},
            "containers": list(containers),
        }
        self.put("pod.json", json.dumps(document | fields))
        if secrets is not None:
            encoded = {key: base64.b64encode(value).decode() for key, value in secrets.items()}
            self.put("secrets/values.json", json.dumps(encoded))
        for item in containers:
            for bind in item["mounts"]:
                if not bind["absolute"]:
                    self.path(bind["source"]).mkdir(parents=True, exist_ok=True)
        return self

    def path(self, name: str) -> Path:
        return self.directory / name

    def put(self, name: str, content: str | bytes) -> None:
        """Replace a file of the pod directory as the helper does."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        if os.getuid() == 0:
            os.chown(temporary, USER, USER)
        temporary.rename(path)

    def start(self) -> Pod:
        if os.getuid() == 0:
            for entry in (self.spool, *self.spool.rglob("*")):
                with suppress(FileNotFoundError):  # another pod of the spool writes meanwhile
                    os.chown(entry, USER, USER, follow_symlinks=False)
        self.process = self.launch()
        return self

    def launch(self) -> subprocess.Popen[bytes]:
        command = [PYTHON, str(self._program), str(self.directory)]
        with self.path("job.out").open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
                **IDENTITY,
            )

    def stop(self, grace: float) -> None:
        self.put("stop.json", json.dumps({"version": 1, "grace": grace, "at": time.time()}))

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(DEADLINE)

    def run(self) -> Json:
        """Start, wait for the end, return the final status."""
        self.start().wait()
        return self.status

    @property
    def status(self) -> Json:
        try:
            document: Json = json.loads(self.path("status.json").read_bytes())
        except FileNotFoundError:
            return {"phase": "", "containers": {}}
        return document

    def state(self, name: str = "main") -> Json:
        found: Json = self.status["containers"].get(name, {"state": ""})
        return found

    def lines(self, name: str = "main", run: int = 0) -> list[tuple[str, str, bytes]]:
        """(stream, tag, text) of each log line."""
        path = self.path(f"logs/{name}/{run}.log")
        content = path.read_bytes() if path.exists() else b""
        parts = [line.split(b" ", 3) for line in content.split(b"\n")[:-1]]
        return [(stream.decode(), tag.decode(), text) for _, stream, tag, text in parts]

    def output(self, name: str = "main", run: int = 0, stream: str = "stdout") -> bytes:
        """What the container wrote, put together again."""
        wanted = [(tag, text) for kind, tag, text in self.lines(name, run) if kind == stream]
        return b"".join(text + (b"\n" if tag == "F" else b"") for tag, text in wanted)

    def kill(self) -> None:
        if self.process is not None:
            for pid in [*session(self.process.pid), self.process.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait(DEADLINE)


IDENTITY: Any = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
