"""Events come after gates, in order, and not much later."""

from __future__ import annotations

from typing import Any

import pytest
from virtualtime import VirtualClock

from bridge.routing.announce import LATE, MOST, Announcer

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}}, "spec": {}}


class Sink:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.about: Any = None

    def event(self, thing: Any, kind: str, reason: str, message: str) -> None:
        self.told.append(message)
        self.about = thing


@pytest.mark.parametrize(("busy", "after", "told"), [(False, 0.0, 1), (True, 0.0, 0), (True, LATE, 1)])
async def test_when_an_event_is_told(busy: bool, after: float, told: int) -> None:
    sink, clock = Sink(), VirtualClock()
    announcer = Announcer(sink, clock, lambda: busy)
    announcer.event(POD, "Normal", "Routed", "one")
    await clock.advance(after)
    announcer.tell()
    assert len(sink.told) == told
    if told:
        assert sink.about == {"kind": "Pod", "metadata": {"name": "p", "namespace": "n", "uid": "u"}}


def test_many_are_told_in_order_and_a_few_at_a_time() -> None:
    sink = Sink()
    announcer = Announcer(sink, VirtualClock(), lambda: False)
    for number in range(MOST + 1):
        announcer.event(POD, "Normal", "Routed", str(number))
    announcer.tell()
    assert sink.told == [str(number) for number in range(MOST)]
    announcer.tell()
    assert len(sink.told) == MOST + 1
