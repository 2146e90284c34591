"""A link over an embedded cluster, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from censuses import census, cluster
from embedded import LOST, EmbeddedCluster
from virtualtime import VirtualClock

from bridge.clusters.link import ClusterLink
from bridge.telemetry import Metrics
from pbs_adapter.errors import Fenced, OutcomeUnknown, PbsUnavailable, Unreachable
from pbs_adapter.models import JobOptions, JobRef, JobRequest, LogQuery, Observation, PbsView

ACCOUNTS = [
    {"name": "chem", "transport": {"type": "local"}, "namespaces": ["chem-*", "lab"], "sharedTrust": True},
    {"name": "rest", "transport": {"type": "local"}, "namespaces": ["*"], "sharedTrust": True},
]
REQUEST = JobRequest(JobRef("chem", "u1"), "hello.u1.i", JobOptions(1, 1 << 30, 60), files=())


@dataclass
class Scene:
    """A link that runs, what it talks to, and what it told."""

    clock: VirtualClock
    pbs: EmbeddedCluster
    link: ClusterLink
    metrics: Metrics
    changed: list[set[str]] = field(default_factory=list)
    healths: list[bool] = field(default_factory=list)


@asynccontextmanager
async def scene(connected: bool = True) -> AsyncIterator[Scene]:
    """A running link."""
    clock, metrics = VirtualClock(), Metrics()
    pbs = EmbeddedCluster(census, ["chem", "rest"], clock)
    link = ClusterLink(cluster(accounts=ACCOUNTS, census=60), pbs, metrics=metrics, clock=clock)
    made = Scene(clock, pbs, link, metrics)
    link.on_change.append(made.changed.append)
    link.on_health.append(lambda: made.healths.append(link.health().reachable))
    if connected:
        pbs.connect()
    task = asyncio.ensure_future(link.run())
    await clock.advance(0.1)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_before_the_first_report_nothing_is_sure() -> None:
    async with scene(connected=False) as s:
        assert not s.link.health().reachable
        assert not s.link.complete("chem")
        assert s.link.trouble("chem") == "connecting"
        assert s.link.health().report_age is None
        assert s.link.census is None
        s.pbs.connect()
        await s.clock.advance(10)
        assert s.link.complete("chem")
        assert s.link.trouble("chem") == ""
        assert s.link.census is not None
        assert s.healths[-1] is True


async def test_changes_are_told_once() -> None:
    async with scene() as s:
        s.pbs.put("chem", Observation("u1"), Observation("u2"))
        await s.clock.advance(1)
        s.pbs.put("rest", Observation("u3"))
        await s.clock.advance(60)
        s.pbs.drop("chem", "u2")
        await s.clock.advance(1)
        assert s.changed == [{"u1", "u2"}, {"u3"}, {"u2"}]
        assert set(s.link.observations) == {"u1", "u3"}
        assert s.link.seen("rest", "u3") == Observation("u3")


async def test_a_lost_channel_keeps_observations_and_says_why() -> None:
    async with scene() as s:
        s.pbs.put("chem", Observation("u1"))
        await s.clock.advance(1)
        since = s.clock.time()
        s.pbs.disconnect("host key has changed")
        await s.clock.advance(5)
        health = s.link.health()
        assert (health.reachable, health.message) == (
            False,
            "account chem: host key has changed; account rest: host key has changed",
        )
        assert health.since == pytest.approx(since, abs=1)
        assert health.report_age == pytest.approx(5, abs=1)
        assert s.link.seen("chem", "u1") is not None
        assert not s.link.complete("chem")
        assert b'channel_connected{account="chem",cluster="alpha"} 0.0' in s.metrics.text()
        s.pbs.connect()
        await s.clock.advance(6)
        assert s.link.health().reachable
        assert s.link.complete("chem")


async def test_a_report_that_is_complete_at_last_is_told_though_it_changes_nothing() -> None:
    """Pods of which nothing was seen on the cluster wait for it, to be submitted."""
    async with scene() as s:
        s.pbs.disconnect()
        await s.clock.advance(10)
        s.pbs.complete = False
        s.pbs.connect()
        await s.clock.advance(10)
        assert s.link.health().reachable
        told = len(s.healths)
        s.pbs.complete = True
        s.pbs.put("chem", Observation("u1"))
        await s.clock.advance(1)
        assert s.link.complete("chem")
        assert len(s.healths) > told


async def test_a_server_that_does_not_answer_makes_the_cluster_unusable() -> None:
    async with scene() as s:
        s.pbs.server_up = False
        s.pbs.put("chem", Observation("u1"))
        await s.clock.advance(2)
        assert "PBS does not answer" in s.link.trouble("chem")
        assert s.healths[-1] is False


async def test_the_census_is_taken_anew_and_at_once_when_the_cluster_is_back() -> None:
    async with scene() as s:
        first = s.link.census
        assert first is not None
        await s.clock.advance(61)
        assert s.link.census is not None
        assert s.link.census.at >= first.at + 60
        s.pbs.disconnect()
        await s.clock.advance(200)
        old = s.link.census.at
        s.pbs.connect()
        await s.clock.advance(6)
        assert s.link.census.at > old


async def test_a_submission_counts_as_seen_before_any_report() -> None:
    async with scene() as s:
        s.pbs.failure = LOST
        with pytest.raises(OutcomeUnknown):
            await s.link.submit(REQUEST)
        seen = s.link.seen("chem", "u1")
        assert seen is not None
        assert seen.submitting
        assert await s.link.submit(REQUEST) == "2.alpha"
        seen = s.link.seen("chem", "u1")
        assert seen is not None
        assert seen.job_id == "2.alpha"


async def test_a_fenced_account_is_that_accounts_trouble_and_the_others_go_on() -> None:
    """One account's word (any job outside a container can write its epoch file) ended the agent for all clusters."""
    async with scene() as s:
        s.pbs.fenced["chem"] = Fenced("epoch 7 is over: 999999999999 leads now")
        s.pbs.put("chem", Observation("u1"))
        await s.clock.advance(30)
        assert "refuses this agent: epoch 7 is over" in s.link.trouble("chem")
        assert not s.link.complete("chem")
        assert s.link.health().reachable
        with pytest.raises(Unreachable, match="refuses this agent"):
            await s.link.submit(REQUEST)
        asked = s.pbs.asked["chem"]
        await s.clock.advance(3600)
        assert s.pbs.asked["chem"] - asked < 40  # pauses grow to minutes
        s.pbs.put("rest", Observation("u3"))
        await s.clock.advance(1)
        assert s.link.seen("rest", "u3") == Observation("u3")
        s.pbs.fenced.clear()
        await s.clock.advance(400)
        assert s.link.trouble("chem") == ""


