"""The two kinds of question that wait for the helper: a request for one reply, and a request for a stream."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pbs_adapter.channel.failures import from_head, from_loss
from pbs_adapter.errors import AdapterError
from pbs_adapter.models import Json
from pbs_adapter.remote import wire
from pbs_adapter.remote.wire import Frame, WireError

_ERROR = 256 * 1024  # bytes of an error's head
_TOGETHER = 4  # chunks handed on in one piece: each costs the way to kubectl as much as its bytes do


class Reply(NamedTuple):
    """The helper's answer to a request. `large`: the head is still in front of the body, and `whole` decodes it."""

    head: Json
    body: bytes
    large: bool = False

    def whole(self) -> Reply:
        """The same, decoded; for a large one to be called beside the event loop. Raises WireError."""
        if not self.large:
            return self
        message = wire.whole(Frame(0, wire.RESPONSE, self.head, self.body))
        return Reply(message.head, message.body)


@dataclass(eq=False)
class Call:
    """A request that waits for its reply. `left`: all of it has been handed to the stream."""

    idempotent: bool
    left: bool = False
    reply: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    still = wire.MAX_REPLY  # bytes that may come after nobody waits any more

    def leaves(self) -> None:
        """Note that the last frame is being sent."""
        self.left = True

    def receive(self, frame: Frame) -> bool:
        """Take a frame; return whether the call is finished with it."""
        if frame.kind == wire.RESPONSE:
            size = wire.spilled(frame)
            if size > wire.MAX_REPLY_HEAD:
                raise WireError(f"an answer with a head of {size} bytes")
            self._finish(Reply(frame.head, frame.body, bool(size)))
        elif frame.kind == wire.ERROR:
            self._finish(from_head(_of_error(frame)))
        else:
            raise WireError(f"{wire.KINDS[frame.kind]} in answer to a request")
        return True

    def lose(self, reason: str) -> None:
        """The stream has ended."""
        self._finish(from_loss(reason, left=self.left, idempotent=self.idempotent))

    def _finish(self, result: Reply | AdapterError) -> None:
        if self.reply.done():
            return
        if isinstance(result, AdapterError):
            self.reply.set_exception(result)
            self.reply.exception()  # the caller may have been cancelled: then nobody fetches it
        else:
            self.reply.set_result(result)


@dataclass(eq=False)
class StreamCall:
    """A request answered by a stream. Holds at most the credit that the helper was given."""

    chunks: deque[bytes] = field(default_factory=deque)
    held: int = 0
    ended: bool = False
    error: AdapterError | None = None
    _owed: int = 0  # taken by the caller and not yet given back as credit
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def leaves(self) -> None:
        """Nothing depends on whether a stream's request has left: it changes nothing on the cluster."""

    def receive(self, frame: Frame) -> bool:
        """Take a frame; return whether the stream is finished with it."""
        if frame.kind == wire.DATA:
            self.chunks.append(frame.body)
            self.held += len(frame.body)
            if self.held + self._owed > wire.CREDIT_WINDOW:
                raise WireError("a stream is longer than its credit")
            if frame.head or not frame.body:
                raise WireError("DATA that credit does not count")
        elif frame.kind == wire.ERROR:
            self.error = from_head(_of_error(frame))
        elif frame.kind not in (wire.END, wire.RESPONSE):
            raise WireError(f"{wire.KINDS[frame.kind]} in a stream")
        self.ended = frame.kind != wire.DATA
        self._changed.set()
        return self.ended

    def lose(self, reason: str) -> None:
        """The stream below has ended."""
        self.error, self.ended = from_loss(reason, left=True, idempotent=True), True
        self._changed.set()

    async def next(self) -> bytes | None:
        """Return what has come, in one piece, None at the end. Raises the helper's error after the last of it."""
        while not self.chunks:
            if self.ended:
                if self.error is not None:
                    raise self.error
                return None
            self._changed.clear()
            await self._changed.wait()
        some = [self.chunks.popleft() for _ in range(min(len(self.chunks), _TOGETHER))]
        return some[0] if len(some) == 1 else b"".join(some)

    def credit(self, taken: int) -> int:
        """Note that the caller is done with `taken` bytes; return how many to give back now, 0 to wait for more."""
        self.held -= taken
        self._owed += taken
        if self._owed < wire.CREDIT_WINDOW // 4:
            return 0
        owed, self._owed = self._owed, 0
        return owed

    @property
    def still(self) -> int:
        """Bytes that the helper may send yet without being given more credit."""
        return wire.CREDIT_WINDOW - self.held - self._owed


def _of_error(frame: Frame) -> Json:
    """The head of an ERROR, which has a message that is not short."""
    if wire.spilled(frame) > _ERROR:
        raise WireError("an error of too many words")
    return wire.whole(frame).head
