"""The server process: one loop over connections, the MoM and timers. Everything it decides is decided elsewhere."""

from __future__ import annotations

import json
import os
import pwd
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

from .commands import answer
from .complex import Complex
from .config import Config
from .errors import CANNOT_CONNECT
from .faults import PORTS_TEXT, WINDOW, Faults, garble
from .jobs import LIVE, Job
from .journal import Journal
from .lifecycle import Lifecycle
from .momlink import MomLink
from .protocol import piece, request_length
from .replies import Err, Out, Reply, Request, Until
from .submit import Caller

COALESCE = 0.02
"""Scheduling cycles are at least this far apart (seconds)."""
BATCH = 1 << 16
LONGEST_WAIT = 10.0
QUIET = frozenset({"qstat": 255, "pbsnodes": 1, "qmgr": 1}.items())


class Peer:
    """One connection: what has come, what is still to go, and the reply that is being made."""

    def __init__(self, connection: socket.socket, uid: int) -> None:
        self.socket = connection
        self.uid = uid
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.reply: Reply | None = None
        self.until: Until | None = None
        self.deadline = 0.0
        self.since = time.monotonic()
        self.admitted = False
        self.request: Request | None = None
        self.closing = False


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
        self.peers: dict[int, Peer] = {}
        self.waiting: deque[Peer] = deque()
        self.delayed: list[Peer] = []
        self.listener: socket.socket | None = None
        self.control: socket.socket | None = None
        self.stopping = False
        self.last_cycle = 0.0
        self.users: dict[int, str] = {}
        self._restore(now)

    # -- start and stop

    def _restore(self, now: float) -> None:
        jobs, self.complex.next_seq, self.complex.next_rank = self.journal.load()
        for job in jobs:
            if job.parent is None:
                self.complex.jobs[job.id] = job
            if job.queue not in self.complex.queues:
                job.queue = self.config.default_queue
            self.complex._enter(job)
            if job.pieces and job.state in LIVE:
                self.complex.cluster.take(job.id, job.pieces, job.place, now)
                for host, slot in job.slots:
                    self.complex.use_slot(host, slot)
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
            for peer in list(self.peers.values()):
                self._drop(peer)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _shut_down(self) -> None:
        for path in ("run/server.sock", "var/private/control.sock"):
            try:
                os.unlink(f"{self.prefix}/{path}")
            except FileNotFoundError:
                pass
        for peer in list(self.peers.values()):
            self._drop(peer)
        self._save()
        self.journal.close()
        if self.mom.socket is not None:
            self.mom.socket.setblocking(True)
            if self.kill_jobs:
                self.mom.send("leave")
            self.mom.flush()
            self.mom.socket.settimeout(LONGEST_WAIT)
            try:
                while self.kill_jobs and self.mom.socket.recv(1 << 16):
                    pass
            except OSError:
                pass

    # -- the loop

    def _timeout(self) -> float:
        if self.life.wanted and not self.faults.down:
            return max(0.0, self.last_cycle + COALESCE - time.monotonic())
        if self.delayed or self.waiting or self.life.ending or any(peer.until for peer in self.peers.values()):
            return 0.02
        return min(1.0, self.config.scheduler_iteration)

    def _event(self, key: selectors.SelectorKey, mask: int) -> None:
        kind, what = key.data
        if kind == "peer":
            self._peer_event(what, mask)
        elif kind == "listener":
            self._accept(what)
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
        self._admit_waiting(now)
        for peer in [one for one in self.delayed if one.deadline <= now]:
            self.delayed.remove(peer)
            self._perform(peer)
        for peer in [one for one in self.peers.values() if one.until is not None]:
            if peer.until is not None and (peer.until.done() or peer.deadline <= now):
                peer.until = None
                self._advance(peer)
        self._save()
        self.mom.flush()
        for peer in [one for one in self.peers.values() if one.outgoing or one.closing]:
            self._send(peer)

    def _save(self) -> None:
        if self.complex.changed or self.complex.forgotten:
            self.journal.write(self.complex.changed.values(), self.complex.forgotten)
            self.complex.changed.clear()
            self.complex.forgotten.clear()

    # -- connections

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                connection, _address = listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _pid, uid, _gid = struct.unpack("3i", credentials)
            peer = Peer(connection, uid)
            self.peers[connection.fileno()] = peer
            if self.faults.admit(time.monotonic()):
                peer.admitted = True
                self.selector.register(connection, selectors.EVENT_READ, ("peer", peer))
            else:
                self.waiting.append(peer)

    def _admit_waiting(self, now: float) -> None:
        """Connections beyond the budget hang until a port is free, and fail after a minute."""
        while self.waiting:
            peer = self.waiting[0]
            expired = now - peer.since >= WINDOW
            if not expired and not self.faults.admit(now):
                return
            self.waiting.popleft()
            if peer.socket.fileno() < 0:
                continue
            peer.admitted = not expired
            self.faults.refused += expired
            self.selector.register(peer.socket, selectors.EVENT_READ, ("peer", peer))

    def _peer_event(self, peer: Peer, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send(peer)
        if not mask & selectors.EVENT_READ or peer.socket.fileno() < 0:
            return
        try:
            data = peer.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        peer.incoming += data
        if peer.reply is None and peer.request is None:
            self._next_request(peer)

    def _next_request(self, peer: Peer) -> None:
        length = request_length(peer.incoming)
        if not length or len(peer.incoming) < length:
            return
        raw = bytes(peer.incoming[:length])
        del peer.incoming[:length]
        peer.request = self._parse(raw, peer.uid)
        if self.faults.slow:
            peer.deadline = time.monotonic() + self.faults.slow
            self.delayed.append(peer)
        else:
            self._perform(peer)

    def _parse(self, raw: bytes, uid: int) -> Request:
        cut = 8 + int.from_bytes(raw[:4], "big")
        fields = [field.decode("utf-8", "surrogateescape") for field in raw[8:cut].split(b"\0")]
        command, cwd, state, count = fields[:4]
        end = 4 + int(count)
        environ = dict(item.partition("=")[::2] for item in fields[end:])
        script = None if state == "!" else raw[cut:].decode("utf-8", "surrogateescape")
        owner = uid in (0, os.geteuid())
        user = self._user(uid)
        acting = environ.pop("MINIPBS_USER", "")
        manager = owner
        if acting and owner and acting in self.config.users:
            user, manager = acting, False
        return Request(command, fields[4:end], script, Caller(user, uid, cwd, environ, manager), time.time())

    def _user(self, uid: int) -> str:
        if uid not in self.users:
            try:
                self.users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self.users[uid] = str(uid)
        return self.users[uid]

    def _perform(self, peer: Peer) -> None:
        request = peer.request
        if request is None or peer.socket.fileno() < 0:
            return
        if not peer.admitted:
            name = self.config.server
            text = f"{PORTS_TEXT}{request.command}: cannot connect to server {name} (errno={CANNOT_CONNECT})\n"
            status = dict(QUIET).get(request.command, CANNOT_CONNECT % 256)
            failed: list[Out | Err | Until | int] = [Err(text), status]
            peer.reply = iter(failed)
            peer.closing = True
        else:
            peer.reply = answer(self.life, request)
        if request.command == "qsub" and self.faults.lose_replies and peer.admitted:
            self._lose(peer, request)
            return
        self._advance(peer)

    def _lose(self, peer: Peer, request: Request) -> None:
        """The job is accepted, and the connection breaks before the reply."""
        pieces = list(answer(self.life, request))
        if pieces[-1] == 0 and self.faults.loses_reply():
            self._drop(peer)
            return
        peer.reply = iter(pieces)
        self._advance(peer)

    def _advance(self, peer: Peer) -> None:
        """Make more of the reply, as far as the peer's buffer has room."""
        garbage = self.faults.garbage and peer.request is not None and "json" in peer.request.argv
        text: list[str] = []
        size = 0
        while peer.reply is not None and len(peer.outgoing) + size < BATCH:
            item = next(peer.reply, 1)
            if isinstance(item, Out):
                text.append(item.text)
                size += len(item.text)
                continue
            if text:
                self._put(peer, b"o", garble("".join(text)) if garbage else "".join(text))
                text, size = [], 0
            if isinstance(item, Err):
                self._put(peer, b"e", item.text)
            elif isinstance(item, Until):
                peer.until, peer.deadline = item, time.monotonic() + LONGEST_WAIT
                return
            else:
                self._put(peer, b"x", str(item))
                peer.reply = peer.request = None
                self._next_request(peer)
        if text:
            self._put(peer, b"o", garble("".join(text)) if garbage else "".join(text))

    def _put(self, peer: Peer, letter: bytes, text: str) -> None:
        peer.outgoing += piece(letter, text.encode("utf-8", "surrogateescape"))

    def _send(self, peer: Peer) -> None:
        if peer.socket.fileno() < 0:
            return
        try:
            while peer.outgoing:
                sent = peer.socket.send(peer.outgoing)
                del peer.outgoing[:sent]
                if len(peer.outgoing) < BATCH and peer.reply is not None and peer.until is None:
                    self._advance(peer)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        if peer.closing and not peer.outgoing and peer.reply is None:
            self._drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outgoing else 0)
        self.selector.modify(peer.socket, wanted, ("peer", peer))

    def _drop(self, peer: Peer) -> None:
        self.peers.pop(peer.socket.fileno(), None)
        try:
            self.selector.unregister(peer.socket)
        except (KeyError, ValueError):
            pass
        peer.socket.close()
        peer.reply = peer.until = peer.request = None

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
            self.life._give_back(job, time.time())
        self.complex.forget(job)
        self.life.wanted = True


def _is_pipe(descriptor: int) -> bool:
    import stat

    return stat.S_ISFIFO(os.fstat(descriptor).st_mode)


def main(prefix: str, words: list[str]) -> None:
    """Run the server of the installation at `prefix`; `--kill-jobs` ends all jobs when the server is stopped."""
    os.umask(0o022)
    PbsServer(prefix, "--kill-jobs" in words).run()
