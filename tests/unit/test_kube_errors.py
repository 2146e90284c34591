"""Answers of the API server as errors, and the names of resources in paths."""

from __future__ import annotations

import json

import pytest

from bridge.kube import errors, paths
from bridge.kube.clock import parse_rfc3339, rfc3339, rfc3339_micro


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, errors.KubeError),
        (401, errors.KubeError),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Gone),
        (422, errors.Invalid),
        (429, errors.Unavailable),
        (500, errors.Unavailable),
        (504, errors.Unavailable),
    ],
)
def test_each_status_has_its_class(status: int, expected: type[errors.KubeError]) -> None:
    error = errors.from_response(status, b"<html>no</html>")
    assert type(error) is expected
    assert (error.status, str(error)) == (status, "<html>no</html>")


def test_a_status_object_gives_reason_and_message() -> None:
    body = {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": 'pods "x" already exists'}
    error = errors.from_response(409, json.dumps(body).encode())
    assert isinstance(error, errors.Conflict)
    assert error.exists
    assert str(error) == 'AlreadyExists: pods "x" already exists'


def test_a_patch_for_another_uid_is_a_conflict() -> None:
    details = {"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}
    assert isinstance(errors.from_status({"kind": "Status", "code": 422, "details": details}), errors.Conflict)


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        ("7", {}, 7.0),
        (None, {"retryAfterSeconds": 3}, 3.0),
        ("Mon, 30 Nov 2026 12:00:00 GMT", {}, None),
        (None, {}, None),
    ],
)
def test_retry_after_comes_from_the_header_or_the_body(
    header: str | None, details: dict[str, int], expected: float | None
) -> None:
    body = json.dumps({"kind": "Status", "code": 429, "details": details}).encode()
    assert errors.from_response(429, body, header).retry_after == expected


def test_an_error_event_of_a_watch_keeps_its_code() -> None:
    assert isinstance(errors.from_status({"kind": "Status", "code": 410, "reason": "Expired"}), errors.Gone)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (paths.pods(), "pods"),
        (paths.pods("a"), "pods"),
        (paths.pod("a", "b"), "pods"),
        (paths.pod_status("a", "b"), "pods/status"),
        (paths.node("n"), "nodes"),
        (paths.node_status("n"), "nodes/status"),
        (paths.lease("a", "b"), "leases"),
        (paths.namespace("kube-system"), "namespaces"),
        (paths.service_account_token("a", "b"), "serviceaccounts/token"),
        (paths.token_reviews(), "tokenreviews"),
        (paths.subject_access_reviews(), "subjectaccessreviews"),
    ],
)
def test_a_path_names_its_resource(path: str, expected: str) -> None:
    assert paths.resource(path) == expected


def test_times_are_written_and_read_back() -> None:
    assert parse_rfc3339(rfc3339(1796030799.9)) == 1796030799
    assert parse_rfc3339(rfc3339_micro(1796030799.25)) == 1796030799.25
    assert parse_rfc3339("yesterday") is None
    assert parse_rfc3339(None) is None
