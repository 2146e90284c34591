"""`minipbs-fault NAME VALUE|off` and `minipbs-fault stats`: turns faults on and off in a running server."""

from __future__ import annotations

import socket
import sys

USAGE = """\
usage: minipbs-fault connection-budget N|off     connections a minute for the login host; beyond it commands hang
       minipbs-fault slow SECONDS|off            every reply comes later
       minipbs-fault refuse on|off               new connections are refused
       minipbs-fault down on|off                 the server is gone; jobs live on
       minipbs-fault lose-reply on|COUNT|off     qsub: accepted, but the reply never comes
       minipbs-fault garbage on|off              -F json is broken
       minipbs-fault history on|off              job_history_enable
       minipbs-fault vanish JOBID[:kill]         the server forgets a job; its processes live on, or are killed
       minipbs-fault fill USER COUNT [OPTION ...]    so many jobs of that user by qsub's options; held without any
       minipbs-fault stats                       connections: total, times of the last minute, refused
"""


def ask(prefix: str, words: list[str], timeout: float = 10.0) -> str:
    """One exchange with the server's private socket. Raises OSError when there is no server."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(f"{prefix}/var/private/control.sock")
        connection.sendall(" ".join(words).encode())
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while data := connection.recv(1 << 16):
            parts.append(data)
    return b"".join(parts).decode()


def main(prefix: str, words: list[str]) -> None:
    """The program."""
    if not words or (len(words) != 2 and words != ["stats"] and not (words[0] == "fill" and len(words) > 2)):
        sys.stderr.write(USAGE)
        sys.exit(2)
    try:
        reply = ask(prefix, words)
    except OSError as error:
        sys.stderr.write(f"minipbs-fault: no server: {error}\n")
        sys.exit(1)
    if reply.startswith("error"):
        sys.stderr.write(f"minipbs-fault: {reply}")
        sys.exit(1)
    if words == ["stats"]:
        sys.stdout.write(reply)
