"""What the agent knows of one cluster, and the one way to act on it.

A loop per account follows the jobs by long poll, another takes the census; both only replace what is known and wake
those who listen. Nothing here decides about pods. A failed poll changes health, never an observation.

An account in trouble (unreachable, fenced, flooding, lying) is that account's trouble: it gets nothing new until it is
well, everything else goes on. That this process leads is the Lease's word alone, so `Fenced` goes no further than here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

import structlog

from bridge.api.settings import Cluster as ClusterSettings
from bridge.clusters.books import Books
from bridge.clusters.health import ClusterHealth, differs, judge
from bridge.clusters.keeping import keep_running
from bridge.kube.clock import BackOff, Clock, SystemClock, wait
from bridge.telemetry import Metrics
from pbs_adapter.errors import AdapterError, Fenced, OutcomeUnknown, Unreachable
from pbs_adapter.models import (
    Census,
    Cluster,
    JobRef,
    JobRequest,
    JobsReport,
    LogQuery,
    Observation,
    PodFile,
    VolumeFiles,
)

LONG_POLL = 20.0  # s the helper may wait for a change
TICK = 1.0  # s between two looks at the channels' state
FAULTS_SHOW = 600.0  # s for which a task that failed and was started again is told of
FRESH = 5.0  # s for which a census is as good as a new one
PATIENCE = 3.0  # s that whoever decides by the census waits for a new one
EARLIEST = 0.02  # s between a report and the next request
IDLE_SHARE = 3.0  # times as long as a report took to read nothing more is asked for: a flood gets a quarter of the time
MEMORY = 64 << 20  # bytes that all observations of a cluster may take, shared among its accounts
AT_LEAST = 16 << 20  # of each account

log = structlog.get_logger(__name__)
T = TypeVar("T")


class ClusterLink:
    """One cluster. `on_change` callbacks get the UIDs whose observation changed; `on_health` ones are called when
    health or the census changed. Both are lists; callbacks run on the loop and must not raise or block.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        adapter: Cluster,
        *,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.census: Census | None = None
        self.on_change: list[Callable[[set[str]], None]] = []
        self.on_health: list[Callable[[], None]] = []
        self._adapter = adapter
        self._metrics = metrics
        self._clock = clock or SystemClock()
        #: Which account serves a UID, where that is known; what others say of it is dropped.
        self.owner_of: Callable[[str], str | None] = lambda uid: None
        most = max(AT_LEAST, MEMORY // max(1, len(settings.accounts)))
        self._books = {each.name: Books(most=most, foreign=self._foreign(each.name)) for each in settings.accounts}
        self._lies = dict.fromkeys(self._books, 0)
        self._faults: dict[str, tuple[str, float]] = {}
        self.census_doubt = ""  # why a census that was asked for did not come; the old one still holds
        self._census_asked: float | None = None  # monotonic: no news of before
        self._census_due = asyncio.Event()
        self._quick_at = float("-inf")
        self._quick = False  # queues and vnodes alone are wanted
        self._whole = True
        self._attempt = asyncio.Event()  # set when the attempt that is on its way is over
        start = self._clock.time()
        self._health = judge(ClusterHealth(False, "", start), {}, self._problems(), start)

    def __repr__(self) -> str:
        return f"<ClusterLink {self.settings.name} reachable={self._health.reachable} jobs={len(self.observations)}>"

    async def run(self) -> None:
        """Follow jobs and census until cancelled. A task that fails is started again, and shown in the health."""
        async with asyncio.TaskGroup() as tasks:
            for account in self._books:
                self._keep(tasks, f"jobs of {account}", lambda account=account: self._follow(account))  # type: ignore[misc]
            self._keep(tasks, "census", self._take_census)
            self._keep(tasks, "health", self._watch_health)

    def _keep(self, tasks: asyncio.TaskGroup, name: str, run: Callable[[], Awaitable[None]]) -> None:
        work = keep_running(name, run, self._clock, self.fault)
        tasks.create_task(work, name=f"{self.settings.name}.{name}")

    def fault(self, task: str, why: str) -> None:
        """A task of this cluster failed and is being started again."""
        self._faults[task] = why, self._clock.monotonic()
        if self._metrics is not None:
            self._metrics.task_failures.labels(self.settings.name, task).inc()
        for account, books in self._books.items():
            if task == f"jobs of {account}":
                books.failed(f"the agent's own fault: {why}")

    def _foreign(self, account: str) -> Callable[[str], bool]:
        return lambda uid: self.owner_of(uid) not in (None, account)

    async def aclose(self) -> None:
        """Close the channels."""
        await self._adapter.aclose()

    # What is known

    @property
    def observations(self) -> dict[str, Observation]:
        """All observations by UID: a copy."""
        return {uid: seen for books in self._books.values() for uid, seen in books.observations.items()}

    def of_account(self, account: str) -> Mapping[str, Observation]:
        """One account's observations by UID: not a copy, changes with the next report."""
        return self._books[account].observations

    def seen(self, account: str, uid: str) -> Observation | None:
        """The latest observation of a pod on the account that its job belongs to; no other account has a say."""
        books = self._books.get(account)
        return None if books is None else books.observations.get(uid)

    def holders(self, uid: str) -> tuple[str, ...]:
        """Accounts on which a directory of this UID was seen, in the order of the settings."""
        return tuple(name for name, books in self._books.items() if uid in books.observations)

    def found(self, uid: str) -> Observation | None:
        """An observation of this UID on whatever account: for figures only, since any account can show one."""
        return next((self._books[name].observations[uid] for name in self.holders(uid)), None)

    def all_complete(self) -> bool:
        """Whether every account has told all that it has."""
        return all(self.complete(name) for name in self._books)

    def complete(self, account: str) -> bool:
        """Whether a UID without observation certainly has nothing on the cluster now."""
        books = self._books.get(account)
        return books is not None and books.complete and not books.problem

    def trouble(self, account: str) -> str:
        """Why the account cannot be used now; empty when it can."""
        return self.health().trouble.get(account, f"there is no account {account!r}")

    def health(self) -> ClusterHealth:
        """State of the channels, of PBS, and the age of what is known."""
        now = self._clock.monotonic()
        times = [books.reported_at for books in self._books.values()]
        return self._health.aged(None if None in times else max(now - at for at in times if at is not None))

    def account_for(self, namespace: str) -> str | None:
        """The first account that serves the namespace."""
        for account in self.settings.accounts:
            if any(fnmatchcase(namespace, pattern) for pattern in account.namespaces):
                return account.name
        return None

    # Acting: errors of `pbs_adapter.errors` pass to the caller, but for Fenced, which to him is an account away

    async def submit(self, job: JobRequest) -> str:
        """See `models.Cluster.submit`. From then on the UID counts as seen, whatever came of it."""
        try:
            job_id = await self._unfenced(job.ref.account, self._adapter.submit(job))
        except OutcomeUnknown:
            self._books[job.ref.account].note(job.ref.uid, None, self._clock.monotonic())
            raise
        self._books[job.ref.account].note(job.ref.uid, job_id, self._clock.monotonic())
        return job_id

    async def write(self, ref: JobRef, files: tuple[PodFile, ...], volumes: tuple[VolumeFiles, ...]) -> None:
        """See `models.Cluster.write`."""
        await self._unfenced(ref.account, self._adapter.write(ref, files, volumes))

    async def cancel(self, ref: JobRef, grace: int, *, force: bool = False) -> None:
        """See `models.Cluster.cancel`."""
        await self._unfenced(ref.account, self._adapter.cancel(ref, grace, force=force))

    async def remove(self, ref: JobRef) -> None:
        """See `models.Cluster.remove`."""
        await self._unfenced(ref.account, self._adapter.remove(ref))

    async def _unfenced(self, account: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except Fenced as error:
            text = self._fenced(account, error)
            self._judge()
            raise Unreachable(text) from error

    def _fenced(self, account: str, error: Fenced) -> str:
        """Note that the account obeys another agent, or believes to."""
        text = f"the account refuses this agent: {error}; if no other agent runs, see `epoch` in its spool"
        books = self._books.get(account)
        if books is not None:
            if books.problem != text:
                log.error("cluster.fenced", cluster=self.settings.name, account=account, error=str(error))
            books.failed(text)
        return text

    def logs(self, ref: JobRef, query: LogQuery) -> AsyncIterator[bytes]:
        """See `models.Cluster.logs`."""
        return self._adapter.logs(ref, query)

    # The loops

    async def _follow(self, account: str) -> None:
        books, back_off, fenced = self._books[account], BackOff(0.5, 5.0), BackOff(5.0, 300.0)
        while True:
            asked_at = self._clock.monotonic()
            try:
                report = await self._adapter.jobs(account, books.cursor, LONG_POLL)
            except Fenced as error:
                self._fenced(account, error)
                self._judge()
                await self._clock.sleep(fenced.pause())
                continue
            except AdapterError as error:
                if books.problem != str(error):
                    log.warning("cluster.poll_failed", cluster=self.settings.name, account=account, error=str(error))
                books.failed(str(error))
                self._judge()
                await self._clock.sleep(back_off.pause())
                continue
            fenced.reset()
            self._enter(account, report, asked_at)
            if report.spoilt or not books.cursor:
                log.warning("cluster.report_spoilt", cluster=self.settings.name, account=account, error=books.problem)
                await self._clock.sleep(back_off.pause())
                continue
            back_off.reset()
            await self._clock.sleep(min(1.0, EARLIEST + IDLE_SHARE * report.took))

    def _enter(self, account: str, report: JobsReport, asked_at: float) -> None:
        books, began = self._books[account], not self._books[account].cursor
        if began and self._metrics is not None:
            spent = self._clock.monotonic() - asked_at
            self._metrics.poll_seconds.labels(self.settings.name, "jobs").observe(spent)
        sure = self.complete(account)
        changed = books.apply(report, asked_at, self._clock.monotonic())
        if books.lies > self._lies[account]:
            self._lied(account, books.lies - self._lies[account])
            self._lies[account] = books.lies
        self._judge()
        self._tell(changed)
        if self.complete(account) and not sure:
            self._tell_health()  # pods of which nothing is seen waited for that, and no report will name them

    def _lied(self, account: str, times: int) -> None:
        log.error("cluster.false_report", cluster=self.settings.name, account=account, observations=times)
        if self._metrics is not None:
            self._metrics.false_reports.labels(self.settings.name, account).inc(times)
        self.fault(f"check of account {account}", "it tells of pods that another account serves; that is not believed")

    async def _watch_health(self) -> None:
        """A channel may go down and say why between two polls."""
        while True:
            self._judge()
            await self._clock.sleep(TICK)

    def _problems(self) -> dict[str, str]:
        return {name: books.problem for name, books in self._books.items()}

    def _connected(self, account: str) -> bool:
        channel = self._adapter.health().get(account)
        return channel is not None and channel.connected

    def census_age(self) -> float | None:
        """Seconds since PBS was asked for the census; None before the first."""
        return None if self._census_asked is None else self._clock.monotonic() - self._census_asked

    async def census_now(self, patience: float = PATIENCE) -> None:
        """Have queues and vnodes asked for anew where they are older than FRESH, at most every FRESH seconds.

        Returns when that has come or failed, or after `patience` seconds; then `census_doubt` says why the old one
        holds.
        """
        age, now = self.census_age(), self._clock.monotonic()
        if age is None or age < FRESH or not self._health.reachable:
            return
        if now - self._quick_at >= FRESH:
            self._quick_at, self._quick = now, True
            self._attempt = asyncio.Event()
            self._census_due.set()
        attempt = self._attempt
        waiting = [asyncio.ensure_future(attempt.wait()), asyncio.ensure_future(self._clock.sleep(patience))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if not attempt.is_set():
            self.census_doubt = f"PBS has not answered within {patience:g} s"

    async def _take_census(self) -> None:
        back_off, whole_due = BackOff(1.0, 30.0), 0.0
        while True:
            asked_at = self._clock.monotonic()
            quick = self._quick and not self._whole and asked_at < whole_due and self.census is not None
            attempt, self._quick, self._whole = self._attempt, False, False
            try:
                census = await self._adapter.census(quick=quick)
            except AdapterError as error:
                log.info("cluster.census_failed", cluster=self.settings.name, error=str(error), quick=quick)
                self.census_doubt = str(error)
                whole_due = whole_due if quick else asked_at + min(back_off.pause(), self.settings.census)
            else:
                self._took_census(census, asked_at, quick)
                back_off.reset()
                whole_due = whole_due if quick else asked_at + self.settings.census
            attempt.set()
            left = whole_due - self._clock.monotonic()
            if left > 0 and not self._quick:
                await wait(self._clock, self._census_due, left)

    def _took_census(self, census: Census, asked_at: float, quick: bool) -> None:
        if self._metrics is not None:
            spent = self._clock.monotonic() - asked_at
            self._metrics.poll_seconds.labels(self.settings.name, "census").observe(spent)
        self.census, self._census_asked, self.census_doubt = census, asked_at, ""
        if not quick:  # whoever wants a quick one waits for it
            self._tell_health()

    def _judge(self) -> None:
        """Work out the health anew; tell of a change, and take a census at once when the cluster came back."""
        old = self._health
        now = self._clock.monotonic()
        self._faults = {task: (why, at) for task, (why, at) in self._faults.items() if now - at < FAULTS_SHOW}
        faults = {task: why for task, (why, _) in self._faults.items()}
        self._health = judge(old, self._adapter.health(), self._problems(), self._clock.time(), faults)
        if self._metrics is not None:
            for name in self._books:
                self._metrics.channel_connected.labels(self.settings.name, name).set(self._connected(name))
        if differs(old, self._health):
            level = log.info if self._health.reachable else log.warning
            level(
                "cluster.health",
                cluster=self.settings.name,
                reachable=self._health.reachable,
                text=self._health.message,
            )
            if self._health.reachable and not old.reachable:
                self._whole = True
                self._census_due.set()
            self._tell_health()

    def _tell_health(self) -> None:
        for listener in self.on_health:
            listener()

    def _tell(self, changed: set[str]) -> None:
        if changed:
            for listener in self.on_change:
                listener(changed)
