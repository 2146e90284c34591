"""Which vnodes a job gets: select and place on hosts with NUMA vnodes; pure but for the books that `take` changes.

A chunk is broken over the vnodes of one host only if no single vnode of that host can hold it now; under `vscatter`
only where the complex has no other host. A vnode whose CPUs are all in use (job-busy) gives nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Piece = tuple[str, dict[str, int]]
"""A vnode's name and what is taken from it."""


@dataclass(slots=True)
class Vnode:
    """One vnode's books. Sizes are bytes. `jobs` maps the jobs on it to whether they hold it exclusively."""

    name: str
    host: str
    available: dict[str, int]
    assigned: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, bool] = field(default_factory=dict)
    changed_at: float = 0.0
    used_at: float = 0.0

    def free(self) -> dict[str, int]:
        """What is left: nothing of a vnode that a job holds exclusively, or whose CPUs are all in use."""
        assigned, cpus = self.assigned, self.available.get("ncpus", 0)
        if True in self.jobs.values() or (cpus and assigned.get("ncpus", 0) >= cpus):
            return dict.fromkeys(self.available, 0)
        return {name: total - assigned.get(name, 0) for name, total in self.available.items()}


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` chunks that each need `amounts` (consumable; bytes for sizes), on a named host or vnode if given."""

    count: int
    amounts: tuple[tuple[str, int], ...]
    host: str = ""
    vnode: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Arrangement (free, pack, scatter, vscatter) and whether vnodes or whole hosts are taken exclusively."""

    arrangement: str = "free"
    sharing: str = "shared"

    @property
    def exclusive(self) -> bool:
        return self.sharing in ("excl", "exclhost")


@dataclass(slots=True)
class Refusal:
    """Why a job does not start; `never` means no empty cluster would do either."""

    never: bool
    text: str

    def comment(self) -> str:
        """PBS's own wording."""
        return ("Can Never Run: " if self.never else "Not Running: ") + self.text


class Cluster:
    """The vnodes of the complex, by name and by host, and the books of who uses what."""

    def __init__(self, vnodes: list[Vnode]) -> None:
        self.vnodes = {vnode.name: vnode for vnode in vnodes}
        self.hosts: dict[str, list[Vnode]] = {}
        for vnode in vnodes:
            self.hosts.setdefault(vnode.host, []).append(vnode)

    def find(self, chunks: tuple[Chunk, ...], place: Place) -> list[list[Piece]] | Refusal:
        """One list of pieces for each chunk, or why there is no room now."""
        never = self._totals(chunks, place, {name: dict(v.available) for name, v in self.vnodes.items()}, True)
        if never:
            return never
        free = {name: vnode.free() for name, vnode in self.vnodes.items()}
        short = self._totals(chunks, place, free, False)
        if short:
            return short
        if place.exclusive:
            for host in self.hosts.values():
                taken = {vnode.name for vnode in host if vnode.jobs}
                for vnode in host:
                    if vnode.name in taken or (taken and place.sharing == "exclhost"):
                        free[vnode.name] = dict.fromkeys(vnode.available, 0)
        found = self._arrange(chunks, place, free)
        if found is not None:
            return found
        empty = {name: dict(vnode.available) for name, vnode in self.vnodes.items()}
        if self._arrange(chunks, place, empty) is None:
            return self._chunk_refusal(chunks, place, empty, never=True)
        return self._chunk_refusal(chunks, place, free, never=False)

    def take(self, job: str, pieces: list[list[Piece]], place: Place, now: float) -> None:
        """Write a placement into the books."""
        for chunk in pieces:
            for name, amounts in chunk:
                vnode = self.vnodes[name]
                for resource, amount in amounts.items():
                    vnode.assigned[resource] = vnode.assigned.get(resource, 0) + amount
                vnode.jobs[job] = place.exclusive
                vnode.changed_at = now
        if place.sharing == "exclhost":
            for name in {name for chunk in pieces for name, _ in chunk}:
                for vnode in self.hosts[self.vnodes[name].host]:
                    vnode.jobs[job] = True

    def release(self, job: str, pieces: list[list[Piece]], now: float) -> None:
        """Undo `take`."""
        for chunk in pieces:
            for name, amounts in chunk:
                vnode = self.vnodes[name]
                for resource, amount in amounts.items():
                    left = vnode.assigned.get(resource, 0) - amount
                    vnode.assigned[resource] = max(0, left)
                vnode.changed_at = vnode.used_at = now
        for vnode in self.vnodes.values():
            vnode.jobs.pop(job, None)

    def _arrange(
        self, chunks: tuple[Chunk, ...], place: Place, free: dict[str, dict[str, int]]
    ) -> list[list[Piece]] | None:
        if place.arrangement == "pack":
            for host in self.hosts:
                trial = {vnode.name: dict(free[vnode.name]) for vnode in self.hosts[host]}
                found = self._one_by_one(chunks, place, trial, [host])
                if found is not None:
                    return found
            return None
        return self._one_by_one(chunks, place, free, list(self.hosts))

    def _one_by_one(
        self, chunks: tuple[Chunk, ...], place: Place, free: dict[str, dict[str, int]], hosts: list[str]
    ) -> list[list[Piece]] | None:
        found: list[list[Piece]] = []
        used_hosts: set[str] = set()
        used_vnodes: set[str] = set()
        for chunk in chunks:
            for _ in range(chunk.count):
                for host in hosts:
                    if (chunk.host and chunk.host != host) or (place.arrangement == "scatter" and host in used_hosts):
                        continue
                    skip = used_vnodes if place.arrangement == "vscatter" else set()
                    may_break = place.arrangement != "vscatter" or len(self.hosts) == 1
                    pieces = self._on_host(chunk, host, free, skip, may_break)
                    if pieces is not None:
                        break
                else:
                    return None
                used_hosts.add(host)
                used_vnodes.update(name for name, _ in pieces)
                for name, amounts in pieces:
                    for resource, amount in amounts.items():
                        free[name][resource] -= amount
                found.append(pieces)
        return found

    def _on_host(
        self, chunk: Chunk, host: str, free: dict[str, dict[str, int]], skip: set[str], may_break: bool
    ) -> list[Piece] | None:
        vnodes = [
            vnode.name
            for vnode in self.hosts[host]
            if vnode.name not in skip and (not chunk.vnode or vnode.name == chunk.vnode)
        ]
        need = dict(chunk.amounts)
        for name in vnodes:
            fits = all(free[name].get(resource, 0) >= amount for resource, amount in need.items())
            if fits and any(self.vnodes[name].available.values()):
                return [(name, need)]
        if not may_break:
            return None
        pieces: list[Piece] = []
        for name in vnodes:
            taken = {res: min(amount, max(0, free[name].get(res, 0))) for res, amount in need.items()}
            if not any(taken.values()):
                continue
            taken = {res: amount for res, amount in taken.items() if amount}
            need = {res: amount - taken.get(res, 0) for res, amount in need.items()}
            pieces.append((name, taken))
            if not any(need.values()):
                return pieces
        return None

    def _totals(
        self, chunks: tuple[Chunk, ...], place: Place, free: dict[str, dict[str, int]], never: bool
    ) -> Refusal | None:
        for chunk in chunks:
            if chunk.host and chunk.host not in self.hosts:
                return Refusal(True, f"Specified host does not exist: {chunk.host}")
            if chunk.vnode and chunk.vnode not in self.vnodes:
                return Refusal(True, f"Specified vnode does not exist: {chunk.vnode}")
        need: dict[str, int] = {}
        for chunk in chunks:
            for resource, amount in chunk.amounts:
                need[resource] = need.get(resource, 0) + amount * chunk.count
        for resource, amount in need.items():
            left = sum(amounts.get(resource, 0) for amounts in free.values())
            if amount > left:
                total = sum(vnode.available.get(resource, 0) for vnode in self.vnodes.values())
                return Refusal(never, insufficient(resource, amount, left, total))
        return None

    def _chunk_refusal(
        self, chunks: tuple[Chunk, ...], place: Place, free: dict[str, dict[str, int]], never: bool
    ) -> Refusal:
        """No host has room although the complex as a whole has."""
        if sum(chunk.count for chunk in chunks) > 1 or place.arrangement in ("scatter", "vscatter"):
            return Refusal(never, "Not enough total nodes available" if never else "Not enough free nodes available")
        if place.exclusive and not never:
            return Refusal(never, "Job is requesting an exclusive node and node is in use")
        chunk = chunks[0]
        for resource, amount in chunk.amounts:
            per_host = {
                host: sum(free[vnode.name].get(resource, 0) for vnode in vnodes) for host, vnodes in self.hosts.items()
            }
            best = max(per_host, key=lambda host: per_host[host])
            if amount > per_host[best]:
                total = sum(vnode.available.get(resource, 0) for vnode in self.hosts[best])
                return Refusal(never, insufficient(resource, amount, per_host[best], total))
        return Refusal(never, "No available resources on nodes")


def insufficient(resource: str, requested: int, available: int, total: int) -> str:
    """PBS's text; sizes in kb."""
    r, a, t = (f"{n >> 10}kb" if resource in ("mem", "vmem") else str(n) for n in (requested, available, total))
    return f"Insufficient amount of resource: {resource} (R: {r} A: {a} T: {t})"
