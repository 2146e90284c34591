"""Scripts on a login node: their parts are told apart whatever else is printed. Run here by the real shell."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bridge.setup.shell import FIND_PBS, RUNTIMES, ask
from pbs_adapter.transport import ByteStream, TransportError
from pbs_adapter.transport.local import LocalTransport

BODY = """\
part good printf 'a\\nb'
part noisy sh -c 'echo out; echo err >&2; exit 3'
part missing /no/such/program
echo between the parts
part argument printf %s "$1"
part quiet true
"""


class Noisy(LocalTransport):
    """A login shell that prints before and after."""

    async def open(self, argv: Sequence[str]) -> ByteStream:
        return await super().open(["/bin/sh", "-c", 'printf "Welcome\\n\\377"; "$@"; echo logout', "sh", *argv])


@pytest.mark.parametrize("transport", [LocalTransport, Noisy])
async def test_parts(transport: type[LocalTransport]) -> None:
    connection = transport()
    try:
        seen = await ask(connection, BODY, "x'y; $(touch /never)")
    finally:
        await connection.aclose()
    assert {name: answer.status for name, answer in seen.items()} == {
        "good": 0, "noisy": 3, "missing": 127, "argument": 0, "quiet": 0,
    }  # fmt: skip
    assert (seen["good"].output, seen["good"].text) == (b"a\nb", "a b")
    assert (seen["noisy"].output, seen["noisy"].problem) == (b"out\n", "err")
    assert seen["argument"].text == "x'y; $(touch /never)"
    assert (seen["quiet"].output, seen["quiet"].ok) == (b"", True)


@pytest.mark.parametrize(
    ("body", "deadline", "message"),
    [
        ("echo sorry; exit 1\n", 30, "no shell answered on the login node.*sorry"),
        ("sleep 30\n", 0.3, "no whole answer"),
    ],
)
async def test_a_script_that_does_not_end_well(body: str, deadline: float, message: str) -> None:
    connection = LocalTransport(grace=0)
    with pytest.raises(TransportError, match=message):
        await ask(connection, body, deadline=deadline)
    await connection.aclose()


async def test_pbs_is_found_where_it_is_said_to_be() -> None:
    connection = LocalTransport()
    body = FIND_PBS + 'part exec printf %s "$pbs"\npart path printf %s "$PATH"\n' + RUNTIMES
    seen = await ask(connection, body, "/opt/some pbs")
    await connection.aclose()
    assert seen["exec"].text == "/opt/some pbs"
    assert seen["path"].text.startswith("/opt/some pbs/bin:")
    assert {"bwrap", "userns"} <= set(seen)
