"""What a measurement hands in, and how it is shown: a table for people, build/bench.json for programs."""

from __future__ import annotations

import json
import operator
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_COMPARE: dict[str, Callable[[float, float], bool]] = {"≥": operator.ge, "≤": operator.le}


@dataclass(frozen=True)
class Figure:
    """One number. key: its place in bench.json. goal: "≤ 2" or "≥ 0.8", "" for figures that only explain another.

    samples: what the value was made of (the spread shown is their least and greatest). note: what bounds it, or how to
    read it.
    """

    key: str
    value: float
    unit: str = ""
    goal: str = ""
    samples: tuple[float, ...] = ()
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if not self.goal:
            return None
        sign, limit = self.goal.split()
        return _COMPARE[sign](self.value, float(limit))

    @property
    def spread(self) -> tuple[float, float] | None:
        """The least and the greatest sample."""
        return (min(self.samples), max(self.samples)) if self.samples else None


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of all do not exceed.

    >>> quantile([3, 1, 2], 0.5), quantile([1, 2], 0.99)
    (2, 2)
    """
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * share // 1) - 1))]


def median(samples: Sequence[float]) -> float:
    """The middle one."""
    return float(statistics.median(samples))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    load = os.getloadavg()[0]
    return {"cpu": model, "cores": os.cpu_count(), "memoryGiB": round(memory / (1 << 30), 1), "loadBefore": load}


def document(figures: Sequence[Figure], versions: dict[str, str], about: dict[str, Any]) -> dict[str, Any]:
    """bench.json: each value at its key, nested at the dots; `figures` has goals, spreads and notes by whole key."""
    nested: dict[str, Any] = {}
    for figure in figures:
        *parents, last = figure.key.split(".")
        place = nested
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = _rounded(figure.value)
    details = {
        figure.key: {
            "value": _rounded(figure.value),
            "unit": figure.unit,
            "goal": figure.goal,
            "met": figure.met,
            "spread": [_rounded(each) for each in figure.spread] if figure.spread else None,
            "samples": len(figure.samples),
            "note": figure.note,
        }
        for figure in figures
    }
    return nested | {"figures": details, "machine": about, "versions": versions}


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file; what other runs measured and this one did not is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(_merge(old, content), indent=1, ensure_ascii=False) + "\n")


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict) and key not in ("machine", "versions")
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def show(console: Console, figures: Sequence[Figure], versions: dict[str, str], about: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(show_edge=False, pad_edge=False)
    for name in ("figure", "value", "goal", "", "spread", "note"):
        numbers = name in ("value", "goal", "spread")
        table.add_column(name, justify="right" if numbers else "left", no_wrap=name != "note")
    for figure in figures:
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[figure.met]
        spread = f"{_text(figure.spread[0])} … {_text(figure.spread[1])}" if figure.spread else ""
        value = f"{_text(figure.value)} {figure.unit}".strip()
        table.add_row(figure.key, value, figure.goal, mark, spread, figure.note)
    console.print(table)
    console.print(f"{about['cpu']}, {about['cores']} cores, {about['memoryGiB']} GiB, load {about['loadBefore']:.1f}; ")
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _text(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"
