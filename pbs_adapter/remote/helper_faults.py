"""Points between two steps where a test can stop the helper, to kill it or to cut its connection exactly there.

Off, and free, unless the environment names a folder in HPC_BRIDGE_TEST_POINTS when the helper starts. Then: a thread
that reaches point NAME of pod UID and finds a file `NAME.UID` there renames it to `NAME.UID.reached`, and goes on when
that file has been removed. The points:

    submit.begin    nothing is written yet
    submit.staged   the pod directory is whole
    submit.locked   the lock is taken, qsub not started
    submit.queued   qsub has answered, job.id is not written
    submit.known    job.id is written, the agent not answered
    cancel.begin    nothing is written yet
    cancel.asked    stop.json is written
    qdel.before     qdel is about to run
    qdel.after      qdel has succeeded, nobody knows
"""

import os
import time

_FOLDER = os.environ.get("HPC_BRIDGE_TEST_POINTS")


def reach(point: str, uid: str) -> None:
    """Stop here if a test asked for it."""
    if _FOLDER is None:
        return
    armed = os.path.join(_FOLDER, "{}.{}".format(point, uid))
    reached = armed + ".reached"
    try:
        os.rename(armed, reached)
    except FileNotFoundError:
        return
    while os.path.exists(reached):
        time.sleep(0.02)
