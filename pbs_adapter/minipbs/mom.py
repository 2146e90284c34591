"""The execution side (MoM): a process of its own that runs jobs, so that they survive a restart of the server.

It speaks lines of JSON on one private socket. Ends of jobs are kept until the server has acknowledged them, in files
when the server is away; with no server and no job it ends by itself.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

from . import launch, processes
from .processes import Usage
from .simulated import Simulator, Simulators, is_simulated
from .task import Task, kill

FIRST_USAGE = 1.5

USAGE_INTERVAL = 10.0
LINGER = 0.1
LAST_REAPING = 2.0
WALLTIME_EXCEEDED = -29
NODE_LOST = -20


class MomServer:
    """The loop: commands from the server, children that end, timers."""

    def __init__(self, private: str) -> None:
        self.private = private
        self.tasks: dict[str, Task] = {}
        self.by_pid: dict[int, Task] = {}
        self.obits: dict[str, dict[str, Any]] = {}
        self.timers: list[tuple[float, int, str, str]] = []
        self.counter = 0
        self.selector = selectors.DefaultSelector()
        self.server: socket.socket | None = None
        self.buffer = b""
        self.outgoing = b""
        self.alone_since = time.monotonic()
        self.leaving = False
        self.simulators = Simulators(self.selector)

    def run(self) -> None:
        """Serve until told to leave, or until alone and idle."""
        path = f"{self.private}/mom.sock"
        listener = socket.socket(socket.AF_UNIX)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        listener.bind(path)
        listener.listen(4)
        listener.setblocking(False)
        wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        processes.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.selector.register(listener, selectors.EVENT_READ, "listener")
        self.selector.register(wake_in, selectors.EVENT_READ, "wake")
        while not self._done():
            timeout = max(0.0, min(1.0, self.timers[0][0] - time.monotonic())) if self.timers else 1.0
            for key, _ in self.selector.select(timeout):
                if key.data == "listener":
                    self._accept(listener)
                elif key.data == "wake":
                    os.read(wake_in, 4096)
                elif isinstance(key.data, Simulator):
                    self._simulated(key.data)
                else:
                    self._read()
            self._reap()
            self._fire()
            self._flush()
        self.simulators.close()
        os.unlink(path)
        processes.reap_all(LAST_REAPING)

    def _done(self) -> bool:
        if self.tasks:
            return False
        return self.leaving or (self.server is None and time.monotonic() - self.alone_since > 2.0)

    # -- talking with the server

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if self.server is not None:
            self._hang_up()
        connection.setblocking(False)
        self.server, self.buffer, self.outgoing = connection, b"", b""
        self.selector.register(connection, selectors.EVENT_READ, "server")
        kept = f"{self.private}/obits"
        for name in os.listdir(kept):
            with open(f"{kept}/{name}") as file:
                obit = json.load(file)
            self.obits.setdefault(obit["job"], obit)
        alive = {task.id: task.pid for task in self.tasks.values()}
        self._tell({"event": "hello", "alive": alive, "ended": list(self.obits.values())})

    def _hang_up(self) -> None:
        if self.server is not None:
            self.selector.unregister(self.server)
            self.server.close()
        self.server = None
        self.alone_since = time.monotonic()
        for obit in self.obits.values():
            self._keep(obit)

    def _keep(self, obit: dict[str, Any]) -> None:
        with open(f"{self.private}/obits/{obit['job']}", "w") as file:
            json.dump(obit, file)

    def _read(self) -> None:
        if self.server is None:
            return
        try:
            data = self.server.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self._command(json.loads(line))

    def _tell(self, message: dict[str, Any]) -> None:
        if self.server is not None:
            self.outgoing += json.dumps(message).encode() + b"\n"

    def _flush(self) -> None:
        while self.outgoing and self.server is not None:
            try:
                sent = self.server.send(self.outgoing)
            except BlockingIOError:
                self._after(0.01, "flush", "")
                return
            except OSError:
                self._hang_up()
                return
            self.outgoing = self.outgoing[sent:]

    def _command(self, message: dict[str, Any]) -> None:
        kind = message["do"]
        if kind == "start":
            self._start(message)
        elif kind == "ack":
            if self.obits.pop(message["job"], None) is not None:
                try:
                    os.unlink(f"{self.private}/obits/{message['job']}")
                except FileNotFoundError:
                    pass
        elif kind == "leave":
            self.leaving = True
            for task in self.tasks.values():
                task.kill_at = time.monotonic()
            kill(self.tasks.values())
        elif message["job"] in self.tasks:
            self._task_command(self.tasks[message["job"]], kind, message)
        elif message["job"] not in self.obits and kind != "forget":
            self._obit(message["job"], NODE_LOST, Usage())

    def _task_command(self, task: Task, kind: str, message: dict[str, Any]) -> None:
        if kind == "terminate":
            self._terminate(task)
        elif kind == "kill":
            task.kill_at = time.monotonic()
            kill([task])
        elif kind == "signal":
            self._signal(task, message["number"])
        elif kind == "forget":
            task.spec["forgotten"] = True
        elif kind == "walltime":
            task.spec["walltime"] = message["walltime"]
            self._arm_walltime(task)

    # -- jobs

    def _start(self, spec: dict[str, Any]) -> None:
        simulator = None
        try:
            if is_simulated(spec):
                simulator = self.simulators.of(spec)
                pid = simulator.pid
            else:
                pid = launch.start(spec)
        except OSError as error:
            print(f"minipbs-mom: cannot start {spec['job']}: {error}", file=sys.stderr)
            self._obit(spec["job"], -1, Usage())
            return
        task = Task(spec, pid, time.monotonic(), simulator)
        self.tasks[task.id] = task
        if simulator is not None:
            simulator.order("start", task.id, directory=spec["argv"][2])
            self._arm_walltime(task)
            return
        self.by_pid[pid] = task
        if spec.get("start_delay"):
            self._after(spec["start_delay"], "started", task.id)
        else:
            self._confirm(task)
        self._after(spec.get("start_delay", 0.0) + FIRST_USAGE, "usage", task.id)
        self._arm_walltime(task)

    def _confirm(self, task: Task) -> None:
        if not task.confirmed:
            task.confirmed = True
            self._tell({"event": "started", "job": task.id, "sid": task.pid})

    def _arm_walltime(self, task: Task) -> None:
        if task.spec.get("walltime") is not None:
            self._after(max(0.0, self._walltime_left(task)), "walltime", task.id)

    def _walltime_left(self, task: Task) -> float:
        now = time.monotonic()
        stopped = task.stopped_for + (now - task.stopped_at if task.stopped_at else 0.0)
        return float(task.spec["walltime"]) - (now - task.started - stopped)

    def _simulated(self, simulator: Simulator) -> None:
        events = simulator.read()
        if events is None:
            self.simulators.gone(simulator)
            left = [task.id for task in self.tasks.values() if task.simulator is simulator]
            events = [{"event": "ended", "job": job, "status": NODE_LOST} for job in left]
        for event in events:
            task = self.tasks.get(event["job"])
            if task is None:
                continue
            if event["event"] == "started":
                self._confirm(task)
                self._tell({"event": "usage", "job": task.id, "used": {"cput": 0, "mem": 0, "vmem": 0}})
            else:
                task.status = event["status"]
                self._ended(task)

    def _terminate(self, task: Task) -> None:
        task.send(signal.SIGTERM)
        if task.kill_at is None:
            task.kill_at = time.monotonic() + task.spec["kill_delay"]
            self._after(task.spec["kill_delay"], "kill", task.id)
        if task.stopped_at:
            self._signal(task, signal.SIGCONT)

    def _signal(self, task: Task, number: int) -> None:
        now = time.monotonic()
        if number == signal.SIGSTOP and not task.stopped_at:
            task.stopped_at = now
        elif number == signal.SIGCONT and task.stopped_at:
            task.stopped_for += now - task.stopped_at
            task.stopped_at = 0.0
            self._arm_walltime(task)
        task.send(number)

    def _reap(self) -> None:
        gone: list[Task] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            task = self.by_pid.pop(pid, None)
            if task is None:
                continue  # a job's orphan, or a child that only wrote a note
            if task.delivering == pid:
                self._ended(task)
                continue
            code = os.waitstatus_to_exitcode(status)
            task.status = code if code >= 0 else 256 - code
            gone.append(task)
        if gone:
            self._leaders_gone(gone)

    def _leaders_gone(self, tasks: list[Task]) -> None:
        """Sessions' leaders have ended: what is left goes too, at once or when kill_delay is over."""
        now = time.monotonic()
        left = processes.sessions()
        doomed = {task.pid for task in tasks if task.pid in left and (task.kill_at is None or task.kill_at <= now)}
        if doomed:
            processes.kill_sessions(doomed)
            left = processes.sessions()
        for task in tasks:
            if task.pid in left:
                self._after(LINGER, "linger", task.id)
                continue
            task.delivering = launch.deliver(task.spec, self._result(task))
            if task.delivering:
                self.by_pid[task.delivering] = task
            else:
                self._ended(task)

    def _result(self, task: Task) -> int:
        status = task.status if task.status is not None else -1
        return WALLTIME_EXCEEDED if task.over_walltime else status

    def _ended(self, task: Task) -> None:
        del self.tasks[task.id]
        self._confirm(task)
        if not task.spec.get("forgotten"):
            self._obit(task.id, self._result(task), task.usage)

    def _obit(self, job: str, status: int, usage: Usage) -> None:
        used = {"cput": int(usage.cput), "mem": usage.mem, "vmem": usage.vmem}
        obit = {"event": "ended", "job": job, "status": status, "used": used}
        self.obits[job] = obit
        if self.server is None:
            self._keep(obit)
        self._tell(obit)

    # -- timers

    def _after(self, seconds: float, kind: str, job: str) -> None:
        self.counter += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.counter, kind, job))

    def _fire(self) -> None:
        now = time.monotonic()
        due: list[tuple[str, Task]] = []
        while self.timers and self.timers[0][0] <= now:
            _, _, kind, job = heapq.heappop(self.timers)
            task = self.tasks.get(job)
            if task is not None and not task.delivering:
                due.append((kind, task))
        if any(kind == "usage" for kind, _ in due):
            self._measure([task for kind, task in due if kind == "usage"])
        kill(task for kind, task in due if kind == "kill")
        lingering = [task for kind, task in due if kind == "linger"]
        if lingering:
            self._leaders_gone(lingering)
        for kind, task in due:
            if kind == "started":
                self._confirm(task)
            elif kind == "walltime" and not task.over_walltime and not task.stopped_at:
                self._check_walltime(task)

    def _check_walltime(self, task: Task) -> None:
        left = self._walltime_left(task)
        if left > 0:
            self._after(left, "walltime", task.id)
            return
        task.over_walltime = True
        limit = task.spec["walltime"]
        launch.note(task.spec, f"=>> PBS: job killed: walltime {int(limit - left)} exceeded limit {limit}\n")
        self._terminate(task)

    def _measure(self, tasks: list[Task]) -> None:
        found = processes.sessions()
        for task in tasks:
            members = [usage for _, usage in found.get(task.pid, [])]
            task.usage = Usage(
                max(task.usage.cput, sum(usage.cput for usage in members)),
                max(task.usage.mem, sum(usage.mem for usage in members)),
                max(task.usage.vmem, sum(usage.vmem for usage in members)),
            )
            used = {"cput": int(task.usage.cput), "mem": task.usage.mem, "vmem": task.usage.vmem}
            if not task.reported_usage:
                used = {"cput": 0, "mem": 0, "vmem": 0}  # the first report of a real MoM has nothing but zeros
                task.reported_usage = True
            self._tell({"event": "usage", "job": task.id, "used": used})
            self._after(USAGE_INTERVAL, "usage", task.id)


def main(prefix: str) -> None:
    """Run the MoM of the installation at `prefix`; ends at once when there is one already."""
    private = f"{prefix}/var/private"
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(f"{private}/mom.sock")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
            raise
        MomServer(private).run()
    finally:
        probe.close()
