"""The reference pages in docs/ say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.api import names, reasons
from bridge.cli.document import main, pages

REFERENCE = Path(__file__).parents[2] / "docs/reference"


@pytest.mark.parametrize("name", sorted(pages()))
def test_pages_do_not_drift(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == pages()[name], "run python -m bridge.cli.document"


EXAMPLE = "deploy/node/bridge.yaml"
GENERATED = ["docs/reference/reasons.md", "deploy/routing/crd-routingrules.yaml", "deploy/node/manifests.yaml"]


@pytest.mark.parametrize("name", GENERATED)
def test_check_mode_finds_a_difference(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deploy/node").mkdir(parents=True)
    (tmp_path / EXAMPLE).write_text((Path(__file__).parents[2] / EXAMPLE).read_text())
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / name).write_text("x")
    assert main(["--check", str(tmp_path)]) == 1
    assert f"{name} differs" in capsys.readouterr().err


def test_every_reason_and_annotation_has_a_meaning() -> None:
    values = {v for k, v in vars(reasons).items() if k.isupper() and isinstance(v, str)}
    assert values - set(reasons.MEANING) == {reasons.DISRUPTION_TARGET_REASON}
    assert {*names.AUTHOR_ANNOTATIONS, *names.AUTHOR_LABELS} <= set(names.MEANING)