async def test_a_census_that_is_refused_ends_nothing() -> None:
    async with scene() as s:
        s.pbs.census_error = Fenced("epoch 7 is below 8")
        await s.clock.advance(200)
        s.pbs.put("rest", Observation("u3"))
        await s.clock.advance(1)
        assert s.link.seen("rest", "u3") is not None


async def test_a_bug_in_one_task_is_shown_and_the_task_started_again() -> None:
    async with scene() as s:
        s.pbs.put("chem", Observation("u1"))
        await s.clock.advance(1)
        s.pbs.bug = TypeError("'int' object is not iterable")
        s.pbs.put("rest", Observation("u2"))
        await s.clock.advance(1)
        assert "TypeError: 'int' object" in s.link.health().message
        assert b'task_failures_total{cluster="alpha",task="jobs of rest"}' in s.metrics.text()
        assert s.link.seen("chem", "u1") is not None
        s.pbs.bug = None
        await s.clock.advance(90)
        assert s.link.seen("rest", "u2") is not None
        assert s.link.trouble("rest") == ""
        assert "TypeError" in s.link.health().message
        await s.clock.advance(700)
        assert s.link.health().message == ""


async def test_what_an_account_says_of_a_pod_of_another_is_dropped_and_told() -> None:
    """UIDs stand in the names of jobs, which all users see: any of them could end a pod of the others."""
    async with scene() as s:
        s.link.owner_of = {"u1": "rest", "u2": "chem"}.get
        status = {"version": 1, "uid": "u1", "phase": "Ended", "result": "Succeeded", "containers": {}}
        s.pbs.put("chem", Observation("u1", claimed=True, status=status), Observation("u2"))
        s.pbs.put("rest", Observation("u1", job_id="1.a"))
        await s.clock.advance(1)
        assert s.link.seen("rest", "u1") == Observation("u1", job_id="1.a")
        assert s.link.holders("u1") == ("rest",)
        assert "u1" not in s.link.of_account("chem")
        assert s.link.complete("chem")
        assert s.link.complete("rest")
        assert "account chem" in s.link.health().message
        assert b'false_reports_total{account="chem",cluster="alpha"}' in s.metrics.text()


