"""How commands and server talk: kept free of imports, because every qsub pays for what is imported here.

Request: lengths of head and body (4 bytes each, big-endian), head, body. The head is a list of NUL-separated fields:
command, cwd, state of the script ("-" none, "!" unreadable, "+" in the body), number of arguments, the arguments, the
environment as NAME=value. Reply: pieces of one letter ("o" stdout, "e" stderr, "x" exit status), length, content;
"x" is the last.
"""

from __future__ import annotations


def pack_request(command: str, cwd: str, script: str, argv: list[bytes], env: list[bytes], body: bytes) -> bytes:
    """One request as bytes."""
    fields = [command.encode(), cwd.encode("utf-8", "surrogateescape"), script.encode(), str(len(argv)).encode()]
    head = b"\0".join(fields + argv + env)
    return len(head).to_bytes(4, "big") + len(body).to_bytes(4, "big") + head + body


def request_length(buffer: bytes | bytearray) -> int:
    """How long the request that begins the buffer is, 0 while even that is unknown."""
    if len(buffer) < 8:
        return 0
    return 8 + int.from_bytes(buffer[:4], "big") + int.from_bytes(buffer[4:8], "big")


def piece(letter: bytes, content: bytes) -> bytes:
    """One piece of a reply."""
    return letter + len(content).to_bytes(4, "big") + content


def take_piece(buffer: bytearray) -> tuple[bytes, bytes] | None:
    """Remove the first complete piece from the buffer, if there is one."""
    if len(buffer) < 5:
        return None
    end = 5 + int.from_bytes(buffer[1:5], "big")
    if len(buffer) < end:
        return None
    letter, content = bytes(buffer[:1]), bytes(buffer[5:end])
    del buffer[:end]
    return letter, content
