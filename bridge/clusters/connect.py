"""From an admin's settings of a cluster to the adapter's connection: the only place that knows both."""

from __future__ import annotations

from collections.abc import Callable

from bridge.api import settings as s
from pbs_adapter.cluster import HelperOptions, PbsCluster
from pbs_adapter.transport import Transport, TransportFactory
from pbs_adapter.transport.command import CommandTransport
from pbs_adapter.transport.local import LocalTransport
from pbs_adapter.transport.ssh import SshTransport


def connect(cluster: s.Cluster, instance: str, epoch: Callable[[], int]) -> PbsCluster:
    """Return the connection, not started. `instance`: UID of namespace kube-system; `epoch`: asked at each use."""
    options = HelperOptions(
        instance=instance,
        cluster=cluster.name,
        epoch=epoch,
        spool=cluster.spool,
        compute_spool=cluster.compute_spool,
        pbs_exec=cluster.pbs_exec,
        python=cluster.python,
        compute_python=cluster.compute_python,
        poll=cluster.poll,
        lost_after=cluster.lost_after,
        connections_per_minute=cluster.connections_per_minute,
    )
    return PbsCluster({account.name: transport_factory(account) for account in cluster.accounts}, options)


def transport_factory(account: s.Account) -> TransportFactory:
    """Return what makes a fresh transport for the account."""
    wanted = account.transport

    def make() -> Transport:
        match wanted:
            case s.SshTransport():
                return SshTransport(wanted.host, wanted.port, wanted.user, wanted.key_file, wanted.known_hosts_file)
            case s.CommandTransport():
                return CommandTransport(wanted.argv)
            case s.LocalTransport():
                return LocalTransport()

    return make
