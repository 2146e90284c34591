"""Drives the real helper program over pipes, with minipbs as PBS and a small program in podrun's place."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pbs_adapter.bundle import zipapp
from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Frame

DEADLINE = 60.0  # generous: the machine may be busy
INSTANCE = "11111111-2222-3333-4444-555555555555"
CLUSTER = "alpha"
Json = dict[str, Any]

#: In podrun's place: claims the directory, says what it does, and stops when it is told to.
FAKE_PODRUN = """\
import json, os, sys, time
d = sys.argv[1]
uid = os.path.basename(d)
os.mkdir(d + "/claim")
os.makedirs(d + "/logs/main", exist_ok=True)
seq = 0
def status(phase, state, **more):
    global seq
    seq += 1
    main = {"kind": "app", "state": state, "run": 0, "restart_count": 0, "last": None, **more.pop("main", {})}
    tree = {"version": 1, "uid": uid, "seq": seq, "written_at": time.time(), "host": "here", "reason": "",
            "message": "", "job_id": os.environ.get("PBS_JOBID", ""), "started_at": time.time(), "phase": phase,
            "result": None, "containers": {"main": main}, **more}
    for name, text in ((d + "/status.json", json.dumps(tree)), (d + "/../../dirty/" + uid, "")):
        temporary = os.path.dirname(name) + "/.tmp-" + uid
        with open(temporary, "w") as file:
            file.write(text)
        os.rename(temporary, name)
def log(text):
    with open(d + "/logs/main/0.log", "a") as file:
        file.write("2026-11-30T10:00:00.000000001Z stdout F %s\\n" % text)
status("Running", "running")
log("started")
while not os.path.exists(d + "/stop.json") and not os.path.exists(d + "/finish"):
    time.sleep(0.05)
log("ended")
result = "Succeeded" if os.path.exists(d + "/finish") else "Failed"
status("Ended", "terminated", result=result, main={"exit_code": 0, "reason": "Completed"})
"""


T = TypeVar("T")


def until(look: Callable[[], T], what: str) -> T:
    """Poll `look` until it returns something true."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"timed out: {what}")


class HelperError(Exception):
    """An ERROR frame."""

    def __init__(self, head: Json) -> None:
        super().__init__(f"{head['kind']}: {head['message']}")
        self.kind: str = head["kind"]


