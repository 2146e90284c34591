"""The pure and cached parts of the kubelet port: log options, who is who, and what is asked of RBAC."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.kube.errors import Unavailable
from bridge.kubelet.auth import Denied, Gate, User, attributes, user_of_certificate
from bridge.kubelet.options import BadOption, log_query
from pbs_adapter.models import LogQuery

NOW = 1_796_030_800.0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {}),
        (
            {"follow": "true", "previous": "true", "timestamps": "true"},
            {"follow": True, "previous": True, "timestamps": True},
        ),
        ({"follow": "false"}, {}),
        ({"tailLines": "0"}, {"tail_lines": 0}),
        ({"limitBytes": "5"}, {"limit_bytes": 5}),
        ({"sinceSeconds": "60"}, {"since_time": NOW - 60}),
        ({"sinceTime": "2026-11-30T09:26:40Z"}, {"since_time": NOW}),
        ({"stream": "Stderr"}, {"stream": "Stderr"}),
    ],
)
def test_log_options(query: dict[str, str], expected: dict[str, Any]) -> None:
    assert log_query("main", query, NOW) == LogQuery("main", **expected)


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"tailLines": "-1"}, 422, "tailLines"),
        ({"tailLines": "x"}, 400, "tailLines"),
        ({"limitBytes": "0"}, 422, "limitBytes"),
        ({"sinceSeconds": "0"}, 422, "sinceSeconds"),
        ({"sinceTime": "yesterday"}, 400, "sinceTime"),
        ({"sinceTime": "2026-11-30T09:26:40Z", "sinceSeconds": "1"}, 422, "at most one"),
        ({"stream": "stdout"}, 422, "stream"),
        ({"stream": "Stdout", "tailLines": "1"}, 422, "tailLines"),
    ],
)
def test_bad_log_options(query: dict[str, str], status: int, text: str) -> None:
    with pytest.raises(BadOption, match=text) as refused:
        log_query("main", query, NOW)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/containerLogs/ns/p/c", ("get", ("proxy",))),
        ("HEAD", "/healthz", ("get", ("healthz", "proxy"))),
        ("GET", "/metrics/resource", ("get", ("metrics",))),
        ("GET", "/stats/summary", ("get", ("stats",))),
        ("POST", "/exec/ns/p/c", ("create", ("proxy",))),
        ("GET", "/runningpods/", ("get", ("pods", "proxy"))),
        ("DELETE", "/anything", ("delete", ("proxy",))),
        ("GET", "/", ("get", ("proxy",))),
    ],
)
def test_attributes(method: str, path: str, expected: tuple[str, tuple[str, ...]]) -> None:
    assert attributes(method, path) == expected


def test_the_user_of_a_certificate() -> None:
    subject = ((("organizationName", "system:masters"),), (("commonName", "kubelet-client"),))
    user = user_of_certificate({"subject": subject})
    assert user == User("kubelet-client", ("system:masters", "system:authenticated"))
    assert user_of_certificate(None) is None
    assert user_of_certificate({"subject": ()}) is None


class Reviewer:
    """Answers reviews; `rights` are allowed (user, verb, subresource)."""

    def __init__(self, *rights: tuple[str, str, str]) -> None:
        self.rights = set(rights)
        self.asked: list[dict[str, Any]] = []
        self.down = False

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        if self.down:
            raise Unavailable(503, "", "down")
        if body["kind"] == "TokenReview":
            good = body["spec"]["token"].startswith("good-")
            user = {"username": body["spec"]["token"][5:], "groups": ["g"], "uid": "1", "extra": {"scopes": ["b", "a"]}}
            return {"status": {"authenticated": good, "user": user if good else {}}}
        about = body["spec"]["resourceAttributes"]
        assert (about["resource"], about["name"]) == ("nodes", "pbs-alpha")
        return {"status": {"allowed": (body["spec"]["user"], about["verb"], about["subresource"]) in self.rights}}


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def gate(reviewer: Reviewer, clock: Time) -> Gate:
    return Gate(reviewer, "pbs-alpha", clock)  # type: ignore[arg-type]  # only create is used


async def refused(gate: Gate, path: str, header: str) -> tuple[int, str]:
    with pytest.raises(Denied) as denied:
        await gate.check("GET", path, None, header)
    return denied.value.status, str(denied.value)


async def test_a_token_and_a_right() -> None:
    reviewer, clock = Reviewer(("ann", "get", "proxy")), Time()
    door = gate(reviewer, clock)
    for _ in range(3):
        assert (await door.check("GET", "/containerLogs/a/b/c", None, "Bearer good-ann")).name == "ann"
    assert len(reviewer.asked) == 2  # one TokenReview, one SubjectAccessReview: both are kept
    clock.now = 121
    await door.check("GET", "/containerLogs/a/b/c", None, "Bearer good-ann")
    assert [body["kind"] for body in reviewer.asked[2:]] == ["TokenReview"]
    clock.now = 301
    await door.check("GET", "/containerLogs/a/b/c", None, "Bearer good-ann")
    assert "SubjectAccessReview" in [body["kind"] for body in reviewer.asked[3:]]


async def test_what_an_authenticator_told_besides_is_passed_on() -> None:
    """Webhook authorizers decide by it, and a kubelet passes it."""
    reviewer = Reviewer(("ann", "get", "proxy"))
    await gate(reviewer, Time()).check("GET", "/containerLogs/a/b/c", None, "Bearer good-ann")
    assert reviewer.asked[-1]["spec"]["extra"] == {"scopes": ["b", "a"]}
    assert (reviewer.asked[-1]["spec"]["uid"], reviewer.asked[-1]["spec"]["groups"]) == ("1", ["g"])


async def test_either_of_two_rights_suffices() -> None:
    door = gate(Reviewer(("ann", "get", "pods"), ("bob", "get", "proxy")), Time())
    for name in ("ann", "bob"):
        assert (await door.check("GET", "/pods", None, f"Bearer good-{name}")).name == name


async def test_refusals() -> None:
    reviewer, clock = Reviewer(), Time()
    door = gate(reviewer, clock)
    assert await refused(door, "/pods", "") == (401, "Unauthorized")
    assert await refused(door, "/pods", "Basic x") == (401, "Unauthorized")
    assert await refused(door, "/pods", "Bearer bad") == (401, "Unauthorized")
    text = "Forbidden (user=ann, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    assert await refused(door, "/pods", "Bearer good-ann") == (403, text)
    reviewer.rights.add(("ann", "get", "pods"))
    assert (await refused(door, "/pods", "Bearer good-ann"))[0] == 403  # a denial is kept for 30 s
    clock.now = 31
    assert (await door.check("GET", "/pods", None, "Bearer good-ann")).name == "ann"


async def test_an_api_server_that_does_not_answer_is_not_a_refusal() -> None:
    reviewer = Reviewer()
    reviewer.down = True
    status, text = await refused(gate(reviewer, Time()), "/pods", "Bearer good-ann")
    assert (status, text.startswith("Authorization error (")) == (500, True)
