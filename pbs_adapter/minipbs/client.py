"""What the commands on PATH run: send the command line to the server, print what comes back.

On the hot path (`xargs -P8 qsub`) nearly all time is the start of Python, so nothing but `os` and the C socket module
is imported, and all understanding of options is the server's; only qsub looks for its script. Without -f qsub hands
its job to the user's background process (see background.py), which it starts when there is none.
"""

from __future__ import annotations

import os
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket  # the module `socket` costs as much as half a start of Python

from .protocol import pack_request, take_piece

WITH_VALUE = "aAcCeJjklmMNopPqrRSuvW"
ENVIRONMENT = ("HOME", "LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "TZ", "MINIPBS_USER")
CANNOT_CONNECT = {"qstat": 255, "pbsnodes": 1, "qmgr": 1}
LOST = 15031


def main(command: str, prefix: str) -> None:
    """Run a command and end the process with its exit status."""
    words = sys.argv[1:]
    body, state, flags = b"", "-", ""
    if command == "qsub":
        operand, flags = look_for_script(words)
        if operand is not None:
            state, body = read_script(operand)
    argv = [os.fsencode(word) for word in words]
    everything = "V" in flags or "v" in flags
    env = [
        name + b"=" + value
        for name, value in os.environb.items()
        if everything or name.decode("latin-1") in ENVIRONMENT
    ]
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = "/"
    logical = os.environ.get("PWD", "")  # like the real qsub, keep the path that the user sees
    if logical.startswith("/") and os.path.exists(logical) and os.path.samefile(logical, cwd):
        cwd = logical
    request = pack_request(command, cwd, state, argv, env, body)
    if command != "qsub":
        os._exit(ask_server(command, prefix, request)[0])
    background = not any(flag in flags for flag in "fVIz") and words != ["--version"]
    run = f"{prefix}/run"
    if background:
        status = ask_background(f"{run}/qsub.{os.getuid()}", request)
        if status is not None:
            os._exit(status)
    status, connection = ask_server(command, prefix, request)
    if background and connection is not None and os.fork() == 0:
        become_background(run, connection)
    os._exit(status)


def look_for_script(words: list[str]) -> tuple[str | None, str]:
    """The script's path ("" for stdin, None where there is no script), and the flags on the command line."""
    operand = ""
    flags = ""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return None, flags
        if word == "--version":
            return None, flags
        if word == "-" or word[:1] != "-":
            operand = operand or word
            continue
        for position, flag in enumerate(word[1:], 2):
            flags += flag
            if flag in WITH_VALUE:
                if position == len(word):
                    at += 1
                break
    return operand, flags


def read_script(path: str) -> tuple[str, bytes]:
    """The state field of the request, and the script."""
    try:
        descriptor = os.open(path, os.O_RDONLY) if path and path != "-" else 0
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
        return "+", b"".join(parts)
    except OSError:
        return "!", b""


def ask_server(command: str, prefix: str, request: bytes) -> tuple[int, socket | None]:
    """Exit status, and the connection if the server answered on it."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.connect(f"{prefix}/run/server.sock")
    except OSError:
        with open(f"{prefix}/etc/server") as file:
            name = file.read().strip()
        complain(f"Connection refused\n{command}: cannot connect to server {name} (errno=15010)\n")
        return CANNOT_CONNECT.get(command, 162), None
    try:
        connection.sendall(request)
        status = relay(connection)
    except OSError:
        status = None
    if status is None:
        complain(f"{command}: Error {LOST}\n" if command == "qsub" else f"{command}: Server returned error {LOST}\n")
        return LOST % 256, None
    return status, connection


def ask_background(path: str, request: bytes) -> int | None:
    """The exit status, None if there is no background process to ask."""
    try:
        if os.lstat(path).st_uid != os.getuid():
            return None
        connection = socket(AF_UNIX, SOCK_STREAM)
        connection.connect(path)
        connection.sendall(request)
    except OSError:
        return None
    try:
        status = relay(connection)
    except OSError:
        status = None
    if status is None:
        complain("Failed to recv data from background qsub\n")
        return 255
    return status


def relay(connection: socket) -> int | None:
    """Print what the reply says; its exit status, None if it broke off."""
    buffer = bytearray()
    while data := connection.recv(1 << 18):
        buffer += data
        while (piece := take_piece(buffer)) is not None:
            letter, content = piece
            if letter == b"x":
                return int(content)
            write(1 if letter == b"o" else 2, content)
    return None


def write(descriptor: int, content: bytes) -> None:
    """All of it; a reader that has gone ends the command."""
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError:
        os._exit(1)


def complain(text: str) -> None:
    """To stderr."""
    write(2, text.encode())


def become_background(run: str, connection: socket) -> None:
    """In a child that nobody waits for: keep the connection and serve the user's next qsubs with it."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    kept = connection.detach()
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, kept)
    os.closerange(kept + 1, 1024)
    from . import background

    try:
        background.serve(run, kept)
    finally:
        os._exit(0)
