"""What the demo shows: on a terminal a line that lives, elsewhere a plain line whenever something changes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bridge.testbed.demo_table import Row, changes, plain, table

AGAIN = 10.0
"""Seconds between two lines of one stage where lines cannot be rewritten."""


class Screen:
    """Prints to `console`; times are seconds since it was made."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._live: Live | None = None
        self._stage = ""
        self._stage_began = self._printed = self._started
        self._rows: Sequence[Row] = ()

    def progress(self, message: str) -> None:
        """Say what is being done; call it as often as you like. Messages that differ in numbers only are one stage."""
        now = time.monotonic()
        if (stage := re.sub(r"\d+", "", message)) != self._stage:
            self._stage, self._stage_began, self._printed = stage, now, now
            self.line(f"[{now - self._started:5.1f} s] {message}")
        elif not self._console.is_interactive and now - self._printed >= AGAIN:
            self._printed = now
            self.line(f"[{now - self._started:5.1f} s] {message}")
        if self._console.is_interactive:
            self._show(Spinner("dots", Text(message, overflow="ellipsis", no_wrap=True)))

    def line(self, text: str = "") -> None:
        """Print lines that stay, as they are: nothing is wrapped, nothing is markup."""
        self._console.out(text, highlight=False)

    def rows(self, rows: Sequence[Row]) -> None:
        """Show the pods: the table as it is now, or a line for each pod that has changed."""
        if self._console.is_interactive:
            self._show(table(rows))
        else:
            for row in changes(self._rows, rows):
                self.line(f"[{time.monotonic() - self._started:5.1f} s] {plain(row)}")
        self._rows = rows

    def settle(self) -> None:
        """Leave the last table on the screen and stop rewriting it."""
        self.rest()
        if self._console.is_interactive and self._rows:
            self._console.print(table(self._rows))

    def rest(self) -> None:
        """Take away what lives."""
        self._stage = ""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _show(self, what: RenderableType) -> None:
        if self._live is None:
            self._live = Live(what, console=self._console, transient=True, refresh_per_second=8)
            self._live.start()
        else:
            self._live.update(what, refresh=True)
