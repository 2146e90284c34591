"""Jobs without processes of their own: one program per user simulates all of them, so that thousands fit in memory.

It is the podrun that the jobs themselves name (`PYTHON PODRUN.pyz DIR`), started as `PYTHON PODRUN.pyz --simulate` by
the job's user; podrun_simulate describes the lines of JSON that go both ways.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from typing import Any

Key = tuple[int, str, str]


def is_simulated(spec: dict[str, Any]) -> bool:
    """Whether the job of a message "start" is to be simulated: the server's setting, and a command that is podrun's."""
    argv = spec["argv"]
    return bool(spec.get("simulate")) and argv is not None and len(argv) == 3 and argv[1].endswith(".pyz")


class Simulator:
    """One running simulator; `read` returns its events."""

    def __init__(self, spec: dict[str, Any]) -> None:
        python, program, _ = spec["argv"]
        as_root = os.geteuid() == 0
        self._process = subprocess.Popen(
            [python, program, "--simulate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": spec["home"], "LANG": "C.UTF-8"},
            start_new_session=True,
            user=spec["uid"] if as_root else None,
            group=spec["gid"] if as_root else None,
            extra_groups=spec["groups"] if as_root else None,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise OSError("no pipes to the simulator")
        self._input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        os.set_blocking(self.output, False)
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, do: str, job: str, **fields: str) -> None:
        """Start, terminate or kill a job."""
        data = json.dumps({"do": do, "job": job, **fields}).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._input, data) :]
        except BrokenPipeError:
            pass  # `read` will tell

    def read(self) -> list[dict[str, Any]] | None:
        """What has happened; None once the program is gone."""
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """The end of its input ends it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Simulators:
    """All simulators of one MoM, started when the first job of their user comes."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._all: dict[Key, Simulator] = {}

    def of(self, spec: dict[str, Any]) -> Simulator:
        """The one for this job. Raises OSError when it cannot be started."""
        key = (spec["uid"], spec["argv"][0], spec["argv"][1])
        if key not in self._all:
            self._all[key] = Simulator(spec)
            self._selector.register(self._all[key].output, selectors.EVENT_READ, self._all[key])
        return self._all[key]

    def gone(self, simulator: Simulator) -> None:
        """Forget one that has ended."""
        self._selector.unregister(simulator.output)
        self._all = {key: each for key, each in self._all.items() if each is not simulator}
        simulator.close()

    def close(self) -> None:
        """End them all."""
        for simulator in list(self._all.values()):
            self.gone(simulator)
