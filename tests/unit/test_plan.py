"""The pod as a whole: names, times, owners, and refusals in one message."""

from __future__ import annotations

import pytest
from plancases import cluster, container, document, frozen, pod, reasons

from bridge.plan import job_name, plan


def test_grace_and_deadline() -> None:
    request = frozen(pod(terminationGracePeriodSeconds=5, activeDeadlineSeconds=120))
    written = document(request)
    assert (written["grace"], written["active_deadline"], written["walltime"]) == (5, 120, 185)
    planned = plan(pod(terminationGracePeriodSeconds=0, activeDeadlineSeconds=1), cluster())
    assert (planned.grace, planned.deadline) == (0, 1)


@pytest.mark.parametrize(("margin", "end_margin"), [(60, 20), (600, 20), (30, 10), (2, 1)])
def test_end_margin_is_within_the_margin(margin: int, end_margin: int) -> None:
    planned = plan(pod(), cluster(walltimeMargin=margin))
    assert (planned.end_margin, planned.options.walltime) == (end_margin, 3630 + margin)


def test_restart_policy() -> None:
    assert [document(frozen(pod(restartPolicy=p)))["restart_policy"] for p in ("Never", "OnFailure", "Always")] == [
        "Never",
        "OnFailure",
        "Always",
    ]


def test_host_name() -> None:
    assert document(frozen(pod(hostname="own")))["hostname"] == "own"
    assert document(frozen(pod(hostname="own", hostnameOverride="over.example.org")))["hostname"] == "over.example.org"
    long = pod(metadata={"name": "a" * 62 + "-b"})
    assert document(frozen(long))["hostname"] == "a" * 62


def test_job_names_are_bounded() -> None:
    name = job_name(pod(metadata={"name": "n" * 253}), "i" * 36)
    assert name.startswith("n" * 63 + ".6a0f")
    assert len(name) == 63 + 1 + 36 + 1 + 36


def test_daemon_set_and_static_pods_are_never_submitted() -> None:
    assert reasons(pod(metadata={"ownerReferences": [{"kind": "DaemonSet", "name": "d"}]})) == [
        ("metadata.ownerReferences", "UnsupportedPodField")
    ]
    assert reasons(pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})) == [
        ("metadata.annotations", "UnsupportedPodField")
    ]
    assert reasons(pod(metadata={"ownerReferences": [{"kind": "Job", "name": "j"}]})) == []


def test_all_refusals_are_in_one_message() -> None:
    bad = container(image="nix", command=None, tty=True, livenessProbe={"exec": {"command": ["x"]}})
    planned = plan(pod(containers=[bad], hostPID=True), cluster())
    assert planned.reason == "UnsupportedPodField"
    for field in ("hostPID", "containers[0].tty", "containers[0].livenessProbe", "containers[0].image", "command"):
        assert field in planned.message
    assert planned.inputs == ()


def test_a_pod_that_can_run_has_no_reason() -> None:
    planned = plan(pod(), cluster())
    assert (planned.reason, planned.message, planned.refreshed) == ("", "", False)
    assert plan(pod(volumes=[{"name": "v", "configMap": {"name": "x"}}]), cluster()).refreshed


@pytest.mark.parametrize(("name", "field"), [("A=B", "env[0]"), ("A\0", "env[0].name")])
def test_variable_names_that_no_process_can_have(name: str, field: str) -> None:
    assert reasons(pod(containers=[container(env=[{"name": name, "value": "x"}])])) == [
        (f"spec.containers[0].{field}", "UnsupportedPodField")
    ]
