"""Connections to the server: who is there, what they ask, and the faults that a network and a login host add."""

from __future__ import annotations

import os
import pwd
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

from .config import Config
from .errors import CANNOT_CONNECT
from .faults import PORTS_TEXT, WINDOW, Faults, garble
from .protocol import piece, request_length
from .replies import Err, Out, Reply, Request, Until
from .submit import Caller

BATCH = 1 << 16
"""So much of a long reply is made at a time (bytes), that other requests need not wait for all of it."""
LONGEST_WAIT = 10.0
STATUS_WHEN_UNREACHABLE = {"qstat": 255, "pbsnodes": 1, "qmgr": 1}


class Peer:
    """One connection: what has come, what is still to go, and the reply that is being made."""

    def __init__(self, connection: socket.socket, uid: int) -> None:
        self.socket = connection
        self.uid = uid
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.request: Request | None = None
        self.reply: Reply | None = None
        self.until: Until | None = None
        self.deadline = 0.0
        self.since = time.monotonic()
        self.admitted = False
        self.closing = False

    @property
    def open(self) -> bool:
        return self.socket.fileno() >= 0


class Peers:
    """All connections. `perform` makes the answer to a request; replies leave when `flush` is called."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        config: Config,
        faults: Faults,
        perform: Callable[[Request], Reply],
    ) -> None:
        self.selector = selector
        self.config = config
        self.faults = faults
        self.perform = perform
        self.all: dict[int, Peer] = {}
        self._without_port: deque[Peer] = deque()
        self._delayed: list[Peer] = []
        self._users: dict[int, str] = {}

    @property
    def restless(self) -> bool:
        """Whether something is due soon that no event will announce."""
        return bool(self._delayed or self._without_port or any(peer.until for peer in self.all.values()))

    def accept(self, listener: socket.socket) -> None:
        """Take in new connections, as far as the login host has ports for them."""
        for _ in range(64):
            try:
                connection, _address = listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            peer = Peer(connection, struct.unpack("3i", credentials)[1])
            self.all[connection.fileno()] = peer
            if self._without_port or not self.faults.admit(time.monotonic()):
                self._without_port.append(peer)
            else:
                peer.admitted = True
                self.selector.register(connection, selectors.EVENT_READ, ("peer", peer))

    def turn(self, now: float) -> None:
        """What has become due: free ports, slow replies, replies that waited for something. `now` is monotonic."""
        while self._without_port:
            peer = self._without_port[0]
            expired = now - peer.since >= WINDOW
            if not expired and not self.faults.admit(now):
                break
            self._without_port.popleft()
            if peer.open:
                peer.admitted = not expired
                self.faults.refused += expired
                self.selector.register(peer.socket, selectors.EVENT_READ, ("peer", peer))
        for peer in [one for one in self._delayed if one.deadline <= now]:
            self._delayed.remove(peer)
            self._answer(peer)
        for peer in [one for one in self.all.values() if one.until is not None]:
            if peer.until is not None and (peer.until.done() or peer.deadline <= now):
                peer.until = None
                self._advance(peer)

    def flush(self) -> None:
        """Send what is ready; what it reports must be on disk by now."""
        for peer in [one for one in self.all.values() if one.outgoing or one.closing]:
            self._send(peer)

    def event(self, peer: Peer, mask: int) -> None:
        """Readable or writable."""
        if mask & selectors.EVENT_WRITE:
            self._send(peer)
        if not mask & selectors.EVENT_READ or not peer.open:
            return
        try:
            data = peer.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(peer)
            return
        peer.incoming += data
        if peer.request is None:
            self._next_request(peer)

    def drop(self, peer: Peer) -> None:
        """Close a connection, whatever it was waiting for."""
        self.all.pop(peer.socket.fileno(), None)
        try:
            self.selector.unregister(peer.socket)
        except (KeyError, ValueError):
            pass  # it never got a port
        peer.socket.close()
        peer.reply = peer.until = peer.request = None

    def drop_all(self) -> None:
        """Close every connection."""
        for peer in list(self.all.values()):
            self.drop(peer)

    def _next_request(self, peer: Peer) -> None:
        length = request_length(peer.incoming)
        if not length or len(peer.incoming) < length:
            return
        raw = bytes(peer.incoming[:length])
        del peer.incoming[:length]
        peer.request = self._parse(raw, peer.uid)
        if self.faults.slow:
            peer.deadline = time.monotonic() + self.faults.slow
            self._delayed.append(peer)
        else:
            self._answer(peer)

    def _parse(self, raw: bytes, uid: int) -> Request:
        cut = 8 + int.from_bytes(raw[:4], "big")
        fields = [field.decode("utf-8", "surrogateescape") for field in raw[8:cut].split(b"\0")]
        command, cwd, state, count = fields[:4]
        end = 4 + int(count)
        environ = dict(item.partition("=")[::2] for item in fields[end:])
        script = None if state == "!" else raw[cut:].decode("utf-8", "surrogateescape")
        user, manager = self._user(uid), uid in (0, os.geteuid())
        acting = environ.pop("MINIPBS_USER", "")
        if manager and acting in self.config.users:
            user, manager = acting, False
        return Request(command, fields[4:end], script, Caller(user, uid, cwd, environ, manager), time.time())

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def _answer(self, peer: Peer) -> None:
        request = peer.request
        if request is None or not peer.open:
            return
        if not peer.admitted:
            name, status = self.config.server, STATUS_WHEN_UNREACHABLE.get(request.command, CANNOT_CONNECT % 256)
            text = f"{PORTS_TEXT}{request.command}: cannot connect to server {name} (errno={CANNOT_CONNECT})\n"
            failed: list[Out | Err | Until | int] = [Err(text), status]
            peer.reply, peer.closing = iter(failed), True
        elif request.command == "qsub" and self.faults.lose_replies:
            pieces = list(self.perform(request))
            if pieces[-1] == 0 and self.faults.loses_reply():
                self.drop(peer)  # the job is accepted; its submitter never hears of it
                return
            peer.reply = iter(pieces)
        else:
            peer.reply = self.perform(request)
        self._advance(peer)

    def _advance(self, peer: Peer) -> None:
        """Make more of the reply, as far as the peer's buffer has room."""
        text: list[str] = []
        size = 0
        while peer.reply is not None and len(peer.outgoing) + size < BATCH:
            item = next(peer.reply, 1)
            if isinstance(item, Out):
                text.append(item.text)
                size += len(item.text)
                continue
            self._put_text(peer, text)
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
        self._put_text(peer, text)

    def _put_text(self, peer: Peer, text: list[str]) -> None:
        if text:
            broken = self.faults.garbage and peer.request is not None and "json" in peer.request.argv
            self._put(peer, b"o", garble("".join(text)) if broken else "".join(text))

    def _put(self, peer: Peer, letter: bytes, text: str) -> None:
        peer.outgoing += piece(letter, text.encode("utf-8", "surrogateescape"))

    def _send(self, peer: Peer) -> None:
        if not peer.open:
            return
        try:
            while peer.outgoing:
                del peer.outgoing[: peer.socket.send(peer.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(peer)
            return
        if peer.reply is not None and peer.until is None and len(peer.outgoing) < BATCH:
            self._advance(peer)
        if peer.closing and not peer.outgoing and peer.reply is None:
            self.drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outgoing else 0)
        self.selector.modify(peer.socket, wanted, ("peer", peer))
