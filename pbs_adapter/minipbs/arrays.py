"""Array jobs: a parent that keeps the indices, and a subjob for each index that has started."""

from __future__ import annotations

from . import values
from .complex import Complex
from .jobs import Array, Job, make_subjob, ranges


def refresh(parent: Job) -> None:
    """Bring the attributes that count subjobs up to date."""
    array = _array(parent)
    states = [subjob.state for subjob in array.subjobs.values()]
    running = sum(1 for state in states if state in "RS")
    queued = len(array.waiting)
    expired = 0 if parent.state == "F" else len(states) - running + array.expired
    counts = f"Queued:{queued} Running:{running} Exiting:0 Expired:{expired}"
    parent.attrs["array_state_count"] = counts
    parent.attrs["array_indices_remaining"] = ranges(array.waiting)


def next_subjob(complex_: Complex, parent: Job, now: float) -> Job:
    """Make the subjob of the lowest waiting index; the parent becomes B."""
    array = _array(parent)
    subjob = make_subjob(parent, array.waiting.pop(0))
    array.subjobs[subjob.index] = subjob
    if parent.state == "Q":
        parent.attrs["stime"] = int(now)
        parent.attrs["comment"] = f"Job Array Began at {values.comment_time(now)}"
    complex_.transition(parent, "B", 70, now)
    return subjob


def subjob_ended(parent: Job, status: int | None) -> bool:
    """Note a subjob's end in its parent; True when it was the last one."""
    array = _array(parent)
    if status is not None:
        array.failed = array.failed or status != 0
        parent.attrs["Stageout_status"] = 1
        parent.attrs["Exit_status"] = int(array.failed)
    refresh(parent)
    return not array.waiting and all(subjob.finished for subjob in array.subjobs.values())


def close(complex_: Complex, parent: Job, now: float) -> None:
    """The subjobs of a finished array are finished themselves (F instead of X), or forgotten without history."""
    array = _array(parent)
    for subjob in list(array.subjobs.values()):
        if complex_.history:
            complex_.transition(subjob, "F", subjob.substate, now)
        else:
            complex_.forget(subjob)
    parent.attrs["array_state_count"] = "Queued:0 Running:0 Exiting:0 Expired:0"
    parent.attrs["array_indices_remaining"] = "-"


def _array(parent: Job) -> Array:
    if parent.array is None:
        raise ValueError(f"{parent.id} is no array job")
    return parent.array


def delete_waiting(parent: Job, index: int) -> bool:
    """Take out an index that has not started; True when nothing of the array is left."""
    array = _array(parent)
    array.waiting.remove(index)
    array.expired += 1
    refresh(parent)
    return not array.waiting and all(subjob.finished for subjob in array.subjobs.values())
