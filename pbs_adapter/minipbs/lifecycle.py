"""What happens to jobs: queued, routed, started, signalled, ended, requeued, deleted. Acts on Complex, asks the MoM."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from . import arrays, errors, values
from .complex import Complex
from .describe import exec_host, exec_vnode, resources_used
from .errors import PbsError
from .jobs import Job
from .resources import within
from .scheduler import Start, cycle
from .submit import Caller, parse_depend

WALLTIME_EXCEEDED = -29
RERUN = -11
NODE_LOST = -20


class Mom(Protocol):
    """What the execution side does for the server."""

    def start(self, job: Job) -> None: ...

    def terminate(self, job: Job) -> None: ...

    def kill(self, job: Job) -> None: ...

    def signal(self, job: Job, number: int) -> None: ...

    def walltime(self, job: Job) -> None: ...


class Lifecycle:
    """The life of every job of one complex. Times are passed in; nothing here waits."""

    def __init__(self, complex_: Complex, mom: Mom) -> None:
        self.complex = complex_
        self.mom = mom
        self.ending: deque[tuple[float, Job]] = deque()
        self.wanted = False  # a scheduling cycle is due

    # -- into the queue

    def enqueue(self, job: Job, depend: str, now: float) -> None:
        """Take a new job in. A dependency on an unknown job deletes it after it was accepted, as in the real PBS."""
        complex_ = self.complex
        job.depends = parse_depend(depend, complex_.config.server) if depend else []
        complex_.add(job)
        if job.state == "Q":
            job.attrs["etime"] = int(now)
        if job.array is not None:
            arrays.refresh(job)
        if depend:
            self._hold_for_dependencies(job, now)
        self._route(job, now)
        self.wanted = True

    def _hold_for_dependencies(self, job: Job, now: float) -> None:
        server = self.complex.config.server
        open_ones: list[tuple[str, str]] = []
        for kind, other_id in job.depends:
            other = self.complex.jobs.get(other_id)
            if other is None or (other.finished and not satisfied(kind, other)):
                self._finish(job, now, None)
                return
            if not other.finished and not (kind == "after" and other.state in "RSEB"):
                open_ones.append((kind, other_id))
                mark = f"{kind.replace('after', 'before')}:{job.id}@{server}"
                other.attrs["depend"] = ",".join(filter(None, [other.attrs.get("depend", ""), mark]))
                self.complex.touch(other)
        job.depends = open_ones
        if open_ones:
            job.attrs["depend"] = ",".join(f"{kind}:{other}@{server}" for kind, other in open_ones)
            job.attrs["Hold_Types"] = "".join(sorted(job.holds() | {"s"}))
            job.attrs.pop("etime", None)
            self.complex.transition(job, "H", 22, now)

    def _route(self, job: Job, now: float) -> None:
        """Move a job on from a routing queue; one that no destination may ever take is deleted."""
        complex_ = self.complex
        queue = complex_.queues[job.queue].config
        if queue.type != "Route" or job.state not in "QW" or not queue.started:
            return
        hopeless = True
        for name in queue.route_destinations:
            try:
                complex_.check_accepts(name, job.owner, job.attrs["Resource_List"])
            except PbsError:
                target = complex_.queues[name].config
                if within(job.attrs["Resource_List"], target.resources_max, target.resources_min):
                    hopeless = False
                continue
            complex_.transition(job, job.state, job.substate, now, queue=name)
            return
        if hopeless:
            self._finish(job, now, None)

    # -- running

    def run_cycle(self, now: float) -> None:
        """One scheduling cycle."""
        complex_ = self.complex
        self.wanted = False
        for job_id in list(complex_.waiting):
            job = complex_.jobs[job_id]
            if job.execution_time <= now:
                job.attrs.pop("Execution_Time", None)
                job.attrs["etime"] = int(now)
                complex_.transition(job, "Q", 10, now)
        for table in complex_.queues.values():
            if table.config.type == "Route" and table.counts["Q"]:
                for job in [one for one in complex_.jobs.values() if one.queue == table.config.name]:
                    self._route(job, now)
        starts = cycle(
            complex_.backlog,
            complex_.cluster,
            lambda queue: complex_.queues[queue].config.priority,
            complex_.keeps_from_running,
            lambda: list(complex_.running.values()),
            now,
            complex_.config.strict_ordering,
        )
        for start in starts:
            self._start(start, now)

    def _start(self, start: Start, now: float) -> None:
        complex_ = self.complex
        job = arrays.next_subjob(complex_, start.job, now) if start.job.array is not None else start.job
        complex_.cluster.take(job.id, start.pieces, job.place, now)
        job.pieces = start.pieces
        job.slots = [(complex_.cluster.vnodes[chunk[0][0]].host, 0) for chunk in start.pieces]
        job.slots = [(host, complex_.take_slot(host)) for host, _ in job.slots]
        job.started_at = now
        attrs = job.attrs
        attrs["exec_host"] = exec_host(job)
        attrs["exec_vnode"] = exec_vnode(start.pieces)
        attrs["comment"] = f"Job was sent for execution at {values.comment_time(now)} on {attrs['exec_vnode']}"
        attrs["run_count"] = attrs.get("run_count", 0) + 1
        attrs.pop("estimated", None)
        complex_.transition(job, "R", 41, now)
        self._release_dependents(job, now, started=True)
        self.mom.start(job)

    def started(self, job: Job, sid: int, now: float) -> None:
        """The MoM has confirmed the start."""
        job.sid = sid
        attrs = job.attrs
        attrs["stime"] = int(now)
        attrs["comment"] = f"Job run at {values.comment_time(now)} on {attrs['exec_vnode']}"
        if job.deleted_by:
            attrs["comment"] += f" and terminated by {job.deleted_by}"
        attrs["jobdir"] = next((value for name, value in job.environ if name == "PBS_O_HOME"), "")
        self.complex.transition(job, "R", 42, now)

    def usage(self, job: Job, used: dict[str, int], now: float) -> None:
        """The MoM's periodic report: from the first one on a running job has session_id and resources_used."""
        job.attrs["session_id"] = job.sid
        job.attrs["resources_used"] = resources_used(job, used, now)
        job.attrs["mtime"] = int(now)
        self.complex.touch(job)

    def ended(self, job: Job, status: int, used: dict[str, int], now: float) -> None:
        """The MoM has reported the end of a job (or that it could not start it)."""
        if job.rerunning or (status == NODE_LOST and job.attrs["Rerunable"] == "True" and not job.deleted_by):
            self._requeue(job, now)
        else:
            job.attrs["resources_used"] = resources_used(job, used, now)
            job.attrs["Stageout_status"] = 1
            job.attrs["Exit_status"] = status
            self.complex.transition(job, "E", 53, now)
            self.ending.append((now + self.complex.config.end_delay, job))
            self.finish_ended(now)
        self.wanted = True

    def finish_ended(self, now: float) -> None:
        """Finish the jobs that have been in state E for long enough."""
        while self.ending and self.ending[0][0] <= now:
            _, job = self.ending.popleft()
            if job.state != "E":
                continue  # the server was made to forget it
            job.attrs["obittime"] = int(now)
            self._give_back(job, now)
            self._finish(job, now, job.attrs["Exit_status"])
            self.wanted = True

    def _requeue(self, job: Job, now: float) -> None:
        job.rerunning = False
        self._give_back(job, now)
        for name in ("stime", "jobdir", "resources_used", "exec_host", "exec_vnode", "comment"):
            job.attrs.pop(name, None)
        job.attrs["obittime"] = int(now)
        if self.complex.config.dialect == "release":
            job.attrs["Exit_status"] = RERUN
        if job.parent is not None and job.parent.array is not None:
            array = job.parent.array
            array.subjobs.pop(job.index, None)
            array.waiting = sorted([*array.waiting, job.index])
            self.complex.forget(job)
            self.complex.transition(job.parent, job.parent.state, job.parent.substate, now)
            arrays.refresh(job.parent)
            return
        state, substate = ("H", 20) if job.holds() else ("Q", 10)
        self.complex.transition(job, state, substate, now)

    def _give_back(self, job: Job, now: float) -> None:
        self.complex.cluster.release(job.id, job.pieces, now)
        for host, slot in job.slots:
            self.complex.free_slot(host, slot)
        job.pieces, job.slots = [], []

    def lose(self, job: Job, now: float) -> None:
        """Forget a job as a server with a broken database does."""
        self._give_back(job, now)
        self.complex.forget(job)
        self.wanted = True

    def _finish(self, job: Job, now: float, status: int | None) -> None:
        """Into the history, or out of the tables; `status` is None for a job that never ran."""
        complex_, attrs = self.complex, job.attrs
        if status is not None:
            attrs["Exit_status"] = status
        substate = 91 if job.deleted_by or status is None else 92 if status == 0 else 93
        if status is not None and not job.deleted_by:
            walltime = status == WALLTIME_EXCEEDED
            attrs["comment"] += " and " + (
                "finished" if status == 0 else "exceeded resource walltime" if walltime else "failed"
            )
        elif status is None and job.deleted_by:
            said = complex_.backlog.comment(job)
            if said:
                attrs["comment"] = f"{said} and terminated by {job.deleted_by}"
        attrs["history_timestamp"] = int(now)
        complex_.transition(job, "F" if job.parent is None else "X", substate, now)
        self._release_dependents(job, now)
        if job.parent is not None:
            if arrays.subjob_ended(job.parent, status):
                self.finish_array(job.parent, now)
            complex_.touch(job.parent)
        elif not complex_.history:
            complex_.forget(job)

    def finish_array(self, job: Job, now: float) -> None:
        """End an array that has nothing waiting and nothing running."""
        complex_, array = self.complex, job.array
        if array is None:
            return
        began = "stime" in job.attrs
        arrays.close(complex_, job, now)
        if not began:
            self._finish(job, now, None)
            return
        status = int(array.failed)
        job.attrs["obittime"] = int(now)
        job.attrs["Exit_status"] = status
        if not job.deleted_by:
            job.attrs["comment"] += " and failed" if status else " and finished"
        job.attrs["history_timestamp"] = int(now)
        complex_.transition(job, "F", 91 if job.deleted_by else 93 if status else 92, now)
        self._release_dependents(job, now)
        if not complex_.history:
            complex_.forget(job)

    def _release_dependents(self, job: Job, now: float, started: bool = False) -> None:
        if not str(job.attrs.get("depend", "")).startswith("before"):
            return
        for mark in str(job.attrs["depend"]).split(","):
            dependent = self.complex.jobs.get(mark.partition(":")[2].partition("@")[0])
            if dependent is None or dependent.finished:
                continue
            mine = [kind for kind, other in dependent.depends if other == job.id]
            if started:
                mine = [kind for kind in mine if kind == "after"]
            if any(job.finished and not satisfied(kind, job) for kind in mine):
                self._finish(dependent, now, None)
                continue
            dependent.depends = [(k, other) for k, other in dependent.depends if other != job.id or k not in mine]
            if mine and not dependent.depends:
                dependent.attrs.pop("depend", None)
                self.release_holds(dependent, {"s"}, now)

    # -- at request of a user

    def delete(self, job: Job, caller: Caller, now: float) -> None:
        """qdel. Raises PbsError."""
        self.permit(job, caller)
        again = bool(job.deleted_by)
        job.deleted_by = f"{caller.user}@{self.complex.config.server}"
        if job.array is not None:
            for subjob in list(job.array.subjobs.values()):
                if not subjob.finished:
                    self.delete(subjob, caller, now)
            job.array.waiting.clear()
            if not any(not subjob.finished for subjob in job.array.subjobs.values()):
                self.finish_array(job, now)
            else:
                self.complex.transition(job, job.state, job.substate, now)
                arrays.refresh(job)
        elif job.parent is not None and job.state == "Q":
            if arrays.delete_waiting(job.parent, job.index):
                self.finish_array(job.parent, now)
            else:
                self.complex.transition(job.parent, job.parent.state, job.parent.substate, now)
        elif job.state == "E":
            raise PbsError(errors.BAD_STATE)
        elif job.state in "RS":
            if not again:
                job.attrs["comment"] += f" and terminated by {job.deleted_by}"
            self.complex.touch(job)
            self.mom.terminate(job)
        else:
            self._finish(job, now, None)
        self.wanted = True

    def hold(self, job: Job, kinds: set[str], caller: Caller, now: float) -> None:
        """qhold. A running job keeps running. Raises PbsError."""
        self.permit(job, caller)
        job.attrs["Hold_Types"] = "".join(sorted(job.holds() | kinds))
        if job.state in "QW":
            job.attrs.pop("etime", None)
            self.complex.transition(job, "H", 20, now)
        self.complex.touch(job)

    def release(self, job: Job, kinds: set[str], caller: Caller, now: float) -> None:
        """qrls. Raises PbsError."""
        self.permit(job, caller)
        self.release_holds(job, kinds, now)

    def release_holds(self, job: Job, kinds: set[str], now: float) -> None:
        """Take holds off; the job is queued again when none is left."""
        left = job.holds() - kinds
        job.attrs["Hold_Types"] = "".join(sorted(left)) or "n"
        if job.state == "H" and not left:
            if job.execution_time > now:
                self.complex.transition(job, "W", 30, now)
            else:
                job.attrs["etime"] = int(now)
                self.complex.transition(job, "Q", 10, now)
            self._route(job, now)
        self.complex.touch(job)
        self.wanted = True

    def move(self, job: Job, queue: str, caller: Caller, now: float) -> None:
        """qmove. Raises PbsError."""
        self.permit(job, caller)
        if job.state not in "QHW":
            raise PbsError(errors.BAD_STATE)
        self.complex.check_accepts(queue, job.owner, job.attrs["Resource_List"])
        self.complex.transition(job, job.state, job.substate, now, queue=queue)
        self._route(job, now)
        self.wanted = True

    def rerun(self, job: Job, caller: Caller) -> None:
        """qrerun; only for managers. The requeueing follows the MoM's report. Raises PbsError."""
        if not caller.manager:
            raise PbsError(errors.PERMISSION)
        if job.finished:
            raise PbsError(errors.FINISHED)
        if job.state not in "RS":
            raise PbsError(errors.BAD_STATE)
        if job.attrs["Rerunable"] != "True":
            raise PbsError(errors.NO_RERUN)
        job.rerunning = True
        self.mom.kill(job)

    def permit(self, job: Job, caller: Caller) -> None:
        """Raise PbsError unless the job is unfinished, and the caller owns it or manages the server."""
        if job.finished:
            raise PbsError(errors.FINISHED)
        if job.owner != caller.user and not caller.manager:
            raise PbsError(errors.PERMISSION)


def satisfied(kind: str, other: Job) -> bool:
    """Whether a finished job fulfils a dependency on it."""
    ok = other.substate == 92
    return {"afterok": ok, "afternotok": not ok}.get(kind, True)
