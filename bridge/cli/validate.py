"""`hpc-bridge validate`: is bridge.yaml right, and what does it come to? Contacts nothing."""

from __future__ import annotations

import click

from bridge.api.places import LOCAL_WARNING
from bridge.api.settings import Account, Cluster, LocalTransport, SshTransport
from bridge.cli.screen import echo
from bridge.cli.settings import config_option, read_settings


@click.command()
@config_option
def validate(config: str) -> None:
    """Check the settings: file, line and field of each mistake, and what would be right."""
    settings = read_settings(config)
    echo(f"{config} is right:")
    for cluster in settings.clusters:
        echo(f"  cluster {cluster.name}: node {cluster.node_name}, {_images(cluster)}, {_queue(cluster)}")
        for account in cluster.accounts:
            echo(f"    account {account.name}: {_reached(account)}, namespaces {', '.join(account.namespaces)}")
            if isinstance(account.transport, LocalTransport):
                echo(f"warning: cluster {cluster.name}, account {account.name}: {LOCAL_WARNING}", err=True)


def _images(cluster: Cluster) -> str:
    return f"images {', '.join(rule.image for rule in cluster.images)}" if cluster.images else "no image may run"


def _queue(cluster: Cluster) -> str:
    return f"queue {cluster.queue}" if cluster.queue else "the server's default queue"


def _reached(account: Account) -> str:
    transport = account.transport
    if isinstance(transport, SshTransport):
        return f"ssh {transport.user}@{transport.host}:{transport.port}"
    return transport.type if transport.type == "local" else f"command {transport.argv[0]}"
