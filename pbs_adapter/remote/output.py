"""Standard output that never fails: what a program has to say must not end it when its log's file system is full."""

import io
import os


class Output(io.TextIOBase):
    """Text to a file descriptor, unbuffered; what cannot be written is lost."""

    def __init__(self, descriptor: int = 1) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Write as much as there is room for."""
        try:
            os.write(self._descriptor, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass
        return len(text)
