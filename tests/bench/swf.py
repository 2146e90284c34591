"""Jobs of a trace in the Standard Workload Format (Feitelson's archive; Alea's extended lines too), gzipped or not."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_NODES = re.compile(r"\{([\d,]*)\}")
_CHUNKS = re.compile(r"(\d+):ppn=(\d+)")


class TraceJob(NamedTuple):
    """One job that started. Times in seconds. hosts: CPUs used on each host, empty where the trace does not say."""

    number: int
    submitted: float
    wait: float
    runtime: float
    ncpus: int
    walltime: int | None
    user: str
    queue: str
    chunks: int
    hosts: tuple[tuple[str, int], ...]

    @property
    def start(self) -> float:
        return self.submitted + self.wait

    @property
    def end(self) -> float:
        return self.start + max(1.0, self.runtime)


def read(path: Path) -> list[TraceJob]:
    """All jobs with a wait, by time of submission."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return sorted(parse(lines), key=lambda job: (job.submitted, job.number))


def parse(lines: Iterable[str]) -> Iterator[TraceJob]:
    """Fields by number: 1 job, 2 submission, 3 wait, 4 run time, 5 and 8 CPUs, 9 time asked, 12 user, 15 queue.

    Lines of Alea have a list of hosts, the queue's name and the request behind these 18.

    >>> [job.queue for job in parse(["1 10 5 60 4 -1 -1 4 3600 -1 1 7 1 1 2 1 -1 -1"])]
    ['2']
    """
    for line in lines:
        fields = line.split()
        if len(fields) < 18 or fields[0].startswith(";"):
            continue
        numbers = [float(field) for field in fields[:18]]
        ncpus = int(numbers[7] if numbers[7] > 0 else numbers[4])
        if numbers[2] < 0 or ncpus <= 0:
            continue
        asked = _CHUNKS.match(fields[20]) if len(fields) > 20 else None
        yield TraceJob(
            number=int(numbers[0]),
            submitted=numbers[1],
            wait=numbers[2],
            runtime=numbers[3],
            ncpus=ncpus,
            walltime=int(numbers[8]) if numbers[8] > 0 else None,
            user=fields[11],
            queue=fields[19] if len(fields) > 19 else fields[14],
            chunks=int(asked.group(1)) if asked else 1,
            hosts=_hosts(fields[18]) if len(fields) > 18 else (),
        )


def _hosts(field: str) -> tuple[tuple[str, int], ...]:
    found = _NODES.fullmatch(field)
    names = found.group(1).split(",") if found and found.group(1) else []
    return tuple((name, names.count(name)) for name in dict.fromkeys(names))
