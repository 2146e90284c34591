"""`kubectl logs` with every option, through the real API server (check 31 of a kubelet), and who may call the port."""

from __future__ import annotations

import datetime
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from world import World, pod, until

from bridge.testbed.kubectl import find_kubectl

TALKER = "for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; done; echo oops >&2; sleep 3; echo late; sleep 1"


@pytest.fixture(scope="module")
def talker(bridge: World) -> World:
    bridge.apply(pod("talker", TALKER, "echo other"))
    bridge.wait_phase("talker", "Succeeded")
    return bridge


def test_whole_log_after_the_end(talker: World) -> None:
    lines = talker.logs("talker", "-c", "main").splitlines()
    assert lines == [f"line {i}" for i in range(1, 11)] + ["oops", "late"]
    assert talker.logs("talker", "-c", "c1") == "other\n"
    assert talker.logs("talker", "--all-containers").count("\n") == 13


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tail=0"], ""),
        (["--tail=1"], "late\n"),
        (["--tail=3"], "line 10\noops\nlate\n"),
        (["--tail=-1", "--limit-bytes=9"], "line 1\nli"),
        (["--tail=2", "--limit-bytes=3"], "oop"),
        (["--since=1h", "--tail=1"], "late\n"),
        (["-f", "--tail=1"], "late\n"),
    ],
)
def test_options(talker: World, options: list[str], expected: str) -> None:
    assert talker.logs("talker", "-c", "main", *options) == expected


def test_since_and_timestamps(talker: World) -> None:
    stamped = talker.logs("talker", "-c", "main", "--timestamps").splitlines()
    times = [datetime.datetime.fromisoformat(line.split(" ", 1)[0][:26] + "+00:00") for line in stamped]
    assert times == sorted(times)
    assert [line.split(" ", 1)[1] for line in stamped][-1] == "late"
    middle = (times[-2] + (times[-1] - times[-2]) / 2).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert talker.logs("talker", "-c", "main", f"--since-time={middle}") == "late\n"


def test_follow_sees_lines_as_they_come_and_ends_with_the_container(bridge: World) -> None:
    bridge.apply(pod("followed", "echo first; sleep 4; echo second"))
    bridge.wait_phase("followed", "Running")
    argv = [find_kubectl(), f"--kubeconfig={bridge.control_plane.admin_kubeconfig}", "logs", "-f", "followed"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "first\n"
        assert following.poll() is None  # the second line is still to come
        assert following.stdout.read() == "second\n"
        assert following.wait(timeout=30) == 0
    bridge.wait_phase("followed", "Succeeded")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["talker", "-c", "main", "--previous"], 'previous terminated container "main" in pod "talker" not found'),
        (["talker", "-c", "nobody"], "container nobody is not valid for pod talker"),
        (["nobody"], 'pods "nobody" not found'),
        (["talker", "-c", "main", "--tail=-2"], "tail"),
    ],
)
def test_what_cannot_be_shown_says_why(talker: World, arguments: list[str], text: str) -> None:
    refused = talker.kubectl("logs", *arguments, check=False)
    assert refused.returncode != 0
    assert text.lower() in (refused.stdout + refused.stderr).lower()


def test_a_waiting_container_has_no_log_yet(bridge: World) -> None:
    bridge.apply(pod("no-log", "true", queue="stopped"))
    bridge.wait_reason("no-log", "PBSQueued")
    refused = bridge.kubectl("logs", "no-log", check=False)
    assert "is waiting to start" in refused.stderr
    bridge.kubectl("delete", "pod", "no-log", "--wait=false")
    bridge.wait_gone("no-log")


def _call(bridge: World, path: str, token: str | None = None, certificate: bool = False) -> tuple[int, str]:
    port = bridge.get("node", "pbs-alpha")["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context(cafile=str(bridge.control_plane.ca_file))
    if certificate:
        context.load_cert_chain(*bridge.control_plane.ca.write("caller", "kube-apiserver-kubelet-client"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://{bridge.agent.address}:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class TestWhoMayCall:
    """TLS that verifies; certificate or token; then what RBAC says of nodes' subresources."""

    def token(self, bridge: World, name: str, *rules: str) -> str:
        bridge.kubectl("create", "serviceaccount", name)
        if rules:
            bridge.kubectl("create", "clusterrole", name, "--verb=get", f"--resource={','.join(rules)}")
            binding = ["clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount=default:{name}"]
            bridge.kubectl("create", *binding)
        return bridge.kubectl("create", "token", name).stdout.strip()

    def test_nobody(self, bridge: World) -> None:
        assert _call(bridge, "/pods") == (401, "Unauthorized")
        assert _call(bridge, "/pods", token="nonsense") == (401, "Unauthorized")

    def test_a_stranger(self, bridge: World) -> None:
        status, text = _call(bridge, "/pods", token=self.token(bridge, "stranger"))
        assert status == 403
        assert text.startswith("Forbidden (user=system:serviceaccount:default:stranger, verb=get, resource=nodes")

    def test_a_metrics_reader(self, bridge: World) -> None:
        token = self.token(bridge, "scraper", "nodes/metrics")
        status, text = _call(bridge, "/metrics", token=token)
        assert status == 200
        for name in (
            "hpc_bridge_pods{",
            "hpc_bridge_submit_seconds",
            "hpc_bridge_poll_seconds",
            "hpc_bridge_channel_connected",
            "hpc_bridge_api_writes_total",
        ):
            assert name in text
        assert _call(bridge, "/pods", token=token)[0] == 403

    def test_the_api_server(self, bridge: World) -> None:
        assert _call(bridge, "/healthz", certificate=True) == (200, "ok")
        status, text = _call(bridge, "/pods", certificate=True)
        assert (status, '"kind": "PodList"' in text) == (200, True)


@pytest.mark.parametrize("verb", ["exec", "attach", "port-forward"])
def test_streams_answer_with_a_clear_text_until_they_exist(bridge: World, verb: str) -> None:
    name = f"no-{verb}"
    bridge.apply(pod(name, "sleep 60"))
    bridge.wait_phase(name, "Running")
    rest = {"exec": ["--", "true"], "attach": [], "port-forward": ["8080:80"]}[verb]
    refused = bridge.kubectl(verb, name, *rest, check=False, timeout=30)
    assert f"{verb} is not available on hpc-bridge nodes yet" in refused.stderr
    bridge.kubectl("delete", "pod", name, "--wait=false")
    until(lambda: not bridge.exists(name), f"{name} gone")


def test_time_is_not_wasted_waiting_for_a_log_that_is_quiet(bridge: World) -> None:
    """A follower of a silent container gets its answer's head at once, so that clients do not time out."""
    bridge.apply(pod("quiet", "sleep 5"))
    bridge.wait_phase("quiet", "Running")
    started = time.monotonic()
    assert bridge.logs("-f", "quiet") == ""
    assert time.monotonic() - started < 30
