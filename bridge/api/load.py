"""Reads bridge.yaml and says of every mistake in it where it is, what is wrong and what would be right.

Looks at the files that the settings name, and at nothing else: no network.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bridge.api import settings, yamlfile
from bridge.api.settings import Settings
from bridge.api.yamlfile import Document, Problem

_TYPES = "write type: ssh, type: command or type: local"
_PATTERNS = {
    settings.DNS_LABEL: "use lower-case letters, digits and -, at most 63, first and last no -",
    settings.ABSOLUTE: "give a path that starts with /",
    settings.SPOOL: "give a path that starts with / or ~/",
    settings.ADDRESS: "give ADDRESS:PORT, for example 127.0.0.1:10280",
}
_IN_MESSAGE = re.compile(r"([A-Za-z]+(?:\[\d+\])?(?:\.[A-Za-z]+)*): (.*)", re.DOTALL)


class SettingsError(Exception):
    """The settings cannot be used. `problems` are all that is wrong, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(map(str, self.problems)))


def load(path: str | Path, *, files: bool = True) -> Settings:
    """The settings in a file, with the paths in them made absolute. Raises SettingsError.

    files: whether the files that the settings name must be there. A pod's author may read the settings, not the keys.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError([Problem(str(path), 1, "", f"cannot be read: {why}; name the file with -c")]) from error
    document = yamlfile.parse(text, str(path))
    if document.data is None and not document.problems:
        document.problems.append(document.problem((), "is empty; examples/bridge.yaml shows what it holds"))
    if document.data is None:
        raise SettingsError(document.problems)
    named = list(_named_files(document, path.parent))  # makes paths absolute
    problems = [*document.problems, *(named if files else ())]
    try:
        loaded = Settings.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        whole = {d["loc"] for d in details if not any(_inside(other["loc"], d["loc"]) for other in details)}
        problems += [_problem(document, detail) for detail in details if detail["loc"] in whole]
        raise SettingsError(problems) from None
    problems += _colliding(document, loaded)
    if problems:
        raise SettingsError(problems)
    return loaded


def _problem(document: Document, detail: Any) -> Problem:
    path = _in_file(document.data, detail["loc"])
    kind, message, value = detail["type"], detail["msg"], detail["input"]
    if kind == "extra_forbidden":
        return document.problem(path, f"is not known; {_suggestion(path)}")
    if kind == "missing":
        return document.problem(path, "is missing; give it a value")
    if kind == "too_short":
        return document.problem(path, "is empty; give at least one")
    if kind.startswith("union_tag"):
        return document.problem((*path, "type"), f"is missing or not known; {_TYPES}")
    if kind == "value_error":
        message = message.removeprefix("Value error, ")
        named = _IN_MESSAGE.fullmatch(message)
        if named and isinstance(value, dict):
            inner = re.findall(r"[A-Za-z]+|\d+", named[1])
            return document.problem((*path, *(int(p) if p.isdigit() else p for p in inner)), named[2])
        return document.problem(path, message)
    shown = "is wrong" if isinstance(value, dict | list) else f"{value!r} is wrong"
    right = _PATTERNS.get(detail.get("ctx", {}).get("pattern", "")) or message[0].lower() + message[1:]
    return document.problem(path, f"{shown}; {right}")


def _colliding(document: Document, loaded: Settings) -> Iterator[Problem]:
    """Accounts of one cluster that are one user there: two helpers in one folder would take it from each other.

    Clusters cannot collide: each has a folder of its name in the spool, and names differ.
    """
    for number, cluster in enumerate(loaded.clusters):
        seen: dict[str, int] = {}
        named: dict[str, int] = {}
        for index, account in enumerate(cluster.accounts):
            other = seen.setdefault(_user(account.transport), index)
            if other != index:
                text = (
                    f"is the same user of the cluster as accounts[{other}]; join their namespaces, or name another user"
                )
                yield document.problem(("clusters", number, "accounts", index, "transport"), text)
            other = named.setdefault(account.name, index)
            if other != index:
                text = f"{account.name!r} is that of accounts[{other}] too; give each its own"
                yield document.problem(("clusters", number, "accounts", index, "name"), text)


def _user(transport: settings.Transport) -> str:
    """Equal for two transports that certainly reach one user's home directory."""
    match transport:
        case settings.SshTransport():
            return f"ssh {transport.user}"
        case settings.CommandTransport():
            return f"command {transport.argv}"
        case settings.LocalTransport():
            return "local"


