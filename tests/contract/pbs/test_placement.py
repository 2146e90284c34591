"""select and place, as a table; and what the scheduler does with what does not fit."""

from __future__ import annotations

import pytest

from pbs_adapter.minipbs import Config, Host
from pbs_adapter.minipbs.complex import Complex
from pbs_adapter.minipbs.describe import exec_vnode
from pbs_adapter.minipbs.jobs import Job
from pbs_adapter.minipbs.lifecycle import Lifecycle
from pbs_adapter.minipbs.placement import Refusal
from pbs_adapter.minipbs.resources import build, parse_place, parse_select
from pbs_adapter.minipbs.submit import Caller, parse
from pbs_adapter.minipbs.submit import build as build_job

GIB = 1 << 30
NUMA = Config(hosts=(Host("a", 16, 64 * GIB, numa=2), Host("b", 16, 64 * GIB, numa=2, resources={"ngpus": 2})))
FLAT = Config(hosts=(Host("a", 8), Host("b", 8)))


def place(config: Config, used: str, select: str, how: str) -> str:
    """exec_vnode, or the scheduler's comment. `used` is what other jobs have taken: "vnode=ncpus[:excl] …"."""
    known = frozenset({"ngpus"})
    complex_ = Complex(config, 0.0)
    for number, item in enumerate(used.split()):
        vnode, _, rest = item.partition("=")
        ncpus, _, sharing = rest.partition(":")
        complex_.cluster.take(f"{number}.x", [[(vnode, {"ncpus": int(ncpus)})]], parse_place(sharing or "free"), 0.0)
    found = complex_.cluster.find(parse_select(select, known)[0], parse_place(how))
    return found.comment() if isinstance(found, Refusal) else exec_vnode(found)


@pytest.mark.parametrize(
    ("used", "select", "how", "expected"),
    [
        ("", "1:ncpus=4", "free", "(a[0]:ncpus=4)"),
        ("", "2:ncpus=4", "free", "(a[0]:ncpus=4)+(a[0]:ncpus=4)"),
        ("a[0]=6", "1:ncpus=4", "free", "(a[1]:ncpus=4)"),
        # a chunk is broken over one host's vnodes only if no single vnode can hold it
        ("", "1:ncpus=12", "free", "(a[0]:ncpus=8+a[1]:ncpus=4)"),
        ("", "1:ncpus=12:mem=40gb", "free", "(a[0]:ncpus=8:mem=33554432kb+a[1]:ncpus=4:mem=8388608kb)"),
        ("a[0]=4 a[1]=4", "1:ncpus=8", "free", "(a[0]:ncpus=4+a[1]:ncpus=4)"),
        ("a[0]=8", "1:ncpus=10", "free", "(b[0]:ncpus=8+b[1]:ncpus=2)"),
        ("", "1:ncpus=17", "free", "Can Never Run: Insufficient amount of resource: ncpus (R: 17 A: 16 T: 16)"),
        ("", "1:ncpus=500", "free", "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 32 T: 32)"),
        ("a[0]=8 a[1]=8 b[0]=8", "1:ncpus=9", "free",
         "Not Running: Insufficient amount of resource: ncpus (R: 9 A: 8 T: 32)"),
        ("a[0]=8 b[0]=8", "1:ncpus=9", "free",
         "Not Running: Insufficient amount of resource: ncpus (R: 9 A: 8 T: 16)"),
        ("", "1:mem=80gb", "free",
         "Can Never Run: Insufficient amount of resource: mem (R: 83886080kb A: 67108864kb T: 67108864kb)"),
        ("", "3:ncpus=8", "pack", "Can Never Run: Not enough total nodes available"),
        ("a[0]=1", "2:ncpus=8", "pack", "(b[0]:ncpus=8)+(b[1]:ncpus=8)"),
        ("a[0]=1 b[0]=1", "2:ncpus=8", "pack", "Not Running: Not enough free nodes available"),
        ("", "2:ncpus=4", "scatter", "(a[0]:ncpus=4)+(b[0]:ncpus=4)"),
        ("", "2:ncpus=12", "scatter", "(a[0]:ncpus=8+a[1]:ncpus=4)+(b[0]:ncpus=8+b[1]:ncpus=4)"),
        ("", "3:ncpus=1", "scatter", "Can Never Run: Not enough total nodes available"),
        ("b[0]=8 b[1]=8", "2:ncpus=1", "scatter", "Not Running: Not enough free nodes available"),
        ("", "3:ncpus=4", "vscatter", "(a[0]:ncpus=4)+(a[1]:ncpus=4)+(b[0]:ncpus=4)"),
        ("", "1:ncpus=12", "vscatter", "Can Never Run: Not enough total nodes available"),
        ("", "5:ncpus=1", "vscatter", "Can Never Run: Not enough total nodes available"),
        ("a[0]=1", "1:ncpus=1", "excl", "(a[1]:ncpus=1)"),
        ("a[0]=1", "1:ncpus=1", "exclhost", "(b[0]:ncpus=1)"),
        ("a[0]=1:excl", "1:ncpus=1", "free", "(a[1]:ncpus=1)"),
        ("a[0]=1:exclhost", "1:ncpus=1", "free", "(b[0]:ncpus=1)"),
        ("a[0]=1 a[1]=1 b[0]=1 b[1]=1", "1:ncpus=1", "excl",
         "Not Running: Job is requesting an exclusive node and node is in use"),
        ("", "2:ncpus=2", "scatter:excl", "(a[0]:ncpus=2)+(b[0]:ncpus=2)"),
        ("", "1:ncpus=1:ngpus=1", "free", "(b[0]:ncpus=1:ngpus=1)"),
        ("", "1:ncpus=1:ngpus=2", "free", "(b[0]:ncpus=1:ngpus=1+b[1]:ngpus=1)"),
        ("", "1:ncpus=1:host=b", "free", "(b[0]:ncpus=1)"),
        ("", "1:ncpus=1:vnode=b[1]", "free", "(b[1]:ncpus=1)"),
        ("", "1:ncpus=1:host=zz", "free", "Can Never Run: Specified host does not exist: zz"),
        ("", "1:ncpus=4+2:ncpus=2", "free", "(a[0]:ncpus=4)+(a[0]:ncpus=2)+(a[0]:ncpus=2)"),
    ],
)  # fmt: skip
def test_placement(used: str, select: str, how: str, expected: str) -> None:
    assert place(NUMA, used, select, how) == expected


