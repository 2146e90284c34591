"""The server's memory over restarts: a file of JSON lines, the last line about a job wins; compacted at each start.

Scripts are large and never change, so they are written once, apart from the jobs' other fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from .jobs import Job, from_record, to_record


class Journal:
    """Appends to `path`; what was appended is with the kernel when `write` returns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._scripted: set[int] = set()
        self._file: Any = None

    def load(self) -> tuple[list[Job], int, int]:
        """All jobs in order (arrays tied to their subjobs), and the next sequence number and rank."""
        records: dict[str, dict[str, Any]] = {}
        scripts: dict[int, str] = {}
        next_seq = next_rank = 0
        for line in self._lines():
            if "script" in line:
                scripts[line["seq"]] = line["script"]
            elif "gone" in line:
                records.pop(line["gone"], None)
            elif "next_seq" in line:  # ids of forgotten jobs are not given out again
                next_seq, next_rank = line["next_seq"], line["next_rank"]
            else:
                records[line["id"]] = line
                next_seq = max(next_seq, line["seq"] + 1)
                next_rank = max(next_rank, line["rank"])
        jobs: dict[str, Job] = {}
        order = sorted(records.values(), key=lambda one: (one["seq"], one["index"]))
        for record in order:
            job = from_record(record, scripts.get(record["seq"], ""))
            parent = jobs.get(record.get("parent", ""))
            if parent is not None and parent.array is not None:
                job.parent = parent
                parent.array.subjobs[job.index] = job
            jobs[job.id] = job
        self._compact(list(jobs.values()), next_seq, next_rank)
        return list(jobs.values()), next_seq, next_rank

    def _lines(self) -> Iterable[dict[str, Any]]:
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    if line.endswith("\n"):  # a line cut short by a kill was never acknowledged
                        yield json.loads(line)
        except FileNotFoundError:
            return

    def _compact(self, jobs: list[Job], next_seq: int, next_rank: int) -> None:
        self._file = open(self.path + ".new", "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 (kept open)
        self._file.write(json.dumps({"next_seq": next_seq, "next_rank": next_rank}) + "\n")
        self.write(jobs, [])
        os.replace(self.path + ".new", self.path)

    def write(self, changed: Iterable[Job], gone: Iterable[str]) -> None:
        """Note the present state of these jobs, and that those no longer exist."""
        lines: list[str] = []
        for job in changed:
            if job.seq not in self._scripted:
                self._scripted.add(job.seq)
                if job.script:
                    lines.append(json.dumps({"seq": job.seq, "script": job.script}))
            lines.append(json.dumps(to_record(job)))
        lines += [json.dumps({"gone": job_id}) for job_id in gone]
        if lines:
            self._file.write("\n".join(lines) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