def _inside(location: tuple[str | int, ...], other: tuple[str | int, ...]) -> bool:
    return len(location) > len(other) and location[: len(other)] == other


def _in_file(data: Any, location: tuple[str | int, ...]) -> yamlfile.Path:
    """Where pydantic's location is in the file: its names of union members are left out."""
    path: list[str | int] = []
    for part in location:
        if isinstance(data, dict) and part in ("ssh", "command", "local") and data.get("type") == part:
            continue
        path.append(part)
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = None
    return tuple(path)


def _suggestion(path: yamlfile.Path) -> str:
    known = sorted(_keys(path[:-1]))
    close = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def _keys(path: yamlfile.Path) -> set[str]:
    """The keys that may stand at a path, from the models' JSON schema."""
    schema = Settings.model_json_schema(by_alias=True)
    shapes = [schema]
    for part in (*path, None):
        resolved = [s for shape in shapes for s in _resolved(shape, schema["$defs"])]
        if part is None:
            return {key for shape in resolved for key in shape.get("properties", {})}
        shapes = [
            shape.get("items", {}) if isinstance(part, int) else shape.get("properties", {}).get(part, {})
            for shape in resolved
        ]
    return set()


def _resolved(shape: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in shape:
        yield from _resolved(definitions[shape["$ref"].rpartition("/")[2]], definitions)
    for member in [*shape.get("oneOf", []), *shape.get("anyOf", [])]:
        yield from _resolved(member, definitions)
    yield shape


def _named_files(document: Document, directory: Path) -> Iterator[Problem]:
    """Check the files that the settings name, and make their paths absolute in the data."""
    for path, holder in _holders(document.data):
        for key, secret in (("keyFile", True), ("knownHostsFile", False), ("certFile", False), ("clientCAFile", False)):
            if isinstance(holder.get(key), str) and holder[key]:
                file = directory / Path(holder[key]).expanduser()
                holder[key] = str(file.absolute())
                wrong = _file_problem(file, secret=secret)
                if wrong:
                    yield document.problem((*path, key), wrong)
        if path == ("kubelet",) and ("certFile" in holder) != ("keyFile" in holder):
            yield document.problem(path, "certFile and keyFile belong together; give both or neither")


def _holders(data: Any) -> Iterator[tuple[yamlfile.Path, dict[str, Any]]]:
    """The mappings that may name files: the kubelet's settings and every account's transport."""
    if not isinstance(data, dict):
        return
    if isinstance(data.get("kubelet"), dict):
        yield ("kubelet",), data["kubelet"]
    for index, cluster in enumerate(data["clusters"] if isinstance(data.get("clusters"), list) else []):
        accounts = cluster.get("accounts") if isinstance(cluster, dict) else None
        for number, account in enumerate(accounts if isinstance(accounts, list) else []):
            if isinstance(account, dict) and isinstance(account.get("transport"), dict):
                yield ("clusters", index, "accounts", number, "transport"), account["transport"]


def _file_problem(file: Path, *, secret: bool) -> str:
    try:
        status = file.stat()
    except OSError as error:
        hint = "" if secret else "; ssh-keyscan writes known_hosts (compare the keys with the site's)"
        return f"{file} cannot be read: {error.strerror}{hint}"
    if not stat.S_ISREG(status.st_mode):
        return f"{file} is not a file; name the file itself"
    if not os.access(file, os.R_OK):
        return f"{file} may not be read by this user; change its owner or mode"
    if secret and status.st_mode & 0o007:
        return f"{file} can be read by everybody (mode {status.st_mode & 0o777:04o}); chmod 600 it"
    if status.st_mode & 0o002:  # whom these files name is trusted
        return f"{file} can be written by everybody (mode {status.st_mode & 0o777:04o}); chmod go-w it"
    return ""
