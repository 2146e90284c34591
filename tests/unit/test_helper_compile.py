"""podrun starts from modules that the helper has compiled, and without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pbs_adapter.bundle import zipapp
from pbs_adapter.remote.helper_compile import compiled_path, precompile


def loaded_from(program: Path) -> str:
    """Where Python finds podrun's main module."""
    code = f"import runpy, sys; sys.argv = ['podrun']\ntry: runpy.run_path({str(program)!r}, run_name='__main__')\n"
    code += "except SystemExit: print(sys.modules['pbs_adapter.remote.podrun'].__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd="/", check=True)
    return done.stdout.splitlines()[-1]


def test_the_compiled_modules_are_preferred(tmp_path: Path) -> None:
    name, content = zipapp("podrun")
    program = tmp_path / name
    program.write_bytes(content)
    assert loaded_from(program).startswith(f"{program}/")
    for _ in range(2):
        precompile(str(program))
        assert sorted(tmp_path.iterdir()) == sorted([program, Path(compiled_path(str(program)))])
    assert loaded_from(program) == f"{compiled_path(str(program))}/pbs_adapter/remote/podrun.pyc"


def test_what_cannot_be_compiled_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "podrun-0.pyz"
    broken.write_bytes(b"no zip file")
    precompile(str(broken))
    precompile(str(tmp_path / "podrun.py"))
    assert not Path(compiled_path(str(broken))).exists()
    assert "cannot compile" in capsys.readouterr().out
