"""podrun: runs one pod on the compute node, `python3 podrun.pyz DIR`, started by PBS itself with no shell between.

DIR is the pod directory with pod.json. At most one run: `DIR/claim` is made first, a second start exits 75. The exit
code mirrors the result: 0, or that of the first app container that failed, or 1. `--simulate` instead of DIR serves an
embedded PBS under load, see podrun_simulate.
"""

import os
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from . import podrun_files, podrun_memory
from .output import Output
from .podrun_loop import Clock, PodRun, Signals
from .podrun_process import become_subreaper, start_guard
from .podrun_spec import Pod, SpecError, load
from .podrun_status import StatusFile

CLAIMED = 75


def main(argv: Optional[List[str]] = None) -> int:
    """Run the pod in the directory that is the only argument."""
    arguments = sys.argv[1:] if argv is None else argv
    sys.stdout = sys.stderr = Output()  # job.out lies in the spool too
    if len(arguments) != 1:
        print("usage: podrun DIR", file=sys.stderr)
        return 2
    os.umask(0o077)
    if arguments[0] == "--simulate":
        from . import podrun_simulate  # read only here: the time until a container starts matters

        return podrun_simulate.main()
    directory = os.path.abspath(arguments[0])
    clock = Clock()
    signals = Signals(clock)
    job_id = os.environ.get("PBS_JOBID", "")
    try:
        pod, status = take(directory, job_id)
    except NotTaken as error:
        print("podrun: %s" % error, file=sys.stderr)
        return error.code
    os.chdir("/")
    start_guard(pod.uid, podrun_memory.tidy)
    become_subreaper()
    return PodRun(directory, pod, status, clock, signals, job_id).run()


class NotTaken(Exception):
    """The pod must not or cannot be run; `code` is podrun's exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def take(directory: str, job_id: str) -> Tuple[Pod, StatusFile]:
    """Claim the pod directory and read its pod. Raises NotTaken."""
    try:
        os.mkdir(os.path.join(directory, "claim"), 0o700)
    except FileExistsError:
        raise NotTaken(CLAIMED, "%s has been run before; not again" % directory) from None
    except OSError as error:
        raise NotTaken(1, "%s: %s" % (directory, error)) from error
    status = StatusFile(directory, os.path.basename(directory))
    try:
        return load(directory), status
    except SpecError as error:
        podrun_files.remove_tree(os.path.join(directory, "secrets"))
        status.write(_unreadable(os.path.basename(directory), job_id, str(error)))
        raise NotTaken(1, str(error)) from error


def _unreadable(uid: str, job_id: str, message: str) -> Dict[str, Any]:
    """The status of a pod whose pod.json cannot be used."""
    now = time.time()
    return {
        "version": 1,
        "uid": uid,
        "written_at": now,
        "host": os.uname()[1],
        "job_id": job_id,
        "started_at": now,
        "phase": "Ended",
        "reason": "PBSStartFailed",
        "message": message[:4096],
        "result": "Failed",
        "containers": {},
    }


if __name__ == "__main__":
    sys.exit(main())