class Helper:
    """One helper process and the agent's end of its connection."""

    def __init__(self, python: str, program: Path, home: Path, path: str) -> None:
        shared = home / "shared"  # in /dev/shm's place: no other test's helpers are there
        shared.mkdir(exist_ok=True)
        shared.chmod(0o1777)
        env = {"PATH": path, "HOME": str(home), "SECRET_OF_THE_SESSION": "x", "HPC_BRIDGE_TEST_SHARED": str(shared)}
        self.stderr = home / "helper.err"
        with open(self.stderr, "ab") as err:
            self.process = subprocess.Popen(
                [python, "-I", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, env=env, cwd=home
            )
        self.epoch = 1
        self._last = 0
        self._mutex = threading.Lock()
        self._answers: dict[int, queue.Queue[Frame | None]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        decoder, assembler = wire.Decoder(magic=True), wire.Assembler()
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            for frame in decoder.feed(data):
                if (message := assembler.add(frame)) is not None:
                    self._box(message.id).put(message)
        with self._mutex:
            boxes = list(self._answers.values())
        for box in boxes:
            box.put(None)

    def _box(self, ident: int) -> queue.Queue[Frame | None]:
        with self._mutex:
            return self._answers.setdefault(ident, queue.Queue())

    def raw(self, data: bytes) -> None:
        """Write bytes to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def start(self, op: str, body: bytes = b"", **head: Any) -> int:
        """Send a request; its id."""
        with self._mutex:
            self._last += 1
            ident = self._last
        self._box(ident)
        message = Frame(ident, wire.REQUEST, {"op": op, "epoch": self.epoch, **head}, body)
        self.raw(b"".join(wire.encode(part) for part in wire.split(message)))
        return ident

    def frame(self, ident: int) -> Frame:
        """The next frame for a request. Raises ConnectionError when the helper is gone."""
        frame = self._box(ident).get(timeout=DEADLINE)
        if frame is None:
            raise ConnectionError("the helper has ended")
        return frame

    def result(self, ident: int) -> Frame:
        """The answer to a request. Raises HelperError."""
        frame = self.frame(ident)
        if frame.kind == wire.ERROR:
            raise HelperError(frame.head)
        return frame

    def ask(self, op: str, body: bytes = b"", **head: Any) -> Json:
        """A request and the head of its answer."""
        return self.result(self.start(op, body, **head)).head

    def send(self, frame: Frame) -> None:
        """Any frame."""
        self.raw(wire.encode(frame))

    def census(self, *parts: str) -> tuple[Json, bytes]:
        """Head and body of a census."""
        line, _, body = b"".join(self.stream("census", parts=list(parts))).partition(b"\n")
        return json.loads(line), body

    def stream(self, op: str = "logs", **head: Any) -> Iterator[bytes]:
        """The bodies of a stream, giving credit back at once."""
        ident = self.start(op, **head)
        while True:
            frame = self.result(ident)
            if frame.kind == wire.END:
                return
            self.send(Frame(ident, wire.CREDIT, {"bytes": len(frame.body)}))
            yield frame.body

    def close(self) -> int:
        """End its input and wait for it; its exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        status = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.close()


class Site:
    """A spool, a PBS, and helpers started on them one after the other."""

    def __init__(self, folder: Path, pbs: Path, python: str) -> None:
        self.folder, self.pbs, self.python = folder, pbs, python
        self.spool = folder / "spool"
        name, content = zipapp("helper")
        self.program = folder / name
        self.program.write_bytes(content)
        self.program.chmod(0o444)
        self.podrun = folder / "podrun.py"
        self.podrun.write_text(FAKE_PODRUN)
        self.helpers: list[Helper] = []
        self.uid, self.other = str(uuid.uuid4()), str(uuid.uuid4())
        self.path = "/usr/bin:/bin"

    @property
    def instance(self) -> Path:
        return self.spool / INSTANCE / CLUSTER

    def pod(self, uid: str) -> Path:
        """The pod directory."""
        return self.instance / "pods" / uid

    @staticmethod
    def name(uid: str) -> str:
        """The PBS job's name."""
        return f"pod.{uid}.{INSTANCE}"

    def helper(self, *, hello: bool = True, **options: Any) -> Helper:
        """Start a helper and greet it."""
        helper = Helper(self.python, self.program, self.folder, self.path)
        self.helpers.append(helper)
        if hello:
            self.hello(helper, **options)
        return helper

    def hello(self, helper: Helper, **options: Any) -> Json:
        defaults: Json = {
            "instance": INSTANCE,
            "cluster": CLUSTER,
            "spool": str(self.spool),
            "pbs_exec": str(self.pbs),
            "poll": 1.0,
        }
        defaults |= {"lost_after": 2.0, "connections_per_minute": 1200, "compute_spool": None}
        return helper.ask("hello", **{**defaults, "compute_python": self.python, "podrun": str(self.podrun), **options})

    def submission(self, uid: str, *, qsub: str = "qsub", options: str = "", **head: Any) -> Json:
        """The head of a submit request; its one file is pod.json, whose content is `POD_JSON`."""
        directory = self.pod(uid)
        script = (
            f"{qsub} -r n -j oe -koed -o {directory}/job.out -N {self.name(uid)} {options} "
            f"-l select=1:ncpus=1:mem=10mb -- {self.python} {self.podrun} {directory}\n"
        )
        files = [{"path": "pod.json", "mode": 0o600, "size": len(POD_JSON)}]
        return {"uid": uid, "name": self.name(uid), "script": script, "files": files, "volumes": [], **head}

    def submit(self, helper: Helper, uid: str, **options: Any) -> str:
        """Submit a pod; the job id."""
        job_id: str = helper.ask("submit", POD_JSON, **self.submission(uid, **options))["job_id"]
        return job_id

    def jobs(self, *words: str) -> str:
        """qselect as the user."""
        done = subprocess.run([self.pbs / "bin" / "qselect", *words], capture_output=True, text=True, check=True)
        return done.stdout

    def observed(self, helper: Helper, uid: str) -> Json:
        """The present observation of a pod; {} when there is none."""
        report = helper.ask("jobs", after="", wait=0)
        return next((found for found in report["observations"] if found["uid"] == uid), {})

    def await_observed(self, helper: Helper, uid: str, test: Callable[[Json], bool], what: str) -> Json:
        """Poll until the observation of a pod passes a test."""
        last: Json = {}

        def look() -> Json:
            last.clear()
            last.update(self.observed(helper, uid))
            return last if last and test(last) else {}

        try:
            return until(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {last}") from None

    def close(self) -> None:
        """End all helpers."""
        for helper in self.helpers:
            helper.kill()


POD_JSON = b'{"version":1,"name":"hello","containers":[{"name":"main"},{"name":"side"}]}'
