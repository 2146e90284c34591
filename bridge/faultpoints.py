"""Points between two steps where a test can stop the agent, to kill it or to cut its connections exactly there.

Without the environment variable HPC_BRIDGE_TEST_POINTS, read once at start, a point is a comparison with None. With it,
it names a folder: an agent that reaches point NAME of pod UID and finds a file `NAME.UID` there renames it to
`NAME.UID.reached`, and goes on when that file has been removed. So each fault happens once, and to the pod it is meant
for. The helper on the login node does the same (`pbs_adapter.remote.helper_faults`). The agent's points:

    route.before       the pod's gate is about to be opened
    route.after        the gate is open, and neither counted nor told in an Event
    submit.before      the submission is about to be sent
    submit.answered    the job id is known, and neither annotated nor shown
    status.terminal    a terminal status is about to be written
    cancel.before      the request to stop the job is about to be sent
    delete.before      the DELETE of the Pod object is about to be sent
"""

from __future__ import annotations

import asyncio
import os

_FOLDER = os.environ.get("HPC_BRIDGE_TEST_POINTS")


async def reach(point: str, uid: str) -> None:
    """Stop here if a test asked for it."""
    if _FOLDER is None:
        return
    armed = os.path.join(_FOLDER, f"{point}.{uid}")
    reached = f"{armed}.reached"
    try:
        os.rename(armed, reached)
    except FileNotFoundError:
        return
    while os.path.exists(reached):  # noqa: ASYNC110, ASYNC240 - another process removes it
        await asyncio.sleep(0.02)
