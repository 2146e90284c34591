"""One PBS cluster as the bridge sees it: `models.Cluster` over one supervised channel for each account.

Each method is one request to the helper; nothing is decided or remembered here but where things are on the cluster.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field

from pbs_adapter import cluster_convert as convert
from pbs_adapter.bundle import zipapp
from pbs_adapter.channel import Connection, Pauses, Reply, Supervisor
from pbs_adapter.errors import PbsUnavailable, Permanent, Retry, Unreachable
from pbs_adapter.models import (
    Census,
    JobRef,
    JobRequest,
    JobsReport,
    Json,
    LinkHealth,
    LogQuery,
    PodFile,
    VolumeFiles,
)
from pbs_adapter.remote.wire import WireError
from pbs_adapter.script import Site, render
from pbs_adapter.transport import Transport, TransportFactory
from pbs_adapter.transport.install import SET_PATH
from pbs_adapter.transport.threads import beside

#: Seconds after which an answer comes no more: a hung file system or PBS is a trouble that must be seen.
_ANSWER, _CHANGE, _SUBMIT, _CENSUS = 120.0, 300.0, 900.0, 300.0
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
#: What the helper says before it has moved its standard error into a file is shown when it does not start.
_LAUNCH = f'umask 077; {SET_PATH}; exec "$@"'


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that decide when a channel counts as lost and is tried again, and how often all jobs are listed."""

    ping_every: float = 5
    ping_deadline: float = 15
    greeting: float = 60  # from the start of the helper to its answer
    jobs_every: float = 300  # between two lists of everyone's jobs
    pauses: Pauses = field(default_factory=Pauses)


@dataclass(frozen=True, slots=True)
class HelperOptions:
    """What the helper is told when it is greeted; meanings as in the cluster's settings. `epoch` is asked each time."""

    instance: str
    cluster: str
    epoch: Callable[[], int]
    spool: str = "~/.hpc-bridge"
    compute_spool: str | None = None
    pbs_exec: str | None = None
    python: str = "python3"
    compute_python: str = "/usr/bin/python3"
    poll: float = 30
    lost_after: float = 60
    connections_per_minute: int = 150


@dataclass(slots=True)
class _Place:
    """Where things are for one account, known since its first greeting."""

    spool: str
    podrun: str
    pbs_exec: str | None


