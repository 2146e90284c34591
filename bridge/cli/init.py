"""`hpc-bridge init`: looks at a cluster over SSH and prints settings for it. The settings go to stdout, all else to
stderr.
"""

from __future__ import annotations

import asyncio
import datetime
import re
from pathlib import Path

import click

from bridge.cli.screen import clean, echo
from bridge.setup.hostkey import NotTrusted, trust
from bridge.setup.look import Findings, NotACluster, look
from bridge.setup.write import Login, bridge_yaml
from pbs_adapter.errors import AdapterError
from pbs_adapter.transport.known_hosts import HostKey
from pbs_adapter.transport.ssh import SshTransport

_LOGIN = re.compile(r"(?P<user>[^@\s]+)@(?:\[(?P<six>[0-9a-fA-F:]+)\]|(?P<host>[^:\s\[\]]+))(?::(?P<port>\d{1,5}))?")
_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@click.command()
@click.argument("login", metavar="USER@LOGIN[:PORT]")
@click.option("--key", metavar="FILE", help="Private key of the account. Left out: the first of ~/.ssh/id_*.")
@click.option(
    "--known-hosts",
    metavar="FILE",
    default="known_hosts",
    show_default=True,
    help="Host keys that are trusted; a confirmed one is written there.",
)
@click.option("--fingerprint", metavar="SHA256:…", help="The host key's fingerprint, as the site publishes it.")
@click.option("--yes", is_flag=True, help="Ask nothing; the host key must have the --fingerprint given.")
@click.option("--pbs-exec", metavar="DIR", help="Where PBS is installed, if neither /etc/pbs.conf nor PATH says so.")
def init(
    login: str, key: str | None, known_hosts: str, fingerprint: str | None, yes: bool, pbs_exec: str | None
) -> None:
    """Look at a cluster over SSH and print a bridge.yaml for it."""
    if yes and not fingerprint:
        raise click.UsageError("--yes trusts no host key by itself: give its --fingerprint SHA256:… too")
    if pbs_exec is not None and not pbs_exec.startswith("/"):
        raise click.UsageError("--pbs-exec must be an absolute path on the cluster")
    wanted = _login(login, _key(key), Path(known_hosts).absolute())
    try:
        seen = asyncio.run(_look(wanted, fingerprint, pbs_exec))
    except (AdapterError, NotTrusted, NotACluster, OSError) as error:
        raise click.ClickException(clean(error)) from None
    click.echo(bridge_yaml(wanted, seen, datetime.date.today().isoformat()), nl=False)


def _login(text: str, key: Path, known_hosts: Path) -> Login:
    match = _LOGIN.fullmatch(text)
    if match is None or not 0 < int(match["port"] or 22) < 65536:
        raise click.UsageError(f"{text!r} is no login; write USER@LOGIN or USER@LOGIN:PORT, for example me@login1:22")
    return Login(match["host"] or match["six"], int(match["port"] or 22), match["user"], str(key), str(known_hosts))


def _key(given: str | None) -> Path:
    candidates = [Path(given).expanduser()] if given else [Path.home() / ".ssh" / name for name in _KEYS]
    for path in candidates:
        if path.is_file():
            return path.absolute()
    tried = ", ".join(map(str, candidates))
    raise click.UsageError(f"there is no key {tried}; make one (ssh-keygen -t ed25519) and name it with --key")


async def _look(login: Login, fingerprint: str | None, pbs_exec: str | None) -> Findings:
    def confirm(key: HostKey) -> bool:
        if fingerprint is not None:
            return key.fingerprint == fingerprint
        echo(f"{login.host}:{login.port} shows a host key that is not known yet:", err=True)
        echo(f"    {key.type} {key.fingerprint}", err=True)
        return click.confirm("Is that the fingerprint that the site publishes?", default=False, err=True)

    echo(await trust(login.host, login.port, Path(login.known_hosts_file), confirm), err=True)
    echo(f"looking at the cluster as {login.user}", err=True)
    transport = SshTransport(login.host, login.port, login.user, login.key_file, login.known_hosts_file)
    try:
        return await look(transport, pbs_exec)
    finally:
        await transport.aclose()