async def test_an_account_that_reports_too_much_is_in_trouble_and_bounded() -> None:
    async with scene() as s:
        many = [Observation(f"u{n}", pbs=PbsView(comment="x" * 4000)) for n in range(20_000)]
        s.pbs.put("chem", *many)
        await s.clock.advance(5)
        assert "more pods than an agent keeps" in s.link.trouble("chem")
        assert len(s.link.of_account("chem")) < 5000
        assert s.link.trouble("rest") == ""


async def test_files_that_hang_are_told_of_and_only_that_account_waits() -> None:
    async with scene() as s:
        s.pbs.read_age["chem"] = 100.0
        s.pbs.put("chem", Observation("u1"))
        await s.clock.advance(1)
        assert "files hang" in s.link.trouble("chem")
        assert not s.link.complete("chem")
        assert s.link.health().reachable
        s.pbs.read_age.clear()
        s.pbs.put("chem", Observation("u2"))
        await s.clock.advance(1)
        assert s.link.trouble("chem") == ""


async def test_a_census_that_is_fresh_is_not_asked_for_and_an_old_one_is_once() -> None:
    async with scene() as s:
        await s.clock.advance(2)
        before = len(s.pbs.censuses)
        await s.link.census_now()
        assert len(s.pbs.censuses) == before
        await s.clock.advance(4)
        first = s.link.census
        several = [asyncio.ensure_future(s.link.census_now()) for _ in range(5)]
        await s.clock.advance(0.1)
        assert all(task.done() for task in several)
        assert s.pbs.censuses[before:] == [True]
        assert s.link.census is not first
        assert (s.link.census_age() or 0.0) < 1
        await s.clock.advance(58)  # and the whole one comes when it is due
        assert s.pbs.censuses[before:] == [True, False]


async def test_a_census_that_does_not_come_is_waited_for_a_moment_and_doubted() -> None:
    async with scene() as s:
        await s.clock.advance(10)
        s.pbs.census_takes = 20.0
        asking = asyncio.ensure_future(s.link.census_now())
        await s.clock.advance(2.5)
        assert not asking.done()
        await s.clock.advance(1)
        assert asking.done()
        assert s.link.census_doubt == "PBS has not answered within 3 s"
        await s.clock.advance(20)
        assert s.link.census_doubt == ""  # it came after all


async def test_a_budget_that_is_used_up_is_told_and_not_hammered() -> None:
    async with scene() as s:
        await s.clock.advance(10)
        s.pbs.census_error = PbsUnavailable("the budget of PBS connections per minute is used up")
        before = len(s.pbs.censuses)
        for _ in range(20):
            asking = asyncio.ensure_future(s.link.census_now())
            await s.clock.advance(1)
            assert asking.done()
        assert "budget" in s.link.census_doubt
        assert len(s.pbs.censuses) - before <= 5  # in twenty seconds


@pytest.mark.parametrize(("namespace", "account"), [("chem-1", "chem"), ("lab", "chem"), ("laboratory", "rest")])
async def test_the_first_account_that_serves_the_namespace(namespace: str, account: str) -> None:
    link = ClusterLink(cluster(accounts=ACCOUNTS), EmbeddedCluster(census, ["chem", "rest"]))
    assert link.account_for(namespace) == account


async def test_a_namespace_that_no_account_serves() -> None:
    link = ClusterLink(cluster(accounts=ACCOUNTS[:1]), EmbeddedCluster(census, ["chem"]))
    assert link.account_for("other") is None
    assert link.trouble("nobody") == "there is no account 'nobody'"


async def test_logs_pass_through() -> None:
    async with scene() as s:
        got = [chunk async for chunk in s.link.logs(JobRef("chem", "u1"), LogQuery("main"))]
        assert got == [b"u1 main\n"]
