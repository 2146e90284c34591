"""The server process: one loop over connections, the MoM and timers. Everything it decides is decided elsewhere."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import stat
import sys
import time
from typing import Any

from .commands import answer
from .complex import Complex
from .config import Config
from .faults import Faults
from .fill import fill
from .jobs import Job
from .journal import Journal
from .lifecycle import Lifecycle
from .momlink import MomLink
from .peers import Peers

COALESCE = 0.02
"""Scheduling cycles are at least this far apart (seconds)."""
LEAVING = 10.0
"""How long to wait for the MoM to end all jobs (seconds)."""


class PbsServer:
    """One complex, served."""

    def __init__(self, prefix: str, kill_jobs: bool) -> None:
        self.prefix = prefix
        self.kill_jobs = kill_jobs
        with open(f"{prefix}/etc/config.json") as file:
            self.config = Config.loads(file.read())
        now = time.time()
        self.complex = Complex(self.config, now)
        self.mom = MomLink(prefix, self.config, self._mom_event)
        self.life = Lifecycle(self.complex, self.mom)
        self.faults = Faults()
        self.journal = Journal(f"{prefix}/var/private/jobs.journal")
        self.selector = selectors.DefaultSelector()
        self.peers = Peers(self.selector, self.config, self.faults, lambda request: answer(self.life, request))
        self.listener: socket.socket | None = None
        self.control: socket.socket | None = None
        self.stopping = False
        self.last_cycle = 0.0
        self._restore(now)

    # -- start and stop

    def _restore(self, now: float) -> None:
        jobs, self.complex.next_seq, self.complex.next_rank = self.journal.load()
        for job in jobs:
            self.complex.restore(job, now)
        self.complex.changed.clear()
        self.life.wanted = True

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT, or the end of the lifeline on stdin."""
        wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self.selector.register(wake_in, selectors.EVENT_READ, ("wake", wake_in))
        self._register_mom()
        self.control = self._listen(f"{self.prefix}/var/private/control.sock", 0o600, "control")
        self._open_door()
        if not os.isatty(0) and _is_pipe(0):
            self.selector.register(0, selectors.EVENT_READ, ("lifeline", 0))
        while not self.stopping:
            for key, mask in self.selector.select(self._timeout()):
                self._event(key, mask)
            self._turn()
        self._shut_down()

    def _register_mom(self) -> None:
        self.selector.register(self.mom.connect(), selectors.EVENT_READ, ("mom", None))

    def _listen(self, path: str, mode: int, kind: str) -> socket.socket:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, mode)
        listener.listen(4096)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, (kind, listener))
        return listener

    def _open_door(self) -> None:
        """Listen for commands, unless a fault forbids it."""
        wanted = not (self.faults.refuse or self.faults.down)
        if wanted and self.listener is None:
            self.listener = self._listen(f"{self.prefix}/run/server.sock", 0o666, "listener")
        elif not wanted and self.listener is not None:
            self.selector.unregister(self.listener)
            self.listener.close()
            self.listener = None
            os.unlink(f"{self.prefix}/run/server.sock")
        if self.faults.down:
            self.peers.drop_all()

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _shut_down(self) -> None:
        for path in ("run/server.sock", "var/private/control.sock"):
            try:
                os.unlink(f"{self.prefix}/{path}")
            except FileNotFoundError:
                pass
        self.peers.drop_all()
        self._save()
        self.journal.close()
        if self.mom.socket is not None:
            self.mom.socket.setblocking(True)
            if self.kill_jobs:
                self.mom.send("leave")
            self.mom.flush()
            self.mom.socket.settimeout(LEAVING)
            try:
                while self.kill_jobs and self.mom.socket.recv(1 << 16):
                    pass
            except OSError:
                pass
            if self.kill_jobs and self.mom.process is not None:
                self.mom.process.wait(LEAVING)

    # -- the loop

    def _timeout(self) -> float:
        if self.life.wanted and not self.faults.down:
            return max(0.0, self.last_cycle + COALESCE - time.monotonic())
        if self.life.ending or self.peers.restless:
            return 0.02
        return min(1.0, self.config.scheduler_iteration)

    def _event(self, key: selectors.SelectorKey, mask: int) -> None:
        kind, what = key.data
        if kind == "peer":
            self.peers.event(what, mask)
        elif kind == "listener":
            self.peers.accept(what)
        elif kind == "control":
            self._control(what)
        elif kind == "mom":
            if not self.faults.down and not self.mom.read():
                self._mom_gone(key)
        elif kind == "wake":
            os.read(what, 4096)
        elif not os.read(0, 4096):  # lifeline: whoever started the server has died
            self.kill_jobs = self.stopping = True

    def _turn(self) -> None:
        """After the events: due replies, a scheduling cycle, the journal, the MoM; then replies may leave."""
        if self.faults.down:
            return
        now = time.monotonic()
        due = self.life.wanted or now - self.last_cycle >= self.config.scheduler_iteration
        if not due and self.complex.waiting:
            wall = time.time()
            due = any(self.complex.jobs[job_id].execution_time <= wall for job_id in self.complex.waiting)
        if due and now - self.last_cycle >= COALESCE:
            self.last_cycle = now
            self.life.run_cycle(time.time())
        self.life.finish_ended(time.time())
        self.peers.turn(now)
        self._save()
        self.mom.flush()
        self.peers.flush()

    def _save(self) -> None:
        if self.complex.changed or self.complex.forgotten:
            self.journal.write(self.complex.changed.values(), self.complex.forgotten)
            self.complex.changed.clear()
            self.complex.forgotten.clear()

    # -- the MoM

    def _mom_event(self, event: dict[str, Any]) -> None:
        now = time.time()
        if event["event"] == "hello":
            self._reconcile(event["alive"], event["ended"], now)
            return
        job = self.complex.running.get(event["job"])
        if event["event"] == "ended":
            self.mom.send("ack", job=event["job"])
            if job is not None:
                self.life.ended(job, event["status"], event["used"], now)
        elif job is None:
            return
        elif event["event"] == "started":
            self.life.started(job, event["sid"], now)
        else:
            self.life.usage(job, event["used"], now)

    def _reconcile(self, alive: dict[str, int], ended: list[dict[str, Any]], now: float) -> None:
        """After a restart of the server or the MoM: running jobs are adopted, ends recorded, lost ones given up."""
        for event in ended:
            self._mom_event(event)
        for job in list(self.complex.running.values()):
            if job.id not in alive:
                self.life.ended(job, -20, {}, now)
            elif job.substate == 41:
                self.life.started(job, alive[job.id], now)
        self.complex.changed.update({job.id: job for job in self.complex.running.values()})

    def _mom_gone(self, key: selectors.SelectorKey) -> None:
        self.selector.unregister(key.fileobj)
        self._register_mom()

    # -- minipbs-fault

    def _control(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(1.0)
            try:
                words = connection.recv(4096).decode().split()
                reply = self._fault(words)
                connection.sendall(reply.encode())
            except (OSError, ValueError, UnicodeDecodeError) as error:
                print(f"minipbs: control: {error}", file=sys.stderr)
                connection.sendall(f"error: {error}\n".encode())

    def _fault(self, words: list[str]) -> str:
        name, value = (*words, "", "")[:2]
        if name == "stats":
            return json.dumps(self.faults.stats(time.monotonic(), time.time())) + "\n"
        if name == "stop":
            self.kill_jobs = self.kill_jobs or value == "kill"
            self.stopping = True
        elif name == "history" and value in ("on", "off"):
            self.complex.history = value == "on"
        elif name == "vanish":
            self._vanish(*value.partition(":")[::2])
        elif name == "fill":
            fill(self.life, value, int(words[2]), words[3:], time.time())
        elif name != "ping":
            self.faults.set(name, value)
            self._open_door()
        return "ok\n"

    def _vanish(self, job_id: str, how: str) -> None:
        job: Job | None = self.complex.jobs.get(job_id)
        if job is None:
            raise ValueError(f"no such job: {job_id}")
        if job.state in "RSE":
            self.mom.send("forget", job=job.id)
            if how == "kill":
                self.mom.kill(job)
        self.life.lose(job, time.time())


def _is_pipe(descriptor: int) -> bool:
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode)


def main(prefix: str, words: list[str]) -> None:
    """Run the server of the installation at `prefix`; `--kill-jobs` ends all jobs when the server is stopped."""
    os.umask(0o022)
    PbsServer(prefix, "--kill-jobs" in words).run()
