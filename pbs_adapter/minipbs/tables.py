"""The tables that qstat and pbsnodes print for people; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .jobs import STATES
from .values import format_size, parse_size

Attributes = dict[str, Any]


def cut(text: str, width: int) -> str:
    """A long value ends with an asterisk."""
    return text if len(text) <= width else text[: width - 1] + "*"


def owner(attrs: Attributes) -> str:
    """The user's name without the host."""
    return str(attrs["Job_Owner"]).partition("@")[0]


def jobs_plain(jobs: Iterable[tuple[str, Attributes]], wide: bool) -> Iterator[str]:
    """`qstat` and `qstat -w`; nothing at all for no jobs."""
    layout = "{:<30} {:<15} {:<15}  {:>8} {:>1} {:<15}\n" if wide else "{:<17} {:<16} {:<16}  {:>8} {:>1} {:<16}\n"
    first = True
    for job_id, attrs in jobs:
        if first:
            yield (
                "Job id                         Name            User             Time Use S Queue\n"
                "-----------------------------  --------------- ---------------  -------- - ---------------\n"
                if wide
                else "Job id            Name             User              Time Use S Queue\n"
                "----------------  ---------------- ----------------  -------- - -----\n"
            )
            first = False
        used = attrs.get("resources_used", {}).get("cput", "0")
        widths = (30, 15, 15, 15) if wide else (17, 15, 16, 16)
        name = attrs["Job_Name"]
        yield layout.format(
            cut(job_id, widths[0]),
            cut(name, widths[1]) if len(name) > widths[1] else name,
            cut(owner(attrs), widths[2]),
            used,
            attrs["job_state"],
            cut(attrs["queue"], widths[3]),
        )


_NARROW = (
    "{est}\n"
    "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
    "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n"
)


def jobs_alternative(
    server: str,
    jobs: Iterable[tuple[str, Attributes]],
    *,
    wide: bool = False,
    one_line: bool = False,
    nodes: bool = False,
    comments: bool = False,
    estimates: bool = False,
) -> Iterator[str]:
    """`qstat -a` and its relatives (-n, -s, -w, -1, -T); nothing at all for no jobs."""
    first = True
    for job_id, attrs in jobs:
        if first:
            yield f"\n{server}: \n" + _alternative_head(wide, estimates)
            first = False
        yield _alternative_line(job_id, attrs, wide, estimates)
        yield " " if one_line else "\n"
        if nodes:
            hosts = attrs.get("exec_host", " -- ")
            yield f"{hosts}\n" if one_line else f"   {hosts}\n"
        if comments and attrs.get("comment"):
            limit = 114 if wide else 74
            text = attrs["comment"] if len(attrs["comment"]) <= limit else attrs["comment"][: limit - 3] + "..."
            yield f"   {text}\n"
        elif one_line and not nodes:
            yield "\n"


def _alternative_head(wide: bool, estimates: bool) -> str:
    last = "Start" if estimates else "Elap"
    if wide:
        est = " " * 114 + "Est\n" if estimates else ""
        dashes = [30, 15, 15, 15, 8, 4, 5]
        return (
            est
            + " " * 99
            + f"Req'd  Req'd   {last}\n"
            + "{:<30} {:<15} {:<15} {:<15} {:<8} {:<4} {:<5} Memory Time  S Time\n".format(
                "Job ID", "Username", "Queue", "Jobname", "SessID", "NDS", "TSK"
            )
            + " ".join("-" * width for width in dashes)
            + " ------ ----- - -----\n"
        )
    est = " " * 75 + "Est\n" if estimates else ""
    return est + _NARROW.format(est=" " * 60 + f"Req'd  Req'd   {last}")


def _alternative_line(job_id: str, attrs: Attributes, wide: bool, estimates: bool) -> str:
    asked = attrs["Resource_List"]
    memory = human_size(asked["mem"]) if "mem" in asked else "--  "
    wanted = str(asked["walltime"])[:5] if "walltime" in asked else "-- "
    elapsed = "--" if estimates else str(attrs.get("resources_used", {}).get("walltime", "  -- "))[:5]
    state = attrs["job_state"]
    if estimates and state in "QSB":
        elapsed = str(attrs.get("estimated", {}).get("start_time", " --"))[-5:]
    session, chunks = str(attrs.get("session_id", "--  ")), str(asked.get("nodect", "--"))
    cpus = str(asked.get("ncpus", "--"))
    if wide:
        head = "{:<30} {:<15} {:<15} {:<15} {:>8} {:>4} {:>5} ".format(
            *(cut(text, width) for text, width in ((job_id, 30), (owner(attrs), 15), (attrs["queue"], 15))),
            cut(attrs["Job_Name"], 15), session, chunks, cpus,
        )  # fmt: skip
    else:
        head = "{:<15} {:<8} {:<8} {:<10} {:>6} {:>3} {:>3} ".format(
            *(cut(text, width) for text, width in ((job_id, 15), (owner(attrs), 8), (attrs["queue"], 8))),
            cut(attrs["Job_Name"], 10), cut(session, 6), cut(chunks, 3), cut(cpus, 3),
        )  # fmt: skip
    return head + f"{memory:>6.6} {wanted:>5.5} {state} {elapsed:>5.5}"


