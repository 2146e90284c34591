"""The session of record_pbs.py, played again against any PBS; waits are for conditions, not the recorder's sleeps."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .runner import RECORDINGS, Result, Runner

ID = re.compile(r"\b(\d+(?:\[\d*\])?\.[\w-]+)$", re.MULTILINE)
DEADLINE = 60.0
MANAGER = (
    'set server job_history_enable=true', 'set server flatuid=true', 'set server scheduler_iteration=10',
    'set server resources_default.walltime=01:00:00', 'create queue gpu queue_type=e,enabled=t,started=t',
    'set queue gpu resources_max.walltime=01:00:00', 'set queue gpu max_queued=[u:PBS_GENERIC=3]',
    'create queue closed queue_type=e,enabled=f,started=f', 'create queue longq queue_type=e,enabled=t,started=f',
)  # fmt: skip
SCRIPTS = r"""
rm -f go.* trapped.*
wait='until [ -e "$PBS_O_WORKDIR/go.$PBS_JOBID" ]; do sleep 0.1; done'
printf '#!/bin/bash\n#PBS -N ok-job\n#PBS -l select=1:ncpus=4:mem=1gb,walltime=00:05:00\n' > ok.sh
printf '%s\n' 'echo hello' "$wait" 'echo err >&2; exit 0' >> ok.sh
printf '#!/bin/bash\nexit 3\n' > fail.sh
printf '#!/bin/bash\nkill -9 $$\n' > kill9.sh
printf '%s\n' '#!/bin/bash' "at_end() { $wait; exit 7; }" 'trap at_end TERM' \
  'touch "$PBS_O_WORKDIR/trapped.$PBS_JOBID"' 'sleep 600 & wait' > term.sh