class PbsCluster:
    """See `models.Cluster`. Call `start` in a running event loop.

    `program` gives name and content of "helper" and "podrun" as they are installed.
    """

    def __init__(
        self,
        accounts: Mapping[str, TransportFactory],
        options: HelperOptions,
        *,
        timing: Timing | None = None,
        program: Callable[[str], tuple[str, bytes]] = zipapp,
    ) -> None:
        if not _INSTANCE.fullmatch(options.instance):
            raise ValueError(f"not an instance: {options.instance!r}")
        self._factories, self._options = dict(accounts), options
        self._timing, self._program = timing or Timing(), program
        self._places: dict[str, _Place] = {}
        self._last: Census | None = None
        self._jobs_asked: float | None = None  # when the table of all jobs was asked for, failed or not
        self._supervisors = {name: self._supervisor(name) for name in accounts}

    def __repr__(self) -> str:
        return f"<PbsCluster {' '.join(map(repr, self._supervisors.values()))}>"

    async def start(self) -> None:
        """Begin to connect every account in the background."""
        for supervisor in self._supervisors.values():
            supervisor.start()

    async def aclose(self) -> None:
        """See `Cluster.aclose`."""
        await asyncio.gather(*(supervisor.aclose() for supervisor in self._supervisors.values()))

    def health(self) -> Mapping[str, LinkHealth]:
        """See `Cluster.health`."""
        return {name: supervisor.health for name, supervisor in self._supervisors.items()}

    def wake(self, account: str) -> None:
        """Try to reconnect the account now rather than after the pause."""
        self._supervised(account).wake()

    def site(self, ref: JobRef) -> Site:
        """Return where the pod's job finds its files. Raises `Unreachable` before the account's first connection."""
        place = self._places.get(ref.account)
        if place is None:
            raise Unreachable(f"account {ref.account!r} has not been reached yet")
        options = self._options
        spool = options.compute_spool or place.spool
        return Site(
            directory=posixpath.join(spool, options.instance, options.cluster, "pods", ref.uid),
            podrun=posixpath.join(spool, "bin", posixpath.basename(place.podrun)),
            python=options.compute_python,
            pbs_exec=place.pbs_exec,
        )

    async def submit(self, job: JobRequest) -> str:
        """See `Cluster.submit`."""
        connection = await self._connection(job.ref.account)
        script = render(job, self.site(job.ref))
        head, body = convert.files_head(job.files, job.volumes)
        head |= {"op": "submit", "uid": job.ref.uid, "name": job.name, "script": script}
        job_id = (await self._ask(connection, head, body, deadline=_SUBMIT)).head.get("job_id")
        if not isinstance(job_id, str) or not job_id:
            raise Retry("the helper answered without a job id")  # submit is idempotent: the next answer has it
        return job_id

    async def write(self, ref: JobRef, files: tuple[PodFile, ...], volumes: tuple[VolumeFiles, ...]) -> None:
        """See `Cluster.write`."""
        head, body = convert.files_head(files, volumes)
        await self._ask(await self._connection(ref.account), {**head, "op": "write", "uid": ref.uid}, body)

    async def cancel(self, ref: JobRef, grace: int, *, force: bool = False) -> None:
        """See `Cluster.cancel`."""
        head = {"op": "cancel", "uid": ref.uid, "grace": grace, "force": force}
        await self._ask(await self._connection(ref.account), head)

    async def remove(self, ref: JobRef) -> None:
        """See `Cluster.remove`."""
        await self._ask(await self._connection(ref.account), {"op": "remove", "uid": ref.uid})

    async def jobs(self, account: str, after: str, wait: float) -> JobsReport:
        """See `Cluster.jobs`. Also waits up to `wait` s for the connection."""
        connection = await self._connection(account, wait)
        head = {"op": "jobs", "after": after, "wait": wait, "epoch": self._options.epoch()}
        reply = await connection.request(head, idempotent=True, deadline=wait + _ANSWER)
        if not reply.large:
            return convert.jobs_report(reply.head)
        try:
            return await beside("report", lambda: convert.jobs_report(reply.whole().head))
        except WireError as error:
            connection.spoilt(str(error))
            raise Unreachable(f"the helper's report cannot be read: {error}") from error

    async def census(self, *, quick: bool = False) -> Census:
        """See `Cluster.census`. Asks through any account that is connected."""
        reachable = [name for name, health in self.health().items() if health.connected]
        connection = await self._connection(next(iter(reachable or self._supervisors)))
        now = asyncio.get_running_loop().time()
        quick = quick and self._last is not None
        parts = ["queues", "vnodes"] if quick else ["server", "queues", "vnodes"]
        if not quick and (self._jobs_asked is None or now - self._jobs_asked >= self._timing.jobs_every):
            self._jobs_asked = now
            parts.append("jobs")
        answer = await self._collect(connection, {"op": "census", "parts": parts, "patience": 2.0 if quick else 60.0})
        last = self._last
        # Megabytes of text on a large site: not on the event loop.
        made = await beside("census", lambda: convert.census(*convert.split_census(answer), last))
        self._last = made
        return made

    async def _collect(self, connection: Connection, head: Json) -> bytearray:
        """All of a stream that is no log: bounded in size and time."""
        found = bytearray()
        chunks = connection.stream({**head, "epoch": self._options.epoch()})
        try:
            async with asyncio.timeout(_CENSUS):
                async for chunk in chunks:
                    found += chunk
                    if len(found) > convert.MAX_CENSUS:
                        raise PbsUnavailable(f"the helper's census has more than {convert.MAX_CENSUS} bytes")
        except TimeoutError as error:
            raise PbsUnavailable(f"the helper's census has not come within {_CENSUS:g} s") from error
        finally:
            await chunks.aclose()
        return found

    async def logs(self, ref: JobRef, query: LogQuery) -> AsyncIterator[bytes]:
        """See `Cluster.logs`."""
        connection = await self._connection(ref.account)
        head = {"op": "logs", "uid": ref.uid, "epoch": self._options.epoch(), **asdict(query)}
        chunks = connection.stream(head)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    async def _ask(self, connection: Connection, head: Json, body: bytes = b"", *, deadline: float = _CHANGE) -> Reply:
        return await connection.request({**head, "epoch": self._options.epoch()}, body, deadline=deadline)

    async def _connection(self, account: str, wait: float = 0) -> Connection:
        return await self._supervised(account).connection(wait)

    def _supervised(self, account: str) -> Supervisor:
        supervisor = self._supervisors.get(account)
        if supervisor is None:
            raise Permanent(f"the cluster has no account {account!r}")
        return supervisor

    def _supervisor(self, account: str) -> Supervisor:
        return Supervisor(account, lambda: self._connect(account), self._timing.pauses)

    async def _connect(self, account: str) -> Connection:
        transport = self._factories[account]()
        try:
            connection = await self._greet(account, transport)
        except BaseException:
            await transport.aclose()
            raise
        return connection

    async def _greet(self, account: str, transport: Transport) -> Connection:
        options, timing = self._options, self._timing
        folder = posixpath.join(options.spool, "bin")
        helper = await transport.install(*self._program("helper"), folder)
        podrun = await transport.install(*self._program("podrun"), folder)
        spool = posixpath.dirname(posixpath.dirname(helper))
        stream = await transport.open(["/bin/sh", "-c", _LAUNCH, "launch", options.python, helper])
        connection = await Connection.open(
            stream,
            transport.aclose,
            self._hello(spool, podrun),
            deadline=timing.greeting,
            ping_every=timing.ping_every,
            ping_deadline=timing.ping_deadline,
        )
        self._places[account] = _place(connection.hello, spool, podrun, options.pbs_exec)
        return connection

    def _hello(self, spool: str, podrun: str) -> Json:
        options = self._options
        return {
            "instance": options.instance,
            "cluster": options.cluster,
            "spool": spool,
            "pbs_exec": options.pbs_exec,
            "epoch": options.epoch(),
            "poll": options.poll,
            "lost_after": options.lost_after,
            "connections_per_minute": options.connections_per_minute,
            "compute_spool": options.compute_spool,
            "compute_python": options.compute_python,
            "podrun": podrun,
        }


def _place(hello: Json, spool: str, podrun: str, pbs_exec: str | None) -> _Place:
    said_spool, said_exec = hello.get("spool"), hello.get("pbs_exec")
    return _Place(
        spool=said_spool if isinstance(said_spool, str) and said_spool.startswith("/") else spool,
        podrun=podrun,
        pbs_exec=said_exec if isinstance(said_exec, str) and said_exec else pbs_exec,
    )
