"""What is sent next: control frames first, then one frame of each message in turn, so that none holds up another.

Of messages of several frames `wire.MAX_REQUESTS` take turns; the others wait, since the helper holds all that it has
begun to receive.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from pbs_adapter.remote.wire import MAX_REQUESTS, Frame


class Outbox:
    """The frames that have not left yet."""

    def __init__(self) -> None:
        self._control: deque[Frame] = deque()
        self._messages: OrderedDict[int, tuple[deque[Frame], Callable[[], None]]] = OrderedDict()
        self._begun: set[int] = set()
        self._filled = asyncio.Event()

    def control(self, frame: Frame) -> None:
        """Send a small frame before all others."""
        self._control.append(frame)
        self._filled.set()

    def add(self, frames: Sequence[Frame], leaves: Callable[[], None]) -> None:
        """Queue one message; `leaves` is called when its last frame is about to be sent."""
        self._messages[frames[0].id] = (deque(frames), leaves)
        self._filled.set()

    def drop(self, ident: int) -> bool:
        """Take back what has not left of a message; return whether any of it has."""
        waiting = self._messages.pop(ident, None) is not None
        begun = ident in self._begun
        self._begun.discard(ident)
        return begun or not waiting

    async def take(self) -> Frame:
        """Wait for and return the next frame to send."""
        while not self._control and not self._messages:
            self._filled.clear()
            await self._filled.wait()
        if self._control:
            return self._control.popleft()
        ident = self._turn()
        frames, leaves = self._messages.pop(ident)
        frame = frames.popleft()
        if frames:
            self._begun.add(ident)
            self._messages[ident] = (frames, leaves)
        else:
            self._begun.discard(ident)
            leaves()
        return frame

    def _turn(self) -> int:
        """The message whose frame is next: the first that has begun, or may begin."""
        full = len(self._begun) >= MAX_REQUESTS
        may = (ident for ident, (frames, _) in self._messages.items() if ident in self._begun or len(frames) == 1)
        return next(may) if full else next(iter(self._messages))
