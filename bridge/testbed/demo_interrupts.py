"""Ctrl-C, SIGTERM and a closed terminal end the demo in one way: KeyboardInterrupt, once, then an undisturbed clean-up.

Whatever a signal interrupts, each part of the test bed can be stopped again; what even that misses is ended by the
guards (guard.py) as soon as this process is gone.
"""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_STATUS = 130
"""What a shell reports of a command that Ctrl-C ended."""


class Interrupts:
    """Takes over the three signals when it is made; they raise KeyboardInterrupt until `hold`."""

    def __init__(self) -> None:
        self._held = False
        for number in SIGNALS:
            signal.signal(number, self._interrupt)

    def hold(self) -> None:
        """From now on the signals change nothing: what is left to do is the clean-up, and it takes bounded time."""
        self._held = True

    def ignore(self) -> None:
        """Nothing is left to do, not even on the way out of Python. Children started from now on would inherit it."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, *_: object) -> None:
        if not self._held:
            raise KeyboardInterrupt
