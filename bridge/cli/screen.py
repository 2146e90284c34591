"""What the verbs print. Texts of clusters, jobs and pods come from others: they are shown, and do nothing.

rich takes `[/x]` and `[link=…]` in a text for markup, and a terminal takes ESC for orders to itself. So no verb uses
rich or prints a text by itself: all of them pass `clean`.
"""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 140  # columns where the output is no terminal


def clean(text: object) -> str:
    """One printable line.

    >>> clean("a\\x1b[2Jb\\n[/x]"), clean(5)
    ('a?[2Jb [/x]', '5')
    """
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "?" for c in str(text))


def echo(text: object, *, err: bool = False) -> None:
    """Print one line."""
    click.echo(clean(text), err=err)


class Grid:
    """A table without lines. Cells are texts, or (text, style)."""

    def __init__(self, *headers: str) -> None:
        self._table = Table(*headers, box=None, pad_edge=False)

    def row(self, *cells: str | tuple[str, str]) -> None:
        """Add a row."""
        pairs = (cell if isinstance(cell, tuple) else (cell, "") for cell in cells)
        self._table.add_row(*(Text(clean(text), style) for text, style in pairs))

    def show(self, *, wide: bool = False) -> None:
        """Print it. wide: with `WIDE` columns where the output is no terminal."""
        _console(wide=wide).print(self._table)


def line(text: object, *, wide: bool = False) -> None:
    """Print one line, wrapped as the tables are."""
    _console(wide=wide).print(Text(clean(text)))


def _console(*, wide: bool) -> Console:
    console = Console(markup=False, highlight=False, emoji=False)
    if wide and not console.is_terminal:
        return Console(markup=False, highlight=False, emoji=False, width=WIDE)
    return console
