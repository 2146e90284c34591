"""podrun's main loop: gather what happened, ask podrun_decide, act, write status.json. It holds no rules of its own.

The loop wakes for each signal and at least every 0.25 s. Blocking work (logs) is on another thread.
"""

import json
import os
import select
import signal
import socket
import tempfile
import time
import traceback
from typing import Any, Dict, List, Optional

from . import podrun_files, podrun_numa, podrun_orders, podrun_process, podrun_setup
from .podrun_decide import Decision, Ending, Seen, Situation, decide, ended_result, exit_status, why_end
from .podrun_logs import LogPump
from .podrun_memory import MemoryFolder, make
from .podrun_run import Run, runtimes_for, start
from .podrun_runtime import Places, Runtime, StartFailed
from .podrun_spec import Pod
from .podrun_state import Record
from .podrun_status import StatusFile
from .podrun_volumes import open_up

TICK = 0.25
STOP_EVERY = 0.4  # seconds between looks at stop.json: two operations of the shared file system for each pod
LIMITS_EVERY = 2.0  # the same for limits.json, which hardly any pod has
WRITE_EVERY = 0.2


class Clock:
    """Seconds that stand still while PBS has the job suspended, like walltime: SIGCONT tells, the gap is left out."""

    def __init__(self) -> None:
        self._last = self.started = self.now = time.monotonic()
        self._suspended = 0.0
        self._continued = False

    def resumed(self) -> None:
        """SIGCONT came."""
        self._continued = True

    def tick(self) -> None:
        present = time.monotonic()
        if self._continued:
            self._continued = False
            self._suspended += max(0.0, present - self._last - TICK)
        self._last = present
        self.now = present - self._suspended


class Signals:
    """The signals podrun knows. None ends it; SIGTERM (and Ctrl-C) ends the pod; each wakes the loop."""

    def __init__(self, clock: Clock) -> None:
        self.terminated = False
        self._wake, writer = socket.socketpair()
        self._wake.setblocking(False)
        writer.setblocking(False)
        self._writer = writer
        signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        # Handlers, not SIG_IGN: what is ignored would stay ignored in the containers.
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGXCPU, signal.SIGTSTP):
            signal.signal(number, lambda number, frame: None)
        signal.signal(signal.SIGCONT, lambda number, frame: clock.resumed())

    def _terminate(self, number: int, frame: Any) -> None:
        self.terminated = True

    def wait(self, seconds: float) -> None:
        """Sleep until a signal comes, `seconds` at most."""
        if select.select([self._wake], [], [], max(0.0, seconds))[0]:
            try:
                self._wake.recv(4096)
            except BlockingIOError:
                pass


