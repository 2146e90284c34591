"""Which host keys a file in OpenSSH's known_hosts format allows. Pure; @cert-authority lines are not honoured."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Key blobs (as on the wire) by what the file says of them."""

    accepted: frozenset[bytes]
    revoked: frozenset[bytes]
    types: tuple[str, ...]  # key types of `accepted`, so that the server is asked for one of these

    def allows(self, blob: bytes) -> bool:
        """Whether a server may show this key."""
        return blob in self.accepted and blob not in self.revoked


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key that a server shows: its type (`ssh-ed25519`), the blob as on the wire."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` writes it.

        >>> HostKey("ssh-ed25519", b"ABC").fingerprint
        'SHA256:tdQEXD9Gb6kf4sxqvnkjKhpXzfEE96JucW4KHieJ33g'
        """
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def line(self, host: str, port: int) -> str:
        """The line of a known_hosts file that allows this key.

        >>> HostKey("ssh-ed25519", b"ABC").line("login", 2222)
        '[login]:2222 ssh-ed25519 QUJD'
        """
        return f"{_name(host, port)} {self.type} {base64.b64encode(self.blob).decode()}"


def lookup(text: str, host: str, port: int) -> KnownKeys:
    """Return what a known_hosts file says of a host. Lines that cannot be read are left out, so they allow nothing.

    >>> keys = lookup("login ssh-ed25519 QUJD a comment\\n@revoked * ssh-ed25519 WFla\\n", "login", 22)
    >>> keys.allows(b"ABC"), keys.allows(b"XYZ"), keys.types
    (True, False, ('ssh-ed25519',))
    >>> lookup("login ssh-ed25519 QUJD", "login", 2222).allows(b"ABC")
    False
    """
    name = _name(host, port)
    accepted: dict[bytes, str] = {}
    revoked: set[bytes] = set()
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", "@revoked") or not _matches(words[0], name):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue
        if marker:
            revoked.add(blob)
        else:
            accepted[blob] = words[1]
    return KnownKeys(frozenset(accepted), frozenset(revoked), tuple(dict.fromkeys(accepted.values())))


def _name(host: str, port: int) -> str:
    return host if port == 22 else f"[{host}]:{port}"


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _hash_matches(patterns, name)
    found = False
    for pattern in patterns.split(","):
        negated = pattern.startswith("!")
        # Only * and ? are special to OpenSSH; a [ stands for itself, as in [host]:port.
        escaped = pattern.lstrip("!").lower().replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), escaped):
            if negated:
                return False
            found = True
    return found


def _hash_matches(field: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in field[3:].split("|"))
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