printf '#!/bin/bash\nsleep 1\n' > short.sh
printf '%s\n' '#!/bin/bash' "$wait" 'exit $((PBS_ARRAY_INDEX % 2))' > arr.sh
"""
"""Jobs that the recorder let sleep wait here for the file go.JOBID, so that no state has to be met in time."""
BEFORE_JOBS = (
    "version_qstat", "version_pbsnodes", "server_full", "queues_full", "queues_table", "nodes_numa_idle",
)  # fmt: skip
SUBMISSIONS = (
    "qsub_ok", "qsub_exit3", "qsub_kill9", "qsub_can_never_run", "qsub_user_hold", "qsub_array",
    "qsub_short_walltime", "qsub_execution_time", "qsub_many_options", "qsub_depend", "qsub_stdin_script",
    "qsub_executable", "qsub_stopped_queue",
)  # fmt: skip
WITH_ARRAY = (
    "jobs_live", "jobs_live_subjobs", "jobs_table", "jobs_table_wide",
)  # fmt: skip
BUSY = (
    "jobs_estimates_table", "nodes_numa_busy", "nodes_summary", "queues_full_busy", "server_full_busy",
    "select_ids",
)  # fmt: skip
LATER = (
    "jobs_after_some_finished", "jobs_history", "jobs_history_subjobs",
)  # fmt: skip
REFUSED = (
    "qsub_unknown_queue", "qsub_closed_queue", "qsub_unknown_resource", "qsub_walltime_over_queue",
    "qsub_illegal_name", "qsub_name_starts_with_digit", "qsub_name_230", "qsub_name_231", "qsub_missing_script",
    "qsub_user_quota", "qsub_depend_on_unknown", "qsub_array_over_limit", "qsub_bad_walltime", "qsub_bad_memory",
    "qsub_select_and_ncpus", "qsub_bad_server", "qsub_bad_place", "qsub_not_authorised_account",
)  # fmt: skip
ODD_IDS = (
    "job_unknown", "job_unknown_and_known", "job_finished_without_x", "job_finished_with_x", "job_illegal_id",
    "qdel_unknown", "qdel_finished", "qdel_of_another_user", "qdel_held", "qhold", "qrls", "qalter_walltime",
    "qmove_unknown_queue", "qmove",
)  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """One recorded command."""

    name: str
    command: str
    user: str
    exit_status: int
    stdout: bytes
    stderr: str

    @classmethod
    def load(cls, dialect: str, name: str) -> Recording:
        data: dict[str, Any] = json.loads((RECORDINGS / dialect / f"{name}.json").read_text())
        raw = base64.b64decode(data["stdout_base64"]) if "stdout_base64" in data else data["stdout"].encode()
        return cls(name, data["command"], data["user"], data["exit_status"], raw, data["stderr"])


class Session:
    """Plays the recorded commands in their order; `results` has what came of each."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.ids: dict[str, str] = {}
        self.results: dict[str, Result] = {}

    def play(self) -> dict[str, Result]:
        """The whole session."""
        self._prepare()
        self._records(BEFORE_JOBS)
        self._records(SUBMISSIONS)
        wall = self._mine("qsub_short_walltime")
        self._sh(f"qalter -l walltime=00:00:59 {wall}", "root")  # it is to run while the next states are recorded
        fill = self._sh("for i in 1 2 3 4 5; do qsub -N fill -l select=1:ncpus=16 ok.sh; done").split()
        self._records(["qsub_bigger_than_one_numa_domain"])
        self._wait(lambda jobs: self._sessions(jobs) >= {"ok-job", "fill", "wall"} and _finished(jobs, "exe", "stdin"))
        array = self._mine("qsub_array")
        self._until(f"qstat -t -f -F json '{array}'", lambda jobs: sum("session_id" in job for job in jobs) == 6)
        self._records(WITH_ARRAY)
        self._go(*_subjobs(array, 6))
        self._wait(lambda jobs: _finished(jobs, "arr"))
        self._records(BUSY)
        self._sh(f"qalter -l walltime=00:00:05 {wall}", "root")
        self._go(self._mine("qsub_ok"), wall, *fill[:3])
        self._wait(self._half_done)
        self._records(LATER)
        self._records(REFUSED)
        self._records(ODD_IDS)
        self._sh("for name in wide fill dep; do for id in $(qselect -N $name); do qdel $id; done; done")
        self._wait(lambda jobs: _finished(jobs, "wide", "fill", "dep"))
        self._deletions()
        self._odd_values()
        self._until("qstat -f -F json $(qselect -N rerun)", lambda jobs: self._used(jobs) >= {"rerun"})
        self._trapped(self.ids[self._first_id("qrerun")])
        self._records(["qdel_all", "jobs_none"])
        return self.results

    def _mine(self, name: str) -> str:
        """The id that this session's qsub printed."""
        return self.results[name].text.strip()

    def _go(self, *ids: str) -> None:
        self._sh("touch " + " ".join(f"'go.{job_id}'" for job_id in ids))

    def _trapped(self, *ids: str) -> None:
        """Wait until these run so far that they do not die of SIGTERM."""
        quoted = " ".join(f"'{job_id}'" for job_id in ids)
        self._sh(f'for id in {quoted}; do until [ -e "trapped.$id" ]; do sleep 0.1; done; done')

    def _half_done(self, jobs: list[dict[str, Any]]) -> bool:
        """The first jobs have finished, and those that waited for them run and have been reported on."""
        filling = sum(1 for job in jobs if job["Job_Name"] == "fill" and job["job_state"] == "F")
        return _finished(jobs, "ok-job", "wall") and filling == 3 and self._sessions(jobs) >= {"dep", "fill"}

    def _prepare(self) -> None:
        if self.runner.real:
            self._sh("for id in $(qselect); do qdel -W force $id; done; sleep 2", "root")
            self._sh("for id in $(qselect -x); do qdel -x $id; done; true", "root")
            for directive in MANAGER:
                self._sh(f'qmgr -c "{directive}" || true', "root")
        self._sh(SCRIPTS)

    def _deletions(self) -> None:
        term = self._sh("qsub -N term term.sh")
        array = self._sh("qsub -N arr2 -J 0-3 -l select=1:ncpus=1 term.sh")
        self._learn("term", "job_after_qdel_running", term)
        self._learn("arr2", "job_after_qdel_subjob", array)
        self._wait(lambda jobs: self._used(jobs) >= {"term"})
        self._trapped(term, *_subjobs(array, 4))
        self._until(f"qstat -t -f -F json '{array}'", lambda jobs: sum("session_id" in job for job in jobs) == 4)
        self._go(term, array.replace("[]", "[1]"))
        self._records(["qdel_running", "qdel_subjob_running"])
        self._wait(lambda jobs: _finished(jobs, "term"))
        self._until(f"qstat -x -t -f -F json '{array}'", lambda jobs: any(job["job_state"] == "X" for job in jobs))
        self._records(["job_after_qdel_running", "job_after_qdel_subjob"])
        rerun = self._sh("qsub -N rerun term.sh")
        self._wait(lambda jobs: self._used(jobs) >= {"rerun"})
        self._sh(f"rm trapped.{rerun}")
        self.ids[self._first_id("qrerun")] = rerun
        self._records(["qrerun", "jobs_after_rerun"])

    def _odd_values(self) -> None:
        self._records(["qsub_odd_environment", "jobs_odd_environment", "jobs_odd_environment_text"])
        self._records(["qsub_numeric_looking_values", "jobs_numeric_looking_values"])

    def _first_id(self, name: str) -> str:
        return re.findall(r"\d+\.[\w-]+", self._recording(name).command)[0]

    def _recording(self, name: str) -> Recording:
        return Recording.load(self.runner.dialect, name)

    def _learn(self, job: str, name: str, mine: str) -> None:
        """Tie the recorded id of a job whose qsub was not recorded to ours."""
        recorded = json.loads(self._recording(name).stdout)["Jobs"]
        theirs = next(job_id for job_id, one in recorded.items() if one["Job_Name"] == job)
        self.ids[theirs] = mine
        self.ids[theirs.replace("[]", "[1]")] = mine.replace("[]", "[1]")

    def _records(self, names: Sequence[str]) -> None:
        for name in names:
            recording = self._recording(name)
            command = re.sub(
                r"\b\d+(?:\[\d*\])?\.pbs-[ab]\b", lambda match: self.ids.get(match[0], match[0]), recording.command
            )
            result = self.runner.run(re.sub(r"\balice\b", self.runner.alice, command), recording.user)
            self.results[name] = result
            for theirs, mine in zip(
                ID.findall(recording.stdout.decode(errors="replace")), ID.findall(result.text), strict=False
            ):
                self.ids.setdefault(theirs, mine)

    def _sh(self, command: str, user: str = "alice") -> str:
        result = self.runner.run(command, user)
        if result.exit_status:
            raise RuntimeError(f"{command}: {result}")
        return result.text.strip()

    def _wait(self, done: Callable[[list[dict[str, Any]]], bool]) -> None:
        self._until("qstat -x -f -F json", done)

    def _until(self, command: str, done: Callable[[list[dict[str, Any]]], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while True:
            text = self.runner.run(command).text
            jobs = list(json.loads(text).get("Jobs", {}).values())
            if jobs and done(jobs):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command}: {text[-3000:]}")
            time.sleep(0.3 if self.runner.real else 0.05)

    @staticmethod
    def _sessions(jobs: list[dict[str, Any]]) -> set[str]:
        """Names of which every running job has its session_id, and there is one."""
        waiting = {job["Job_Name"] for job in jobs if job["job_state"] == "R" and "session_id" not in job}
        return {job["Job_Name"] for job in jobs if "session_id" in job and job["job_state"] == "R"} - waiting

    @staticmethod
    def _used(jobs: list[dict[str, Any]]) -> set[str]:
        """Names of running jobs on whose use the MoM has reported."""
        running = [job for job in jobs if job["job_state"] == "R" and job["substate"] == 42]
        return {job["Job_Name"] for job in running if "resources_used" in job}


def _subjobs(array: str, count: int) -> list[str]:
    """The ids of the first `count` jobs of an array."""
    return [array.replace("[]", f"[{index}]") for index in range(count)]


def _finished(jobs: list[dict[str, Any]], *names: str) -> bool:
    return all(job["job_state"] == "F" for job in jobs if job["Job_Name"] in names)
