"""The reflector's copy through gaps, expired versions and broken streams."""

from __future__ import annotations

import asyncio
import doctest
from collections.abc import AsyncGenerator
from typing import Any

from memorykube import MemoryKube
from virtualtime import VirtualClock, settle

from bridge.kube import Items, Json, compact
from bridge.kube.errors import Gone, Unavailable
from bridge.kube.reflector import Reflector


def thing(name: str, version: int, **fields: Any) -> Json:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}, **fields}


class Script(MemoryKube):
    """Lists and watches as told: each `list` and each `watch` takes the next entry; an exception is raised."""

    def __init__(self, lists: list[Any], watches: list[list[Any]]) -> None:
        super().__init__()
        self.lists, self.watches = lists, watches
        self.from_versions: list[str] = []

    async def list(self, path: str, **_: str | None) -> tuple[Items, str]:
        """The next list."""
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    async def watch(self, path: str, resource_version: str, **_: str | None) -> AsyncGenerator[tuple[str, Json], None]:
        """The next watch; when there is none any more, one that stays silent."""
        self.from_versions.append(resource_version)
        if not self.watches:
            await asyncio.Event().wait()
        for step in self.watches.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step


async def play(kube: Script) -> tuple[Reflector, list[tuple[str, str]]]:
    """Run a reflector through the whole script."""
    told: list[tuple[str, str]] = []
    clock = VirtualClock()
    reflector = Reflector(
        kube, "/x", on_change=lambda kind, obj: told.append((kind, obj["metadata"]["name"])), clock=clock
    )
    task = asyncio.ensure_future(reflector.run())
    await settle()
    for _ in range(20):
        await clock.advance(30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not kube.lists
    assert not kube.watches
    return reflector, told


async def test_list_then_watch_keeps_the_copy() -> None:
    kube = Script(
        [([thing("a", 1)], "1")],
        [[("ADDED", thing("b", 2)), ("MODIFIED", thing("a", 3)), ("DELETED", thing("b", 4))]],
    )
    reflector, told = await play(kube)
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    assert set(reflector.items) == {"uid-a"}
    assert reflector.synced.is_set()
    assert kube.from_versions == ["1", "4"]


async def test_a_bookmark_only_moves_the_version() -> None:
    kube = Script([([], "1")], [[("BOOKMARK", {"metadata": {"resourceVersion": "50"}})]])
    _, told = await play(kube)
    assert told == []
    assert kube.from_versions == ["1", "50"]


async def test_an_expired_version_lists_again_and_tells_what_was_deleted_meanwhile() -> None:
    kube = Script(
        [([thing("a", 1), thing("b", 1), thing("c", 1)], "1"), ([thing("a", 1), thing("c", 7)], "9")],
        [[Gone(410, "Expired", "too old")]],
    )
    reflector, told = await play(kube)
    assert told[3:] == [("DELETED", "b"), ("MODIFIED", "c")]
    assert set(reflector.items) == {"uid-a", "uid-c"}
    assert kube.from_versions == ["1", "9"]


async def test_a_broken_stream_goes_on_where_it_broke() -> None:
    kube = Script([([], "1")], [[("ADDED", thing("a", 2)), Unavailable(0, "", "cut")], [("MODIFIED", thing("a", 3))]])
    _, told = await play(kube)
    assert told == [("ADDED", "a"), ("MODIFIED", "a")]
    assert kube.from_versions == ["1", "2", "3"]


async def test_a_list_that_fails_is_tried_again_after_what_the_server_asks() -> None:
    kube = Script([Unavailable(429, "", "busy", retry_after=40), ([thing("a", 1)], "1")], [])
    clock = VirtualClock()
    reflector = Reflector(kube, "/x", clock=clock)
    task = asyncio.ensure_future(reflector.run())
    await clock.advance(39)
    assert not reflector.synced.is_set()
    await clock.advance(2)
    assert reflector.synced.is_set()
    task.cancel()


async def test_a_repeated_event_is_told_once_and_a_recreated_name_is_another_object() -> None:
    again = thing("a", 3)
    again["metadata"]["uid"] = "uid-other"
    kube = Script(
        [([thing("a", 1)], "1")],
        [[("ADDED", thing("a", 1)), ("DELETED", thing("a", 2)), ("DELETED", thing("a", 2)), ("ADDED", again)]],
    )
    reflector, told = await play(kube)
    assert told == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]
    assert set(reflector.items) == {"uid-other"}


async def test_managed_fields_are_not_kept() -> None:
    big = thing("a", 1)
    big["metadata"]["managedFields"] = ["x"] * 1000
    reflector, _ = await play(Script([([big], "1")], []))
    assert "managedFields" not in reflector.items["uid-a"]["metadata"]


def test_what_is_kept_for_long_shares_its_words() -> None:
    assert doctest.testmod(compact).failed == 0
    value = {"n": [1, 2.5, None, True, "x" * 100], "": {}}
    assert compact.compact(value) == value
