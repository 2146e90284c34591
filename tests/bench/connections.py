"""Counts PBS connections as the embedded server sees them, a sample every fifth of a second."""

from __future__ import annotations

import threading
import time

from tests.bench.stage import Stage

EVERY = 0.2
MINUTE = 60.0


class Connections:
    """A context manager; afterwards `per_minute` has the most in any 60 seconds, `total` their number."""

    def __init__(self, stage: Stage) -> None:
        self._server = stage.embedded.server
        self._samples: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connections")

    def _sample(self) -> None:
        self._samples.append((time.monotonic(), int(self._server.stats()["connections"])))

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            self._sample()

    def __enter__(self) -> Connections:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    @property
    def total(self) -> int:
        """Connections between entering and leaving."""
        return self._samples[-1][1] - self._samples[0][1]

    @property
    def per_minute(self) -> int:
        """The most in any minute."""
        most = start = 0
        for at, count in self._samples:
            while self._samples[start][0] < at - MINUTE:
                start += 1
            most = max(most, count - self._samples[start][1])
        return most
