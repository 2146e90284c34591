"""A PBS cluster inside the test: implements `models.Cluster` over a dictionary, with recorded censuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace

from bridge.kube.clock import Clock, SystemClock
from pbs_adapter.errors import AdapterError, OutcomeUnknown, Permanent, Unreachable
from pbs_adapter.models import (
    Census,
    JobRef,
    JobRequest,
    JobsReport,
    LinkHealth,
    LogQuery,
    Observation,
    PbsView,
    PodFile,
    Seen,
    VolumeFiles,
)


class EmbeddedCluster:
    """`found` is the census it gives; `connect()` and `disconnect()` move the channels of all accounts.

    `calls`: what it was asked to do, in order. `complete`: what its reports say of themselves.
    """

    def __init__(
        self, found: Callable[[], Census], accounts: Iterable[str] = ("default",), clock: Clock | None = None
    ) -> None:
        self.found = found
        self.calls: list[tuple[object, ...]] = []
        self.written: list[tuple[float, JobRef, tuple[PodFile, ...], tuple[VolumeFiles, ...]]] = []
        self.censuses: list[bool] = []  # whether each was a quick one
        self.census_takes = 0.0
        self.census_error: AdapterError | None = None
        self.bug: Exception | None = None  # raised by whatever is asked of jobs next
        self.fenced: dict[str, AdapterError] = {}  # by account
        self.read_age: dict[str, float] = {}
        self.asked: dict[str, int] = dict.fromkeys(accounts, 0)  # reports asked for, by account
        self.complete = True
        self.server_up = True
        self.failure: AdapterError | None = None  # raised by the next submit, after it was carried out
        self._clock = clock or SystemClock()
        self._jobs: dict[str, dict[str, Observation]] = {name: {} for name in accounts}
        self._version = 0
        self._connection = 0  # number of the connection; 0: none
        self._connections = 0
        self._message = "connecting"
        self._changed = asyncio.Event()

    def connect(self) -> None:
        """All channels are up; the helper is a new one and its cursors with it."""
        self._connections += 1
        self._connection = self._connections
        self._message = ""
        self._touch()

    def disconnect(self, message: str = "login node does not answer") -> None:
        """All channels are down."""
        self._connection = 0
        self._message = message
        self._touch()

    def put(self, account: str, *observations: Observation) -> None:
        """PBS or podrun did something."""
        self._jobs[account] |= {seen.uid: seen for seen in observations}
        self._touch()

    def drop(self, account: str, *uids: str) -> None:
        """These pod directories are gone."""
        for uid in uids:
            self._jobs[account].pop(uid, None)
        self._touch()

    def _touch(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _need_channel(self) -> None:
        if not self._connection:
            raise Unreachable(self._message)

    def _refuse(self, account: str) -> None:
        if account in self.fenced:
            raise self.fenced[account]
        if self.bug is not None and account == list(self._jobs)[-1]:
            raise self.bug

    async def submit(self, job: JobRequest) -> str:
        """The job is queued at once."""
        self._need_channel()
        self._refuse(job.ref.account)
        self.calls.append(("submit", job.ref.uid))
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        job_id = f"{len(self.calls)}.alpha"
        view = PbsView(Seen.PRESENT, self._clock.time(), "Q")
        self.put(job.ref.account, Observation(job.ref.uid, job_id=job_id, pbs=view))
        return job_id

    async def write(self, ref: JobRef, files: tuple[PodFile, ...], volumes: tuple[VolumeFiles, ...]) -> None:
        """Noted."""
        self._need_channel()
        self.calls.append(("write", ref.uid))
        self.written.append((self._clock.monotonic(), ref, files, volumes))

    async def cancel(self, ref: JobRef, grace: int, *, force: bool = False) -> None:
        """Noted; the job goes on until the test says otherwise."""
        self._need_channel()
        self.calls.append(("cancel", ref.uid, force))

    async def remove(self, ref: JobRef) -> None:
        """The directory goes when PBS has no such job."""
        self._need_channel()
        if self._jobs[ref.account][ref.uid].pbs.seen is Seen.PRESENT:
            raise Permanent("the job may still exist")
        self.calls.append(("remove", ref.uid))
        self.drop(ref.account, ref.uid)

    async def jobs(self, account: str, after: str, wait: float) -> JobsReport:
        """Always full reports: at once when `after` is not the present state, else after a change or `wait`."""
        self._need_channel()
        self.asked[account] += 1
        self._refuse(account)
        connection, changed = self._connection, self._changed
        if after == f"{connection}.{self._version}":
            tasks = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(self._clock.sleep(wait))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        if self._connection != connection:
            raise Unreachable(self._message or "connection lost")
        self._refuse(account)
        return JobsReport(
            cursor=f"{connection}.{self._version}",
            full=True,
            complete=self.complete,
            observations=tuple(self._jobs[account].values()),
            server_up=self.server_up,
            server_message="" if self.server_up else "cannot connect to server pbs-a (errno=111)",
            read_age=self.read_age.get(account, 0.0),
        )

    async def census(self, *, quick: bool = False) -> Census:
        """As the test made it."""
        self._need_channel()
        self.censuses.append(quick)
        if self.census_takes:
            await self._clock.sleep(self.census_takes)
        if self.census_error is not None:
            raise self.census_error
        return replace(self.found(), at=self._clock.time())

    async def logs(self, ref: JobRef, query: LogQuery) -> AsyncIterator[bytes]:
        """One line."""
        self._need_channel()
        yield f"{ref.uid} {query.container}\n".encode()

    def health(self) -> Mapping[str, LinkHealth]:
        """By account."""
        up = bool(self._connection)
        return {name: LinkHealth(up, self._clock.time(), self._message) for name in self._jobs}

    async def aclose(self) -> None:
        """Nothing to close."""
        self.disconnect("closed")


LOST = OutcomeUnknown("the connection was lost after the request left")
