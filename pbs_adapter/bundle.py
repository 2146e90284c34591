"""Packs the programs that run on the cluster into zip files that Python 3.6 starts directly.

The same sources give the same bytes on every machine, so that the name, which carries their hash, says what is inside,
and an installed file never needs to be replaced.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import zipfile
from importlib import resources

_PACKAGE = "pbs_adapter.remote"
_ENTRY = {"helper": "helper_main", "podrun": "podrun"}
_MAIN = """\
import os
import sys

compiled = "%s.%s.zip" % (sys.path[0][:-4], sys.implementation.cache_tag)  # see helper_compile
if os.path.exists(compiled):
    sys.path.insert(0, compiled)

from {package}.{entry} import main

sys.exit(main())
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold


@functools.cache
def zipapp(name: str) -> tuple[str, bytes]:
    """Return (file name with hash, content) of the program `helper` or `podrun`. Raises KeyError for another name."""
    entry = _ENTRY[name]
    files = {
        "__main__.py": _MAIN.format(package=_PACKAGE, entry=entry),
        "pbs_adapter/__init__.py": "",
        "pbs_adapter/remote/__init__.py": "",
    }
    files |= {f"pbs_adapter/remote/{module}.py": source for module, source in _modules(entry).items()}
    content = _zip({path: text.encode() for path, text in files.items()})
    return f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.pyz", content


def _modules(entry: str) -> dict[str, str]:
    """Return the sources of a module and of all that it imports from its package, directly or not."""
    folder = resources.files(_PACKAGE)
    found: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = folder.joinpath(f"{module}.py").read_text(encoding="utf-8")
            waiting += _imports(found[module])
    return found


def _imports(source: str) -> list[str]:
    """Return the sibling modules that a module imports.

    >>> _imports("from . import wire\\nfrom .parse_json import load\\nimport os")
    ['wire', 'parse_json']
    """
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.level == 1 or node.module == _PACKAGE):
            inside = node.module if node.level == 1 else None
            names += [inside] if inside else [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE + "."):
            names.append(str(node.module).removeprefix(_PACKAGE + "."))
    return names


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(files):
            info = zipfile.ZipInfo(path, _EPOCH)
            info.external_attr = 0o100644 << 16
            info.create_system = 3
            # Stored, not deflated: another zlib would give other bytes, and reading is faster.
            archive.writestr(info, files[path], zipfile.ZIP_STORED)
    return buffer.getvalue()
