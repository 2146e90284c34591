"""Compiles podrun once per cluster, since Python compiles what it imports from a zip file anew at each start.

`podrun-….pyz` gets a neighbour `podrun-….cpython-311.zip` of compiled modules, which podrun itself prefers
where its Python is of that version. Half of the time until a container starts is saved so. Without it all still works.
"""

import importlib.util
import marshal
import os
import sys
import zipfile

_SUFFIX = ".pyz"


def compiled_path(program: str) -> str:
    """Where the compiled modules of a program are, for the Python that runs this."""
    return "{}.{}.zip".format(program[: -len(_SUFFIX)], sys.implementation.cache_tag)


def precompile(program: str) -> None:
    """Write `compiled_path(program)` if it is missing. Prints why not when that fails."""
    path = compiled_path(program)
    if not program.endswith(_SUFFIX) or os.path.exists(path):
        return
    temporary = "{}.{}".format(path, os.getpid())
    try:
        with zipfile.ZipFile(program) as source, zipfile.ZipFile(temporary, "w") as target:
            for name in source.namelist():
                if name.endswith(".py") and name != "__main__.py":
                    target.writestr(name + "c", _bytecode(source.read(name), name))
        os.rename(temporary, path)
    except (OSError, zipfile.BadZipFile, SyntaxError) as error:
        print("cannot compile {}: {}".format(program, error))


def _bytecode(source: bytes, name: str) -> bytes:
    """A .pyc file that is not checked against its source, which is not beside it."""
    header = importlib.util.MAGIC_NUMBER + b"\0" * (12 if sys.version_info >= (3, 7) else 8)
    return header + marshal.dumps(compile(source, name, "exec", dont_inherit=True))
