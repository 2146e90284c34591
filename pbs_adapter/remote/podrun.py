"""podrun: runs one pod on the compute node, `python3 podrun.pyz DIR`, started by PBS itself with no shell between.

DIR is the pod directory with pod.json. At most one run: `DIR/claim` is made first, a second start exits 75. The exit
code mirrors the result: 0, or that of the first app container that failed, or 1.
"""

import os
import shutil
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

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
    directory = os.path.abspath(arguments[0])
    os.umask(0o077)
    clock = Clock()
    signals = Signals(clock)
    try:
        os.mkdir(os.path.join(directory, "claim"), 0o700)
    except FileExistsError:
        print("podrun: %s has been run before; not again" % directory, file=sys.stderr)
        return CLAIMED
    except OSError as error:
        print("podrun: %s: %s" % (directory, error), file=sys.stderr)
        return 1
    status = StatusFile(directory, os.path.basename(directory))
    try:
        pod = load(directory)
    except SpecError as error:
        print("podrun: %s" % error, file=sys.stderr)
        shutil.rmtree(os.path.join(directory, "secrets"), ignore_errors=True)
        status.write(_unreadable(os.path.basename(directory), str(error)))
        return 1
    os.chdir("/")
    start_guard()
    become_subreaper()
    return PodRun(directory, pod, status, clock, signals).run()


def _unreadable(uid: str, message: str) -> Dict[str, Any]:
    """The status of a pod whose pod.json cannot be used."""
    now = time.time()
    return {
        "version": 1,
        "uid": uid,
        "written_at": now,
        "host": os.uname()[1],
        "job_id": os.environ.get("PBS_JOBID", ""),
        "started_at": now,
        "phase": "Ended",
        "reason": "PBSStartFailed",
        "message": message[:4096],
        "result": "Failed",
        "containers": {},
    }


if __name__ == "__main__":
    sys.exit(main())
