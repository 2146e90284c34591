"""The tables of one PBS: queues, jobs, vnodes, counts and limits, and the one place where a job changes state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from . import errors
from .config import Config, Queue
from .errors import PbsError
from .jobs import LIVE, STATES, Job, waiting_subjob
from .placement import Cluster, Vnode
from .resources import Limit, within
from .scheduler import Backlog


@dataclass(slots=True)
class QueueTable:
    """A queue with its limits parsed and its jobs counted by state letter."""

    config: Queue
    max_run: Limit
    max_queued: Limit
    counts: Counter[str] = field(default_factory=Counter)
    live: Counter[str] = field(default_factory=Counter)
    running: Counter[str] = field(default_factory=Counter)


class Complex:
    """Everything the server knows. `changed` collects jobs for the journal."""

    def __init__(self, config: Config, now: float) -> None:
        self.config = config
        self.cluster = Cluster(make_vnodes(config, now))
        self.queues = {
            queue.name: QueueTable(queue, Limit.parse(queue.max_run), Limit.parse(queue.max_queued))
            for queue in config.queues
        }
        self.max_run, self.max_queued = Limit.parse(config.max_run), Limit.parse(config.max_queued)
        self.jobs: dict[str, Job] = {}
        self.backlog = Backlog()
        self.waiting: set[str] = set()
        self.running: dict[str, Job] = {}
        self.changed: dict[str, Job] = {}
        self.forgotten: list[str] = []
        self.next_seq = 0
        self.next_rank = 0
        self.history = config.job_history
        self._slots: dict[str, set[int]] = {host.name: set() for host in config.hosts}

    # -- looking things up

    def find(self, text: str) -> Job:
        """The job, array or subjob of that id, history included. Raises PbsError."""
        job_id = text if "." in text else f"{text}.{self.config.server}"
        job = self.jobs.get(job_id)
        if job is None and "[" in job_id and not job_id.startswith("["):
            head, _, rest = job_id.partition("[")
            index, _, server = rest.partition("]")
            parent = self.jobs.get(f"{head}[]{server}")
            if parent is not None and parent.array is not None and index.isdigit():
                job = parent.array.subjobs.get(int(index))
                if job is None and int(index) in parent.array.waiting:
                    job = waiting_subjob(parent, int(index))
        if job is None:
            raise PbsError(errors.UNKNOWN_JOB)
        return job

    def queue(self, name: str) -> QueueTable:
        """Raises PbsError for an unknown one."""
        try:
            return self.queues[name]
        except KeyError:
            raise PbsError(errors.UNKNOWN_QUEUE) from None

    def state_count(self, counts: Counter[str]) -> str:
        """state_count of a queue or of the server."""
        merged = Counter({"R": counts["S"] + counts["U"]}) + counts
        return "".join(f"{word}:{merged[letter]} " for letter, word in STATES.items())

    def counts(self) -> Counter[str]:
        """Jobs of all queues by state letter."""
        total: Counter[str] = Counter()
        for table in self.queues.values():
            total.update(table.counts)
        return total

    # -- limits

    def check_accepts(self, queue: str, owner: str, listed: dict[str, str]) -> None:
        """Whether the queue takes such a job now. Raises PbsError."""
        table = self.queue(queue)
        if not table.config.enabled:
            raise PbsError(errors.NOT_ENABLED)
        if not within(listed, table.config.resources_max, table.config.resources_min):
            raise PbsError(errors.LIMITS)
        reached = table.max_queued.reached(owner, table.live[owner], sum(table.live.values()))
        if reached:
            # the real server prints the word "generic" where the queue's name was meant
            texts = {
                "user": f"Maximum number of jobs for user {owner} already in queue {queue}",
                "each": "would exceed queue generic's per-user limit",
                "all": f"Maximum number of jobs already in queue {queue}",
            }
            raise PbsError(errors.ENTITY_LIMIT, texts[reached])
        if self.config.max_queued:
            of_user = sum(table.live[owner] for table in self.queues.values())
            of_all = sum(sum(table.live.values()) for table in self.queues.values())
            reached = self.max_queued.reached(owner, of_user, of_all)
            texts = {
                "user": f"Maximum number of jobs for user {owner} already in complex",
                "each": "would exceed complex's per-user limit",
                "all": "Maximum number of jobs already in complex",
            }
            if reached:
                raise PbsError(errors.ENTITY_LIMIT, texts[reached])

    def keeps_from_running(self, job: Job) -> str | None:
        """The limit that a queued job meets, in PBS's words."""
        table = self.queues[job.queue]
        if not table.config.started:
            return "Queue not started."
        if table.config.type != "Execution":
            return "Queue not an execution queue."
        name, owner = table.config.name, job.owner
        reached = table.max_run.reached(owner, table.running[owner], sum(table.running.values()))
        if reached:
            return {
                "user": f"Queue {name} job limit reached for user {owner}",
                "each": f"User has reached queue {name} running job limit.",
                "all": f"Queue {name} job limit has been reached.",
            }[reached]
        if self.config.max_run:
            of_user = sum(table.running[owner] for table in self.queues.values())
            reached = self.max_run.reached(owner, of_user, len(self.running))
            if reached:
                return {
                    "user": f"Server job limit reached for user {owner}",
                    "each": "User has reached server running job limit.",
                    "all": "Server job limit has been reached.",
                }[reached]
        if job.array is not None and job.array.max_run is not None:
            active = sum(1 for subjob in job.array.subjobs.values() if subjob.state in "RSE")
            if active >= job.array.max_run:
                return "Number of concurrent running subjobs limit reached"
        return None

    # -- changing things

    def add(self, job: Job) -> None:
        """Put a new job (not a subjob) into the tables."""
        self.next_rank += 1
        job.rank = self.next_rank
        self.jobs[job.id] = job
        self._enter(job)

    def restore(self, job: Job, now: float) -> None:
        """Put in a job (or subjob) that an earlier server knew, with what it holds."""
        if job.parent is None:
            self.jobs[job.id] = job
        if job.queue not in self.queues:
            job.queue = self.config.default_queue
        self._enter(job)
        if job.pieces:
            self.cluster.take(job.id, job.pieces, job.place, now)
            for host, slot in job.slots:
                self._slots.setdefault(host, set()).add(slot)

    def transition(self, job: Job, state: str, substate: int, now: float, queue: str = "") -> None:
        """Move a job to another state (and queue): counts, backlog and journal follow."""
        self._leave(job)
        job.state, job.substate = state, substate
        job.queue = queue or job.queue
        job.attrs["queue"] = job.queue
        job.attrs["mtime"] = int(now)
        self._enter(job)

    def forget(self, job: Job) -> None:
        """Drop a job as if it had never been."""
        self._leave(job)
        if job.parent is not None and job.parent.array is not None:
            job.parent.array.subjobs.pop(job.index, None)
        self.jobs.pop(job.id, None)
        self.changed.pop(job.id, None)
        self.forgotten.append(job.id)

    def touch(self, job: Job) -> None:
        """Note for the journal that a job's attributes changed."""
        self.changed[job.id] = job

    def _enter(self, job: Job) -> None:
        table = self.queues[job.queue]
        job.attrs["job_state"], job.attrs["substate"] = job.state, job.substate
        self.changed[job.id] = job
        if job.state not in LIVE:
            return
        table.counts[job.state] += 1
        if job.parent is None:
            table.live[job.owner] += 1
        if job.state in "RSE":
            table.running[job.owner] += 1
            self.running[job.id] = job
        elif job.state == "Q" or (job.array is not None and job.state == "B" and job.array.waiting):
            self.backlog.add(job)
        elif job.state == "W":
            self.waiting.add(job.id)

    def _leave(self, job: Job) -> None:
        table = self.queues[job.queue]
        self.backlog.remove(job)
        self.waiting.discard(job.id)
        if job.state not in LIVE:
            return
        table.counts[job.state] -= 1
        if job.parent is None:
            table.live[job.owner] -= 1
        if self.running.pop(job.id, None) is not None:
            table.running[job.owner] -= 1

    # -- job slots: the number after the slash in exec_host

    def take_slot(self, host: str) -> int:
        """The lowest number that no running job has on that host."""
        used = self._slots[host]
        slot = 0
        while slot in used:
            slot += 1
        used.add(slot)
        return slot

    def free_slot(self, host: str, slot: int) -> None:
        """Give a slot back."""
        self._slots[host].discard(slot)


def make_vnodes(config: Config, now: float) -> list[Vnode]:
    """The vnodes of all hosts: one each, or a natural vnode of size zero and one for each NUMA domain."""
    vnodes: list[Vnode] = []
    for host in config.hosts:
        if host.numa < 2:
            totals = {"ncpus": host.ncpus, "mem": host.mem, **host.resources}
            vnodes.append(Vnode(host.name, host.name, totals, changed_at=now))
            continue
        vnodes.append(Vnode(host.name, host.name, {"ncpus": 0, "mem": 0}, changed_at=now))
        for domain in range(host.numa):
            share = {
                name: total // host.numa + (1 if domain < total % host.numa else 0)
                for name, total in (("ncpus", host.ncpus), *host.resources.items())
            }
            share["mem"] = host.mem // host.numa
            vnodes.append(Vnode(f"{host.name}[{domain}]", host.name, share, changed_at=now))
    return vnodes
