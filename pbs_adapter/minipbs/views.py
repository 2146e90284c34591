"""What qstat -Q, qstat -B and pbsnodes show, as attribute lists in PBS's order."""

from __future__ import annotations

import os
from datetime import tzinfo
from typing import Any

from . import arrays, values
from .complex import Complex
from .describe import resources_used
from .formats import Pairs
from .jobs import Job, waiting_subjob
from .placement import Vnode
from .resources import SIZES

VERSION = "23.06.06"
DATES = frozenset({"ctime", "mtime", "qtime", "etime", "stime", "obittime", "Execution_Time"})


def job_attributes(complex_: Complex, job: Job, now: float, zone: tzinfo | None = None) -> Pairs:
    """A job's attributes as of now, with the scheduler's comment and the elapsed time; dates in `zone`."""
    attrs = job.attrs
    if job.state in "RS" and "resources_used" in attrs:
        used = attrs["resources_used"]
        used["walltime"] = resources_used(job, {}, now)["walltime"]
    if job.state == "Q":
        said = complex_.backlog.comment(job)
        if said is not None:
            attrs["comment"] = said
    if job.array is not None:
        arrays.refresh(job)
    return [(name, values.ctime(value, zone) if name in DATES else value) for name, value in job.shown()]


def with_subjobs(job: Job) -> list[Job]:
    """For -t: an array's subjobs, those that wait included, in order after it."""
    if job.array is None:
        return [job]
    array = job.array
    subjobs = dict(array.subjobs)
    for index in array.waiting:
        subjobs[index] = waiting_subjob(job, index)
    return [job, *(subjobs[index] for index in sorted(subjobs))]


def assigned(jobs: list[Job]) -> dict[str, Any]:
    """resources_assigned of a queue or the server: what its running jobs have asked for."""
    sums: dict[str, int] = {}
    for job in jobs:
        for name, text in job.attrs["Resource_List"].items():
            if name in SIZES:
                sums[name] = sums.get(name, 0) + values.parse_size(text)
            elif name == "nodect" or (str(text).isdigit() and name not in ("place", "select", "mpiprocs")):
                sums[name] = sums.get(name, 0) + int(text)
    return {name: values.format_size(total) if name in SIZES else total for name, total in sorted(sums.items())}


def queue_attributes(complex_: Complex, name: str) -> Pairs:
    """One queue."""
    table = complex_.queues[name]
    config = table.config
    pairs: Pairs = [("queue_type", config.type)]
    if config.priority:
        pairs.append(("Priority", config.priority))
    pairs += [("total_jobs", sum(table.counts.values())), ("state_count", complex_.state_count(table.counts))]
    limits: Pairs = [(key, text) for key, text in (("max_queued", config.max_queued),) if text]
    release = complex_.config.dialect == "release"
    if release:
        pairs += limits
    for key in ("resources_max", "resources_min", "resources_default"):
        if getattr(config, key):
            pairs.append((key, dict(sorted(getattr(config, key).items()))))
    running = assigned([job for job in complex_.running.values() if job.queue == name])
    if running:
        pairs.append(("resources_assigned", running))
    if config.max_run and release:
        pairs.append(("max_run", config.max_run))
    if config.route_destinations:
        pairs.append(("route_destinations", ",".join(config.route_destinations)))
    pairs += [("enabled", str(config.enabled)), ("started", str(config.started))]
    if not release:  # the version that joins limits of several entities lists them last
        pairs += limits + [(key, text) for key, text in (("max_run", config.max_run),) if text]
    return pairs


def server_attributes(complex_: Complex) -> Pairs:
    """The server itself."""
    config = complex_.config
    counts = complex_.counts()
    history = sum(1 + (len(job.array.subjobs) if job.array else 0) for job in complex_.jobs.values() if job.finished)
    main = config.dialect == "main"
    pairs: Pairs = [
        ("server_state", "Active"),
        ("server_host", config.server),
        ("scheduling", "True"),
        ("total_jobs", sum(counts.values()) + history),
        ("state_count", complex_.state_count(counts)),
    ]
    for key in ("max_queued", "max_run"):
        if getattr(config, key):
            pairs.append((key, getattr(config, key)))
    if main:
        pairs.append(("acl_roots", "root@*"))
    pairs += [
        ("default_queue", config.default_queue),
        ("log_events", 511),
        ("mailer", "/usr/sbin/sendmail"),
        ("mail_from", "adm"),
        ("query_other_jobs", "True"),
        ("resources_default", {"ncpus": 1, **dict(sorted(config.resources_default.items()))}),
        ("default_chunk", {"ncpus": 1}),
    ]
    running = assigned(list(complex_.running.values()))
    if running:
        pairs.append(("resources_assigned", running))
    pairs += [
        ("scheduler_iteration", int(config.scheduler_iteration)),
        ("flatuid", "True"),
        ("resv_enable", "True"),
        ("node_fail_requeue", 310),
        ("max_array_size", config.max_array_size),
    ]
    if main:
        pairs.append(("resend_term_delay", 5))
    pairs += [
        ("pbs_license_min", 0),
        ("pbs_license_max", 2147483647),
        ("pbs_license_linger_time", 31536000),
        ("license_count", "Avail_Global:1000000 Avail_Local:1000000 Used:0 High_Use:0"),
        ("pbs_version", VERSION),
        ("eligible_time_enable", "False"),
        ("job_history_enable", str(complex_.history)),
        ("max_concurrent_provision", 5),
    ]
    if main:
        pairs.append(("clear_topjob_estimates_enable", "False"))
    return [*pairs, ("max_job_sequence_id", 9999999)]


def vnode_state(vnode: Vnode) -> str:
    """free, job-busy (all CPUs in use) or job-exclusive."""
    if True in vnode.jobs.values():
        return "job-exclusive"
    cpus = vnode.available.get("ncpus", 0)
    return "job-busy" if cpus and vnode.assigned.get("ncpus", 0) >= cpus else "free"


def vnode_attributes(complex_: Complex, vnode: Vnode) -> Pairs:
    """One vnode. The natural vnode of a NUMA host has the real number of CPUs and no resources of its own."""
    natural = vnode.name == vnode.host
    pairs: Pairs = [("Mom", vnode.host), ("ntype", "PBS"), ("state", vnode_state(vnode))]
    if natural and not vnode.available["ncpus"]:
        pairs.append(("pcpus", os.cpu_count() or 1))
    elif natural or complex_.config.dialect == "main":
        pairs.append(("pcpus", vnode.available["ncpus"]))
    if vnode.jobs:
        pairs.append(("jobs", sorted(vnode.jobs, key=_job_order)))
    available: dict[str, Any] = {"arch": "linux", "host": vnode.host, "vnode": vnode.name}
    for name, total in vnode.available.items():
        available[name] = values.format_size(total) if name in SIZES else total
    used = {
        name: values.format_kb(amount) if name in SIZES else amount
        for name, amount in sorted(vnode.assigned.items())
        if amount
    }
    pairs += [
        ("resources_available", dict(sorted(available.items()))),
        ("resources_assigned", used),
        ("resv_enable", "True"),
        ("sharing", "default_shared"),
        ("license", "l"),
        ("last_state_change_time", int(vnode.changed_at)),
    ]
    if vnode.used_at:
        pairs.append(("last_used_time", int(vnode.used_at)))
    return pairs


def _job_order(job_id: str) -> tuple[int, str]:
    digits = ""
    for char in job_id:
        if not char.isdigit():
            break
        digits += char
    return int(digits or 0), job_id
