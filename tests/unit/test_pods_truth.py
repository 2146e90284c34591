"""A status that every API server takes and that is true, whatever podrun, a job or the settings say."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podcases import container, ended, pod, podrun, seen, situation

from bridge.pods.status import status

Json = dict[str, Any]
HOSTILE = ("fe80::1%eth0", "10.96.0.1", "127.0.0.1", "169.254.169.254", "::1", "node17", "", "10.1.2.3/8", "010.1.2.3")
ROUTABLE = ("10.1.0.0/16", "fd00:1::/64")


def shown(thing: Json, told: Json, **fields: Any) -> Json:
    return status(situation(thing, seen("R", told), **fields))


# Addresses


@pytest.mark.parametrize("address", HOSTILE)
def test_a_job_cannot_give_its_pod_an_address_outside_the_networks(address: str) -> None:
    for networks in ((), ROUTABLE):
        assert "podIP" not in shown(pod(), podrun(host_ip=address), pod_networks=networks)


@given(st.text() | st.ip_addresses().map(str) | st.ip_addresses(v=6).map(lambda ip: f"{ip}%eth0"))
def test_no_text_becomes_an_address_unless_it_is_one_that_can_be_dialled(text: str) -> None:
    fields = shown(pod(), podrun(host_ip=text), pod_networks=ROUTABLE, host_ip=text)
    for key in ("podIP", "hostIP"):
        if key in fields:
            assert str(ipaddress.ip_address(fields[key])) == fields[key]
            assert "%" not in fields[key]
    if "podIP" in fields:
        assert any(ipaddress.ip_address(fields["podIP"]) in ipaddress.ip_network(each) for each in ROUTABLE)


def test_an_address_that_can_be_dialled_is_shown() -> None:
    fields = shown(pod(), podrun(host_ip="10.1.2.3"), pod_networks=ROUTABLE)
    assert (fields["podIP"], fields["podIPs"]) == ("10.1.2.3", [{"ip": "10.1.2.3"}])


def test_the_agents_own_address_is_never_the_pods() -> None:
    """Compute nodes whose name resolves to loopback, and pods that an earlier version gave the agent's address."""
    before = pod(phase="Running", status__podIP="127.0.0.1", status__podIPs=[{"ip": "127.0.0.1"}])
    for thing in (pod(), before):
        fields = shown(thing, podrun(host_ip="127.0.1.1"), host_ip="127.0.0.1", pod_networks=ROUTABLE)
        assert not fields.get("podIP")
        assert not fields.get("podIPs")


# Numbers


@given(st.integers(), st.integers(), st.integers(), st.integers())
def test_numbers_fit_where_the_api_puts_them(code: int, signal: int, restarts: int, run: int) -> None:
    last = container("terminated", exit_code=code, signal=signal, run=run)
    main = container("terminated", exit_code=code, signal=signal, restart_count=restarts, run=run, last=last)
    (shown_main,) = shown(pod(), podrun("Ended", result="Failed", containers={"main": main}))["containerStatuses"]
    for state in (shown_main["state"], shown_main["lastState"]):
        assert 0 <= state["terminated"]["exitCode"] <= 255
        assert 0 <= state["terminated"].get("signal", 0) <= 64
    assert 0 <= shown_main["restartCount"] < 2**31


# As a kubelet says it


def test_an_init_container_is_ready_once_it_has_ended_well() -> None:
    thing = pod(spec__initContainers=[{"name": "first", "image": "sh"}, {"name": "second", "image": "sh"}])
    done = container("terminated", exit_code=0)
    views = {"first": done | {"kind": "init"}, "second": container(kind="init")}
    fields = shown(thing, podrun(containers=views))
    assert [c["ready"] for c in fields["initContainerStatuses"]] == [True, False]


def test_a_container_that_waits_to_run_again_keeps_its_ids_and_its_network() -> None:
    last = container("terminated", exit_code=1, run=0)
    main = container("waiting", reason="CrashLoopBackOff", restart_count=1, run=0, last=last)
    fields = shown(pod(phase="Running"), podrun(containers={"main": main}), image_ids={"main": "/images/sh.sif"})
    (waits,) = fields["containerStatuses"]
    assert (waits["containerID"], waits["imageID"]) == ("pbs://12.alpha/main/0", "pbs:///images/sh.sif")
    network = next(c for c in fields["conditions"] if c["type"] == "PodReadyToStartContainers")
    assert network["status"] == "True"


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ([], 'corresponding condition of pod readiness gate "x/y" does not exist.'),
        ([{"type": "x/y", "status": "False"}], 'the status of pod readiness gate "x/y" is not "True", but False'),
    ],
)
def test_readiness_gates_are_told_as_a_kubelet_does(held: list[Json], text: str) -> None:
    thing = pod(phase="Running", spec__readinessGates=[{"conditionType": "x/y"}], status__conditions=held)
    ready = next(c for c in shown(thing, podrun())["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("False", text)


def test_an_end_is_never_taken_back() -> None:
    thing = pod(phase="Running")
    over = shown(thing, ended("Failed"))["containerStatuses"]
    again = pod(phase="Running", status__containerStatuses=over)
    (main,) = shown(again, podrun())["containerStatuses"]
    assert main["state"] == over[0]["state"]
