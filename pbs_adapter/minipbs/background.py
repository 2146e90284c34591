"""The background qsub: one per user, holding one connection to the server, as the real qsub leaves behind.

It ends a minute after the last submission, or when the server closes the connection.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket

from .protocol import request_length, take_piece

IDLE_SECONDS = 60.0


def serve(run: str, descriptor: int) -> None:
    """Take the user's qsubs one after another until idle; returns at once if another such process is there."""
    server = socket.socket(fileno=descriptor)
    uid = os.getuid()
    lock = os.open(f"{run}/qsub.{uid}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    path = f"{run}/qsub.{uid}"
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX)
    os.umask(0o077)
    listener.bind(path)
    listener.listen(512)
    try:
        while True:
            ready, _, _ = select.select([listener, server], [], [], IDLE_SECONDS)
            if not ready or server in ready:
                return
            client, _ = listener.accept()
            with client:
                if not pass_on(client, server):
                    return
    finally:
        os.unlink(path)


def pass_on(client: socket.socket, server: socket.socket) -> bool:
    """Carry one request to the server and its reply back; False when the server is gone."""
    request = bytearray()
    while len(request) < 8 or len(request) < request_length(request):
        try:
            data = client.recv(1 << 18)
        except OSError:
            return True
        if not data:
            return True
        request += data
    try:
        server.sendall(request)
        return _carry_reply(client, server)
    except OSError:
        return False


def _carry_reply(client: socket.socket, server: socket.socket) -> bool:
    pending = bytearray()
    reply = bytearray()
    while True:
        data = server.recv(1 << 18)
        if not data:
            return False
        pending += data
        reply += data
        while (piece := take_piece(pending)) is not None:
            if piece[0] == b"x":
                try:
                    client.sendall(reply)
                except OSError:
                    pass  # the qsub was interrupted; its job is submitted all the same
                return True