def human_size(text: str) -> str:
    """At most four digits and a unit: "1gb", "1536mb"."""
    size = parse_size(text)
    for suffix, shift in (("b", 0), ("kb", 10), ("mb", 20), ("gb", 30), ("tb", 40)):
        if size < 10000 << shift and (size % (1024 << shift) or not size):
            return f"{-(-size >> shift)}{suffix}"
    return format_size(size)


def queues(rows: Iterable[tuple[str, Attributes, dict[str, int]]]) -> Iterator[str]:
    """`qstat -Q`: name, attributes, and jobs by state letter."""
    yield "Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n"
    yield "---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n"
    for name, attrs, counts in rows:
        numbers = [counts.get(letter, 0) for letter in "QRHWTE"]
        yield "{:<16} {:>5} {:>5} {:>3} {:>3} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:<4}\n".format(
            cut(name, 16), 0, attrs["total_jobs"], yes(attrs["enabled"]), yes(attrs["started"]), *numbers,
            cut(attrs["queue_type"], 4),
        )  # fmt: skip


def yes(text: str) -> str:
    """True and False in a table."""
    return "yes" if text == "True" else "no"


def server(name: str, attrs: Attributes, counts: dict[str, int]) -> Iterator[str]:
    """`qstat -B`."""
    yield "Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n"
    yield "---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------\n"
    numbers = [counts.get(letter, 0) for letter in "QRHWTE"]
    yield "{:<16} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:<11}\n".format(
        cut(name, 16), 0, attrs["total_jobs"], *numbers, attrs["server_state"],
    )  # fmt: skip


def queue_limits(server_name: str, rows: Iterable[tuple[str, Attributes, dict[str, int]]]) -> Iterator[str]:
    """`qstat -q`."""
    yield f"\nserver: {server_name}\n\n"
    yield "Queue            Memory CPU Time Walltime Node   Run   Que   Lm  State\n"
    yield "---------------- ------ -------- -------- ---- ----- ----- ----  -----\n"
    total_running = total_queued = 0
    for name, attrs, counts in rows:
        largest = attrs.get("resources_max", {})
        running = counts.get("R", 0)
        queued = sum(counts.get(letter, 0) for letter in "QHW")
        total_running, total_queued = total_running + running, total_queued + queued
        state = f"{'E' if attrs['enabled'] == 'True' else 'D'} {'R' if attrs['started'] == 'True' else 'S'}"
        yield "{:<16.16} {:>6.6} {:>8.8} {:>8.8} {:>4.4} {:>5} {:>5} {:>4.4}   {:>}\n".format(
            name, largest.get("mem", "--  "), "  --   ", largest.get("walltime", "  --   "), "-- ", running, queued,
            "-- ", state,
        )  # fmt: skip
    yield f"{'':47}----- -----\n{'':47}{total_running:5} {total_queued:5}\n"


def nodes_summary(rows: Iterable[tuple[str, str, list[str], dict[str, tuple[int, int]], int, int]]) -> Iterator[str]:
    """`pbsnodes -aSj`: name, state, job ids, (free, total) by resource, running and suspended jobs."""
    yield "                                                        mem       ncpus   nmics   ngpus\n"
    yield "vnode           state           njobs   run   susp      f/t        f/t     f/t     f/t   jobs\n"
    yield "--------------- --------------- ------ ----- ------ ------------ ------- ------- ------- -------\n"
    for name, state, jobs, sizes, running, suspended in rows:
        memory = "/".join(coarse(size) for size in sizes["mem"])
        columns = ["/".join(str(n) for n in sizes.get(one, (0, 0))) for one in ("ncpus", "nmics", "ngpus")]
        yield "{:<15} {:<15} {:>6} {:>5} {:>6} {:>12} {:>7} {:>7} {:>7} {:>}\n".format(
            cut(name, 15), state, len(jobs), running, suspended, memory, *columns, ",".join(jobs) or "--",
        )  # fmt: skip


def coarse(size: int) -> str:
    """Whole gigabytes where it is that large, rounded down."""
    for suffix, shift in (("tb", 40), ("gb", 30), ("mb", 20), ("kb", 10)):
        if size >= 1 << shift and (shift < 40 or size >= 10 << 40):
            return f"{size >> shift}{suffix}"
    return f"{size}b"


def merge_states(counts: dict[str, int]) -> dict[str, int]:
    """Suspended jobs count as running."""
    merged = {letter: counts.get(letter, 0) for letter in STATES}
    merged["R"] += counts.get("S", 0) + counts.get("U", 0)
    return merged
