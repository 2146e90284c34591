"""All checks of `hpc-bridge doctor`, in the order of the table: each account of each cluster, then Kubernetes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bridge.api.settings import Account, Cluster, Settings
from bridge.clusters.connect import transport_factory
from bridge.kube.client import connect
from bridge.setup import job_checks, kube_checks, login_checks, place_checks
from bridge.setup.checks import Check, Rows, State
from bridge.setup.job import NoJob, run_job
from bridge.setup.look import NotACluster, census_of
from pbs_adapter.errors import Rejected
from pbs_adapter.transport import Transport, TransportError

Progress = Callable[[str], None]


async def examine(settings: Settings, kubeconfig: str | None, wait: float, progress: Progress) -> list[Check]:
    """Run every check; `wait`: seconds that the small job of each account may take to start."""
    places = [(cluster, account) for cluster in settings.clusters for account in cluster.accounts]
    found = await asyncio.gather(
        *(_account(cluster, account, wait, progress) for cluster, account in places),
        _kubernetes(settings, kubeconfig),
    )
    return [check for checks in found for check in checks]


async def _account(cluster: Cluster, account: Account, wait: float, progress: Progress) -> list[Check]:
    rows = Rows(f"{cluster.name}/{account.name}")
    connection = transport_factory(account)()
    try:
        progress(f"{rows.where}: asking the login node")
        node = await login_checks.visit(connection, cluster)
        checks = list(login_checks.judge_login(rows, cluster, account.transport, node))
        checks += place_checks.transport_row(rows, account.transport)
        for check in checks:
            if check.state is not State.OK and check.name in (login_checks.COMMANDS, login_checks.SPOOL):
                return checks + rows.unseen((*place_checks.EVERY, *job_checks.EVERY), check.name)
        checks += place_checks.judge_places(rows, cluster, await place_checks.look(connection, cluster))
        progress(f"{rows.where}: waiting up to {wait:.0f} s for a small job")
        return checks + await _job(rows, connection, cluster, account, node, wait)
    except TransportError as error:
        checks = login_checks.unreachable(rows, account.transport, error)
        return checks + rows.unseen((*login_checks.AFTER_SSH, *place_checks.EVERY, *job_checks.EVERY), login_checks.SSH)
    finally:
        await connection.aclose()


def _server(node: login_checks.LoginNode) -> str:
    try:
        return str(census_of(node.parts).server.name)
    except NotACluster:
        return ""


async def _job(
    rows: Rows, connection: Transport, cluster: Cluster, account: Account, node: login_checks.LoginNode, wait: float
) -> list[Check]:
    try:
        seen = await run_job(connection, cluster, account, node, wait)
    except (NoJob, Rejected) as error:
        advice = "this is what pods would get: mend the queue, projects or accounting of these settings"
        refused = rows.failed(job_checks.JOB, f"PBS took no job: {error}", advice)
        return [refused, *rows.unseen(job_checks.EVERY[1:], "a job")]
    return list(job_checks.judge_job(rows, cluster, seen, wait, _server(node)))


async def _kubernetes(settings: Settings, kubeconfig: str | None) -> list[Check]:
    try:
        async with connect(kubeconfig) as kube:
            return [check async for check in kube_checks.check_kubernetes(kube, settings, time.time())]
    except Exception as error:  # noqa: BLE001 - a kubeconfig may be wrong in any way its loader can raise
        rows = Rows("kubernetes")
        return [rows.failed(kube_checks.API, f"no connection: {error}", "name a kubeconfig with --kubeconfig")]
