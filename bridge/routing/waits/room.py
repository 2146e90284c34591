"""Whether a job of the table fitted beside what ran when it was first seen; coarse, by CPUs of usable vnodes alone."""

from __future__ import annotations

from collections.abc import Iterable

from pbs_adapter.remote.parse import Vnode


class Room:
    """Free CPUs of each host."""

    def __init__(self, vnodes: Iterable[Vnode]) -> None:
        hosts: dict[str, int] = {}
        for vnode in vnodes:
            if vnode.usable:
                hosts[vnode.host] = hosts.get(vnode.host, 0) + max(0, vnode.ncpus - vnode.ncpus_assigned)
        self._free = sorted(hosts.values(), reverse=True)
        self._known: dict[tuple[int, int], bool] = {}

    def fits(self, ncpus: int, chunks: int) -> bool | None:
        """Whether `chunks` equal chunks of `ncpus` in all would start now; None where no host can be seen."""
        if not self._free:
            return None
        asked = (max(1, ncpus), max(1, chunks))
        if asked not in self._known:
            self._known[asked] = self._place(*asked)
        return self._known[asked]

    def _place(self, ncpus: int, chunks: int) -> bool:
        each = -(-ncpus // chunks)
        placed = 0
        for free in self._free:
            placed += free // each
            if placed >= chunks:
                return True
            if free < each:
                break
        return False
