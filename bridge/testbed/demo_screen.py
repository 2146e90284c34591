"""What the demo shows: on a terminal a line or table that lives, elsewhere a plain line whenever something changes."""

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
    """Prints to `console`; times are seconds since it was made. Messages that differ in numbers only are one stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._live: Live | None = None
        self._message = ""
        self._began = self._printed = self._started
        self._rows: Sequence[Row] = ()
        self._spinner = Spinner("dots")

    def progress(self, message: str) -> None:
        """Say what is being done; call it as often as you like."""
        now = time.monotonic()
        same = _stage(message) == _stage(self._message)
        if not same:
            self._end_stage()
            self._began = now
        self._message = message
        if self._console.is_interactive:
            self._go_live()
        elif not same or now - self._printed >= AGAIN:
            self._printed = now
            self._timed(now, message)

    def line(self, text: str = "") -> None:
        """Print lines that stay, as they are: nothing is wrapped, nothing is markup."""
        self._console.out(text, highlight=False)

    def rows(self, rows: Sequence[Row]) -> None:
        """Show the pods: the table as it is now, or a line for each pod that has changed."""
        self._end_stage()
        before, self._rows = self._rows, rows
        if self._console.is_interactive:
            self._go_live()
        else:
            for row in changes(before, rows):
                self._timed(time.monotonic(), plain(row))

    def rest(self) -> None:
        """Stop rewriting; the last stage and the last table stay on the screen."""
        self._end_stage()
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        rows, self._rows = self._rows, ()
        if rows and self._console.is_interactive:
            self._console.print(table(rows))

    def _end_stage(self) -> None:
        message, self._message = self._message, ""
        if message and self._console.is_interactive:
            self._timed(self._began, message)

    def _timed(self, at: float, text: str) -> None:
        self.line(f"[{at - self._started:5.1f} s] {text}")

    def _go_live(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, get_renderable=self._alive, transient=True, refresh_per_second=6)
            self._live.start()

    def _alive(self) -> RenderableType:
        if not self._message:
            return table(self._rows) if self._rows else Text()
        text = f"{self._message} ({time.monotonic() - self._began:.0f} s)"
        self._spinner.update(text=Text(text, overflow="ellipsis", no_wrap=True))
        return self._spinner


def _stage(message: str) -> str:
    return re.sub(r"\d+", "", message)
