"""The programs for the cluster are packed the same way each time, with all that they need and no more."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pbs_adapter.bundle import zipapp


@pytest.mark.parametrize("name", ["helper", "podrun"])
def test_the_name_carries_the_hash_of_the_content(name: str) -> None:
    file, content = zipapp(name)
    assert file == f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    zipapp.cache_clear()
    assert zipapp(name) == (file, content)


def test_only_what_is_needed_is_packed() -> None:
    helper = zipfile.ZipFile(io.BytesIO(zipapp("helper")[1])).namelist()
    assert "pbs_adapter/remote/wire.py" in helper
    assert not [path for path in helper if "podrun" in path]
    podrun = zipfile.ZipFile(io.BytesIO(zipapp("podrun")[1])).namelist()
    assert not [path for path in podrun if "helper" in path or "parse" in path]


@pytest.mark.parametrize(
    ("name", "status", "says"), [("helper", 0, "HPC-BRIDGE-1"), ("podrun", 2, "usage: podrun DIR")]
)
def test_they_start_from_a_read_only_file(tmp_path: Path, name: str, status: int, says: str) -> None:
    file, content = zipapp(name)
    (tmp_path / file).write_bytes(content)
    (tmp_path / file).chmod(0o400)
    done = subprocess.run([sys.executable, "-I", tmp_path / file], input="", capture_output=True, text=True, cwd="/")
    assert done.returncode == status
    assert says in done.stdout + done.stderr


def test_another_name() -> None:
    with pytest.raises(KeyError):
        zipapp("nope")