class PodRun:
    """One pod from claim to final status."""

    def __init__(
        self,
        directory: str,
        pod: Pod,
        status: StatusFile,
        clock: Clock,
        signals: Signals,
        job_id: str,
        pump: Optional[LogPump] = None,
    ) -> None:
        self._directory = directory
        self._job_id = job_id
        self._pod = pod
        self._status = status
        self._clock = clock
        self._signals = signals
        self._host_ip = podrun_setup.host_address()
        self._numa = podrun_numa.look()
        self._started_at = time.time()
        self._records = [Record(container, pod) for container in pod.containers]
        self._runs: List[Run] = []
        self._runtimes: Dict[str, Runtime] = {}
        self._setup: Dict[bytes, bytes] = {}
        self._scratch = ""
        self._memory: Optional[MemoryFolder] = None
        self._pump = pump or LogPump()
        self._ending: Optional[Ending] = None
        self._stop_grace: Optional[float] = None
        self._stop_read = self._limits_read = 0.0
        self._shown = self._phase = ""
        self._written = 0.0

    def run(self) -> int:
        """Run the pod; the exit code of podrun."""
        self._pump.start()
        self._write("Starting", Decision())
        split = podrun_numa.split(self._numa, self._pod.numa_by_vnodes) if self._pod.numa_required else ""
        try:
            if split:
                result = self._give_up(split, "NUMASplit")
            else:
                self._prepare()
                result = self._loop()
        except StartFailed as error:
            result = self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the bridge must hear that the pod has failed
            traceback.print_exc()
            result = self._give_up("podrun failed: %r" % error)
        self._pump.stop(timeout=10.0)
        return self._finish(result)

    def _prepare(self) -> None:
        try:
            self._scratch = tempfile.mkdtemp(prefix="podrun-")  # in TMPDIR, which PBS removes after the job
        except OSError as error:
            raise StartFailed("no temporary folder: %s" % error) from error
        mounts = [mount for container in self._pod.containers for mount in container.mounts]
        in_memory = {os.path.basename(mount.source) for mount in mounts if mount.in_memory}
        if in_memory:
            self._memory = make(sorted(in_memory))
        open_up(self._directory, mounts)
        self._setup = podrun_setup.run(self._pod.setup, os.environb, self._interrupted)
        self._runtimes = runtimes_for(self._pod, self._setup, self._interrupted)

    def _loop(self) -> str:
        while True:
            self._clock.tick()
            decision = self._step()
            if decision.result is not None:
                return decision.result
            self._signals.wait(TICK if decision.wake is None else min(TICK, decision.wake - self._clock.now))

    def _give_up(self, message: str, reason: str = "PBSStartFailed") -> str:
        for run in self._runs:
            run.process.kill()
        self._ending = Ending(reason, message[:4096], self._clock.now, self._clock.now)
        return "Failed"

    def _interrupted(self) -> bool:
        self._clock.tick()
        self._look_outside()
        return self._ending is not None

    def _step(self) -> Decision:
        """One turn: take in, decide, act, show."""
        for pid, status in podrun_process.reap():
            for run in self._runs:
                run.process.reaped(pid, status)
        self._runs = [run for run in self._runs if not run.poll(self._pod, self._pump, self._clock.now)]
        self._look_outside()
        if self._ending is not None:
            return self._end(self._ending)
        decision = decide(self._pod.restart_policy, self._seen(), self._clock.now)
        for name in decision.start:
            self._start(next(record for record in self._records if record.container.name == name))
        if decision.start:  # one that failed to start is decided about at once
            decision = decide(self._pod.restart_policy, self._seen(), self._clock.now)._replace(
                wake=self._clock.now if any(item.state != "running" for item in self._seen()) else None
            )
        if decision.result is None:
            self._write(decision.phase, decision)
        return decision

    def _start(self, record: Record) -> None:
        name = record.container.name
        memory = self._memory.path if self._memory is not None else ""
        places = Places(self._directory, os.path.join(self._scratch, name), memory)
        run = start(record, self._pod, self._runtimes[name], places, self._pump, self._setup, self._clock.now)
        if run is not None:
            self._runs.append(run)

    def _end(self, ending: Ending) -> Decision:
        for run in self._runs:
            run.end(self._clock.now >= ending.kill_at)
        if not self._runs:
            return Decision(result=ended_result(ending.reason, self._seen()))
        self._write("Stopping", Decision())
        return Decision(wake=ending.kill_at if ending.kill_at > self._clock.now else None)

    def _seen(self) -> List[Seen]:
        return [record.seen() for record in self._records]

    def _look_outside(self) -> None:
        """Stop requests, PBS's signal, deadline and walltime."""
        if self._signals.terminated or self._clock.now - self._stop_read >= STOP_EVERY:
            self._stop_read = self._clock.now
            self._stop_grace = podrun_orders.stop_grace(self._directory, self._pod.grace)
        if self._clock.now - self._limits_read >= LIMITS_EVERY:
            self._limits_read = self._clock.now
            deadline = podrun_orders.deadline(self._directory, self._pod.deadline)
            self._pod = self._pod._replace(deadline=deadline)
        situation = Situation(
            now=self._clock.now,
            started=self._clock.started,
            elapsed=time.monotonic() - self._clock.started,
            stop_grace=self._stop_grace,
            signalled=self._signals.terminated,
            full=self._pump.full or self._status.full,
        )
        self._ending = why_end(self._pod, situation, self._ending)

    def _finish(self, result: str) -> int:
        """No container runs any more: end what they left behind, leave the final status and no secrets."""
        if self._runtimes:
            podrun_process.end_leftovers()
        if self._memory is not None:
            self._memory.remove()
        podrun_files.remove_tree(os.path.join(self._directory, "secrets"))
        deadline = time.monotonic() + 60.0
        while not self._write("Ended", Decision(result=result)) and time.monotonic() < deadline:
            time.sleep(1.0)
        self._status.release()
        if self._scratch:
            podrun_files.remove_tree(self._scratch)
        return exit_status(result, self._seen())

    def _write(self, phase: str, decision: Decision) -> bool:
        """Write status.json if it says something new; a new phase at once, other changes not too often."""
        ending = self._ending
        document = {
            "version": 1,
            "uid": self._pod.uid,
            "host": os.uname()[1],
            "host_ip": self._host_ip,
            "job_id": self._job_id,
            "started_at": self._started_at,
            "phase": phase,
            "reason": ending.reason if ending else "",
            "message": ending.message if ending else "",
            "result": decision.result,
            "numa": self._numa.shown(),
            "isolation": ",".join(sorted({runtime.wall for runtime in self._runtimes.values()})) or None,
            "containers": {
                record.container.name: record.shown(record.container.name in decision.backing_off)
                for record in self._records
            },
        }
        shown = json.dumps(document, sort_keys=True)
        if shown == self._shown:
            return True
        if phase == self._phase and time.monotonic() - self._written < WRITE_EVERY:
            return False
        self._written = time.monotonic()
        if not self._status.write(dict(document, written_at=time.time()), last=phase == "Ended"):
            return False
        self._shown, self._phase = shown, phase
        return True
