"""Whether what pods may be shown reaches the spool or the account's home: only the cluster knows where links lead.

The settings are checked by their text when they are read (`bridge.api.places`); `doctor` asks the login node for the
real paths. A compute node may have other links of its own, which podrun checks when it mounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bridge.api import places
from bridge.api.settings import Cluster, LocalTransport, Transport
from bridge.setup.checks import Check, Rows
from bridge.setup.shell import Answer, ask
from pbs_adapter.transport import Transport as Connection

SHOWN, LOCAL = "directories that pods see", "transport"
EVERY = (SHOWN,)
_LOOK = """\
part home sh -c 'cd && pwd -P'
case $1 in "~/"*) spool=$HOME/${1#"~/"};; *) spool=$1;; esac
part spool sh -c 'cd "$1" && pwd -P' sh "$spool"
shift
for each; do part "shown:$each" sh -c 'cd "$1" && pwd -P' sh "$each"; done
"""
_BY_SSH = "reach the account by ssh, from a host that runs none of its jobs"
_ADVICE = "hostPaths, imagePaths: name directories apart from the spool that hold no home directory"


async def look(connection: Connection, cluster: Cluster) -> Mapping[str, Answer]:
    """Ask the login node for real paths. Raises TransportError."""
    return await ask(connection, _LOOK, cluster.spool, *_shown(cluster))


def _shown(cluster: Cluster) -> list[str]:
    return [*(each.path for each in cluster.host_paths), *cluster.image_paths]


def judge_places(rows: Rows, cluster: Cluster, parts: Mapping[str, Answer]) -> Iterator[Check]:
    """The row of an account's directories, by what its login node said."""

    def real(name: str) -> str:
        answer = parts.get(name)
        return answer.output.decode("utf-8", "replace").strip() if answer is not None and answer.ok else ""

    spool, home = real("spool"), real("home")
    if not spool or not home:
        yield rows.skipped(SHOWN, "the real paths of spool and home are not known")
        return
    if wrong := places.spool_problem(spool):
        yield rows.failed(SHOWN, f"spool: {spool} {wrong}", "spool: name another directory")
        return
    for path in _shown(cluster):
        found = real(f"shown:{path}") or path
        if wrong := places.shown_problem(found, [spool], [home]):
            leads = path if found == path else f"{path}, which is {found},"
            yield rows.failed(SHOWN, f"{leads} {wrong}", _ADVICE)
            return
    yield rows.ok(SHOWN, ", ".join(_shown(cluster)) or "none")


def transport_row(rows: Rows, transport: Transport) -> Iterator[Check]:
    """What is to be said of how the account is reached: `local` makes the agent the account's own process."""
    if isinstance(transport, LocalTransport):
        yield rows.skipped(LOCAL, places.LOCAL_WARNING, _BY_SSH)
