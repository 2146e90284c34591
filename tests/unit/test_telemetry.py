"""Log events and metrics."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bridge.telemetry import Metrics, configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging is global: put it back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_are_one_json_object_a_line() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    log = structlog.get_logger("bridge.test")
    log.info("pod.submitted", pod_uid="u1", job_id="12.alpha")
    log.debug("pod.detail")
    logging.getLogger("aiohttp.access").info("GET /")
    logging.getLogger("asyncio").warning("slow callback")
    found = lines(stream)
    assert [event["event"] for event in found] == ["pod.submitted", "slow callback"]
    assert (found[0]["pod_uid"], found[0]["job_id"], found[0]["level"]) == ("u1", "12.alpha", "info")
    assert str(found[0]["timestamp"]).endswith("Z")


def test_exceptions_are_in_the_event() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    try:
        raise ValueError("odd")
    except ValueError:
        structlog.get_logger("bridge.test").exception("pod.failed")
    assert "ValueError: odd" in str(lines(stream)[0]["exception"])


@pytest.mark.parametrize("field", ["token", "bearer_token", "Authorization", "password", "private_key"])
def test_secrets_are_masked(field: str) -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger("bridge.test").info("kube.request", **{field: "hunter2"})
    assert "hunter2" not in stream.getvalue()


def test_the_console_form_is_for_people() -> None:
    stream = io.StringIO()
    configure_logging("console", "warning", stream)
    structlog.get_logger("bridge.test").warning("node.name_taken", node="pbs-alpha")
    structlog.get_logger("bridge.test").info("node.registered")
    assert "node.name_taken" in stream.getvalue()
    assert "registered" not in stream.getvalue()


def test_each_agent_has_metrics_of_its_own() -> None:
    one, two = Metrics(), Metrics()
    one.pods.labels("pbs-alpha", "Running").set(3)
    assert b'hpc_bridge_pods{node="pbs-alpha",state="Running"} 3.0' in one.text()
    assert b"pbs-alpha" not in two.text()
