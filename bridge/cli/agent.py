"""Asks a running agent at its own endpoint (`agent.statusListen`)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import click

from bridge.cli.screen import echo

DEFAULT = "127.0.0.1:10280"

agent_option = click.option(
    "--agent", default=DEFAULT, show_default=True, metavar="ADDRESS:PORT", help="The agent's statusListen."
)


def ask(agent: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The document that the agent answers. Ends the command with status 1 and the reason when there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{agent}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode("utf-8", "replace")
        echo(_reason(text) or f"the agent at {agent} answers {error.code}", err=True)
    except (OSError, ValueError) as error:
        echo(f"no agent answers at {agent} ({error}); give its statusListen with --agent", err=True)
    raise SystemExit(1)


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
