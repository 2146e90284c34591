"""known_hosts lines as OpenSSH means them; what cannot be read allows nothing."""

from __future__ import annotations

import base64
import doctest
import hashlib
import hmac

import pytest

from pbs_adapter.transport import known_hosts
from pbs_adapter.transport.known_hosts import lookup

KEY, OTHER = b"the key", b"another key"


def line(names: str, key: bytes = KEY, kind: str = "ssh-ed25519") -> str:
    return f"{names} {kind} {base64.b64encode(key).decode()} a comment\n"


def hashed(name: str) -> str:
    salt = b"01234567890123456789"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def test_doctests() -> None:
    assert doctest.testmod(known_hosts).failed == 0


@pytest.mark.parametrize(
    ("names", "host", "port", "found"),
    [
        ("login", "login", 22, True),
        ("login,10.0.0.1", "10.0.0.1", 22, True),
        ("LOGIN.example", "login.EXAMPLE", 22, True),
        ("login", "login", 2222, False),
        ("[login]:2222", "login", 2222, True),
        ("[login]:2222", "login", 22, False),
        ("*.example", "a.example", 22, True),
        ("*.example,!b.example", "b.example", 22, False),
        ("!b.example,*.example", "b.example", 22, False),
        ("!b.example", "a.example", 22, False),
        ("login?", "login1", 22, True),
        ("login?", "login", 22, False),
        ("[ab]login", "alogin", 22, False),
        ("[::1]:2222", "::1", 2222, True),
        (hashed("login"), "login", 22, True),
        (hashed("login"), "login2", 22, False),
        (hashed("[login]:2222"), "login", 2222, True),
        ("|1|rubbish", "login", 22, False),
        ("|1|a|b", "login", 22, False),
        ("", "login", 22, False),
    ],
)
def test_names(names: str, host: str, port: int, found: bool) -> None:
    assert lookup(line(names), host, port).allows(KEY) is found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# login ssh-ed25519 AAAA\n",
        "login\n",
        "login ssh-ed25519\n",
        "login ssh-ed25519 not-base64!\n",
        "@revoked\n",
        "@\n",
        "@cert-authority " + line("login"),
        "@other " + line("login"),
    ],
)
def test_other_lines_allow_nothing(text: str) -> None:
    found = lookup(text, "login", 22)
    assert not found.allows(KEY)
    assert not found.accepted


def test_one_of_several_keys_is_enough_and_a_revoked_one_is_not() -> None:
    text = line("login", OTHER, "ssh-rsa") + line("login") + "@revoked " + line("*", OTHER)
    found = lookup(text, "login", 22)
    assert found.allows(KEY)
    assert not found.allows(OTHER)
    assert found.types == ("ssh-rsa", "ssh-ed25519")
