"""Laying out an installation: everything that commands, server and jobs need is copied below PREFIX.

The users whose jobs run cannot read the checkout, so nothing refers back to it; PREFIX can be given to clients as
PBS_EXEC.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .config import Config

COMMANDS = (
    "qsub", "qstat", "qdel", "qselect", "qhold", "qrls", "qalter", "qmove", "qrerun", "qsig", "pbsnodes", "qmgr",
)  # fmt: skip

_STUB = """\
#!{python} -IS
import sys
prefix = (__file__.rpartition("/")[0] or ".") + "/.."
sys.path.insert(0, prefix + "/lib")
from minipbs.client import main
main({command!r}, prefix)
"""

_PROGRAM = """\
#!{python} -I
import os, sys
prefix = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, prefix + "/lib")
from minipbs.{module} import main
main({arguments})
"""

PROGRAMS = {
    "minipbs-server": ("server", "prefix, sys.argv[1:]"),
    "minipbs-mom": ("mom", "prefix"),
    "minipbs-fault": ("fault", "prefix, sys.argv[1:]"),
}

DIRECTORIES = {
    "bin": 0o755, "sbin": 0o755, "lib": 0o755, "etc": 0o755, "var": 0o755,
    "run": 0o1777,  # each user's background qsub has its socket here
    "var/private": 0o700, "var/private/obits": 0o700, "var/undelivered": 0o700,
    "var/jobs": 0o711, "var/aux": 0o755, "var/spool": 0o711, "var/tmp": 0o711,
}  # fmt: skip


def install(prefix: Path, config: Config) -> None:
    """Write an installation, or renew one (its jobs are kept). No server may be running there.

    Parents of `prefix` must let the jobs' users pass. Raises OSError.
    """
    for name, mode in DIRECTORIES.items():
        path = prefix / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    prefix.chmod(0o755)
    library = prefix / "lib" / "minipbs"
    shutil.rmtree(library, ignore_errors=True)
    shutil.copytree(Path(__file__).parent, library, ignore=shutil.ignore_patterns("__pycache__", "py.typed"))
    (library / "__init__.py").write_text(
        '"""A copy of pbs_adapter.minipbs."""\n'
    )  # the real one imports what tests use
    for path in (library, *library.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for command in COMMANDS:
        _program(prefix / "bin" / command, _STUB.format(python=config.python, command=command))
    for name, (module, arguments) in PROGRAMS.items():
        text = _PROGRAM.format(python=config.python, module=module, arguments=arguments)
        _program(prefix / "sbin" / name, text)
    for name, text in (("config.json", config.dumps()), ("server", config.server + "\n")):
        path = prefix / "etc" / name
        path.write_text(text)
        path.chmod(0o644)
    old_umask = os.umask(0o022)
    try:
        subprocess.run([config.python, "-I", "-m", "compileall", "-q", library], check=True, stdout=subprocess.DEVNULL)
    finally:
        os.umask(old_umask)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
