"""`podrun --simulate`: many pods in one process, for an embedded PBS under load. No container is started.

Everything that a reader on the login node sees is written by the same code as by a real podrun: claim, status.json,
dirty marks, logs. A simulated container understands `sleep SECONDS`, `echo WORDS` and `exit CODE` in its command (after
`/bin/sh -c` or as it is), and ends with 0 when it has come to the end.

Orders come on stdin, a JSON object a line: {"do": "start", "job", "directory"}, {"do": "terminate" or "kill", "job"}.
Answers go to stdout: {"event": "started", "job"}, {"event": "ended", "job", "status"} with a wait status as PBS has it.
The end of stdin is the end of this process.
"""

import heapq
import json
import os
import re
import select
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from .podrun import NotTaken, take
from .podrun_decide import Decision
from .podrun_logs import ContainerLog, Lines, LogFile, LogPump
from .podrun_loop import Clock, PodRun, Signals
from .podrun_process import Exit, Process
from .podrun_run import Run
from .podrun_runtime import Places, Runtime
from .podrun_state import Record

STOP_LOOK = 1.0  # seconds between looks at all stop.json files
SETTLE = 0.3  # after a change: status.json is written again only so much later
KILLED = 256 + 9
_STEP = re.compile(r"[;\n]|&&")


class Script:
    """What a container's command comes to: how long it runs, what it writes, how it ends."""

    def __init__(self, argv: Tuple[bytes, ...]) -> None:
        self.seconds, self.code = 0.0, 0
        self.output = b""
        words = [word.decode("utf-8", "replace") for word in argv]
        steps = _STEP.split(words[2]) if words[1:2] == ["-c"] and len(words) > 2 else [" ".join(words)]
        for step in (step.split() for step in steps):
            self._take(step)

    def _take(self, step: List[str]) -> None:
        name = os.path.basename(step[0]) if step else ""
        argument = step[1] if len(step) > 1 else ""
        if name == "echo":
            self.output += " ".join(step[1:]).strip("'\"").encode("utf-8") + b"\n"
        elif name == "sleep":
            try:
                self.seconds += 1e9 if argument in ("inf", "infinity") else float(argument)
            except ValueError:
                self.code = 1
        elif name == "exit" and argument.isdigit():
            self.code = int(argument) % 256


class SimulatedProcess(Process):
    """Ends by itself when its time is over; a signal ends it at once."""

    pid = 0

    def __init__(self, script: Script) -> None:
        self.until = time.monotonic() + script.seconds
        self._code = script.code
        self._exit: Optional[Exit] = None

    def reaped(self, pid: int, status: int) -> None:
        """There are no children."""

    def poll(self) -> Optional[Exit]:
        if self._exit is None and time.monotonic() >= self.until:
            self._exit = Exit(self._code)
        return self._exit

    def terminate(self) -> None:
        self._exit = self._exit or Exit(143, 15)

    def kill(self) -> None:
        self._exit = self._exit or Exit(137, 9)


class SimulatedLog(ContainerLog):
    """Has been written when it is made; no pipes, no open file."""

    done = threading.Event()
    done.set()

    def __init__(self, directory: str, run: int, output: bytes) -> None:
        file = LogFile(directory, run)
        file.write(Lines(b"stdout").feed(output, time.time()))
        file.close()
        self.tail = output[-2048:]


class PodSignals(Signals):
    """What PBS told one pod."""

    def __init__(self) -> None:
        self.terminated = False


class SimulatedPod(PodRun):
    """One pod; `advance` is one turn of what is a loop in a podrun of its own."""

    _runtime = Runtime()

    def begin(self) -> None:
        """Show that it has been started."""
        self._write("Starting", Decision())

    def advance(self) -> Optional[float]:
        """One turn; when the next is due (monotonic), None once the pod is over and `code` is set."""
        self._clock.tick()
        decision = self._step()
        if decision.result is not None:
            self.code = self._finish(decision.result)
            return None
        now = time.monotonic()
        due = [run.process.until for run in self._runs if isinstance(run.process, SimulatedProcess)]
        due += [self._clock.started + limit for limit in (self._pod.deadline, self._pod.walltime) if limit is not None]
        due += [decision.wake] if decision.wake is not None else []
        due += [self._ending.kill_at] if self._ending is not None else []
        due += [now + SETTLE] if now - self._written < SETTLE else []
        return max(min(due), now + 0.01) if due else now + 60.0

    def terminate(self) -> None:
        """SIGTERM from PBS."""
        self._signals.terminated = True

    def _start(self, record: Record) -> None:
        record.begin()
        script = Script(record.container.argv)
        log = SimulatedLog(os.path.join(self._directory, "logs", record.container.name), record.run, script.output)
        process = SimulatedProcess(script)
        record.started(process.pid, self._clock.now, time.time())
        self._runs.append(Run(record, process, log, Places(self._directory, "/nonexistent"), self._runtime))


class Simulator:
    """All pods of one user's jobs."""

    def __init__(self) -> None:
        self._pods: Dict[str, SimulatedPod] = {}
        self._directories: Dict[str, str] = {}
        self._due: List[Tuple[float, str]] = []
        self._pump = LogPump()  # never started: there is nothing to read
        self._looked = 0.0
        self._input = b""

    def run(self) -> int:
        """Serve until stdin ends."""
        while True:
            now = time.monotonic()
            wake = self._looked + STOP_LOOK if self._pods else now + 60.0
            wake = min([wake] + [due for due, _ in self._due[:1]])
            if select.select([0], [], [], max(0.0, wake - now))[0] and not self._orders():
                return 0
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                self._advance(heapq.heappop(self._due)[1])
            if now - self._looked >= STOP_LOOK:
                self._looked = now
                self._look()

    def _orders(self) -> bool:
        data = os.read(0, 1 << 16)
        lines = (self._input + data).split(b"\n")
        self._input = lines.pop()
        for line in lines:
            order = json.loads(line.decode("utf-8"))
            job = order["job"]
            if order["do"] == "start":
                self._start(job, order["directory"])
            elif job in self._pods and order["do"] == "terminate":
                self._pods[job].terminate()
                self._advance(job)
            elif job in self._pods:
                self._forget(job, KILLED)
        return bool(data)

    def _start(self, job: str, directory: str) -> None:
        _tell(event="started", job=job)
        try:
            pod, status = take(directory, job)
        except NotTaken as error:
            _tell(event="ended", job=job, status=error.code)
            return
        self._pods[job] = SimulatedPod(directory, pod, status, Clock(), PodSignals(), job, self._pump)
        self._directories[job] = directory
        self._pods[job].begin()
        heapq.heappush(self._due, (time.monotonic(), job))

    def _advance(self, job: str) -> None:
        pod = self._pods.get(job)
        if pod is None:
            return
        due = pod.advance()
        if due is None:
            self._forget(job, pod.code)
        else:
            heapq.heappush(self._due, (due, job))

    def _look(self) -> None:
        for job, directory in list(self._directories.items()):
            if os.path.exists(directory + "/stop.json"):
                self._advance(job)

    def _forget(self, job: str, status: int) -> None:
        del self._pods[job], self._directories[job]
        _tell(event="ended", job=job, status=status)


def _tell(**event: Any) -> None:
    os.write(1, json.dumps(event).encode("ascii") + b"\n")


def main() -> int:
    """The program."""
    os.chdir("/")
    return Simulator().run()


if __name__ == "__main__":
    sys.exit(main())