def test_one_host_alone_breaks_chunks_under_vscatter_too() -> None:
    alone = Config(hosts=NUMA.hosts[:1])
    assert place(alone, "", "1:ncpus=12", "vscatter") == "(a[0]:ncpus=8+a[1]:ncpus=4)"


def test_a_vnode_without_a_free_cpu_gives_no_memory() -> None:
    busy = "Not Running: Insufficient amount of resource: mem (R: 41943040kb A: 33554432kb T: 67108864kb)"
    assert place(Config(hosts=NUMA.hosts[:1]), "a[0]=8", "1:ncpus=1:mem=40gb", "free") == busy


def test_hosts_without_numa_are_one_vnode() -> None:
    assert place(FLAT, "", "1:ncpus=8", "free") == "(a:ncpus=8)"
    assert place(FLAT, "a=1", "2:ncpus=4", "free") == "(a:ncpus=4)+(b:ncpus=4)"


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ({}, "ncpus=1 nodect=1 place=pack select=1:ncpus=1"),
        ({"ncpus": "3", "mem": "2gb"}, "mem=2gb ncpus=3 nodect=1 place=pack select=1:ncpus=3:mem=2gb"),
        ({"select": "2:mem=1536mb"}, "mem=3gb ncpus=2 nodect=2 place=free select=2:mem=1536mb:ncpus=1"),
        ({"select": "1", "walltime": "90"}, "ncpus=1 nodect=1 place=free select=1:ncpus=1 walltime=00:01:30"),
        ({"select": "ncpus=2+3:ncpus=1", "place": "scatter:excl"},
         "ncpus=5 nodect=4 place=scatter:excl select=1:ncpus=2+3:ncpus=1"),
    ],
)  # fmt: skip
def test_resource_list(asked: dict[str, str], listed: str) -> None:
    request = build(asked, {}, frozenset())
    assert " ".join(f"{name}={value}" for name, value in request.listed.items()) == listed


class Recorder:
    """A MoM that only notes what it is told to start."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, job: Job) -> None:
        self.started.append(job.id.partition(".")[0])

    def terminate(self, job: Job) -> None: ...

    def kill(self, job: Job) -> None: ...

    def signal(self, job: Job, number: int) -> None: ...

    def walltime(self, job: Job) -> None: ...


def backlog(strict: bool, *requests: str) -> tuple[list[str], Lifecycle]:
    """Which of these jobs start on an empty FLAT cluster, in order of submission."""
    config = Config(hosts=FLAT.hosts, strict_ordering=strict)
    mom = Recorder()
    life = Lifecycle(Complex(config, 0.0), mom)
    caller = Caller("alice", 1000, "/", {}, False)
    for number, words in enumerate(requests):
        typed = words.split()
        job = build_job(parse(typed, ""), typed, "", caller, config, "workq", number, 0.0)
        life.enqueue(job, "", 0.0)
    life.run_cycle(0.0)
    return mom.started, life


def test_small_jobs_pass_a_large_one_that_waits() -> None:
    started, _ = backlog(False, "-l select=1:ncpus=6", "-l select=2:ncpus=8", "-l select=1:ncpus=8 -l walltime=99:0:0")
    assert started == ["0", "2"]


@pytest.mark.parametrize(
    ("last", "starts"),
    [
        ("-l select=1:ncpus=8 -l walltime=00:30:00", True),  # over before the large job can start
        ("-l select=1:ncpus=8 -l walltime=02:00:00", False),  # would delay it
        ("-l select=1:ncpus=8", False),  # for ever
    ],
)
def test_strict_ordering_backfills_only_what_does_not_delay_the_first_job(last: str, starts: bool) -> None:
    started, life = backlog(True, "-l select=1:ncpus=6 -l walltime=01:00:00", "-l select=2:ncpus=8", last)
    assert started == (["0", "2"] if starts else ["0"])
    if not starts:
        waiting = life.complex.jobs["2.pbs"]
        assert life.complex.backlog.comment(waiting) == "Not Running: Job would conflict with reservation or top job"


def test_one_cycle_starts_thousands_of_jobs_in_order_of_submission() -> None:
    started, life = backlog(False, *["-l select=1:ncpus=1"] * 3000)
    assert started == [str(number) for number in range(16)]
    assert len(life.complex.backlog.classes) == 1
