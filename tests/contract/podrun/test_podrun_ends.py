"""How pods end from outside, what podrun does when it starts badly, and life without bubblewrap."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from podrunkit import USER, Pod, container, mount, session, table, until

TRAP = "trap 'echo got TERM; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
STUBBORN = "trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.05; done"
bwrap = pytest.mark.usefixtures("bubblewrap")


def send_all(pids: list[int], number: int) -> None:
    """What MoM does: the signal to every process, those that end meanwhile included."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def ready(pod: Pod, name: str = "main") -> None:
    until(lambda: b"ready" in pod.output(name), f"{name} to be ready")


@bwrap
def test_stop_sends_sigterm_and_keeps_the_output(pod: Pod) -> None:
    pod.write(container("main", TRAP), container("ended", "true")).start()
    ready(pod)
    pod.stop(30)
    assert pod.wait() == 7
    assert pod.output() == b"ready\ngot TERM\n"
    assert (pod.status["reason"], pod.status["result"], pod.status["phase"]) == ("Stopped", "Failed", "Ended")
    assert (pod.state()["exit_code"], pod.state()["signal"]) == (7, None)


@bwrap
def test_stop_of_a_pod_that_obeys_is_a_success(pod: Pod) -> None:
    pod.write(container("main", TRAP.replace("exit 7", "exit 0"))).start()
    ready(pod)
    pod.stop(30)
    assert pod.wait() == 0
    assert (pod.status["reason"], pod.status["result"]) == ("Stopped", "Succeeded")


@bwrap
def test_sigkill_after_the_grace_period_which_may_become_shorter(pod: Pod) -> None:
    pod.write(container("main", STUBBORN)).start()
    ready(pod)
    pod.stop(1000)
    until(lambda: b"got TERM" in pod.output(), "SIGTERM")
    until(lambda: pod.status["phase"] == "Stopping", "the phase")
    assert pod.state()["state"] == "running"
    pod.stop(0)
    assert pod.wait() == 137
    assert (pod.state()["signal"], pod.status["result"], pod.status["reason"]) == (9, "Failed", "Stopped")
    assert pod.output().count(b"got TERM") == 1


def test_stop_before_the_start_starts_nothing(pod: Pod) -> None:
    pod.write(container("main", "echo started"))
    pod.stop(30)
    assert pod.start().wait() == 1
    assert (pod.status["reason"], pod.status["result"]) == ("Stopped", "Failed")
    assert pod.state()["state"] == "waiting"
    assert not pod.path("logs").exists()


@bwrap
def test_active_deadline(pod: Pod) -> None:
    pod.write(container("main", TRAP), active_deadline=4).start()
    assert pod.wait() == 7
    assert (pod.status["reason"], pod.status["result"]) == ("DeadlineExceeded", "Failed")
    assert pod.status["message"] == "Pod was active on the node longer than the specified deadline"


@bwrap
def test_walltime_ends_the_pod_before_pbs_does(pod: Pod) -> None:
    pod.write(container("main", TRAP), walltime=8, end_margin=1, grace=3).start()
    assert pod.wait() == 7
    assert (pod.status["reason"], pod.status["result"]) == ("PBSWalltimeExceeded", "Failed")
    assert "walltime of 8 s" in pod.status["message"]


@bwrap
def test_qdel_signals_the_whole_session_and_podrun_still_writes_the_end(pod: Pod) -> None:
    leftover = "setsid sleep 1000 & " + TRAP
    pod.write(container("main", leftover), container("deaf", STUBBORN), container("quick", TRAP), grace=5).start()
    for name in ("main", "deaf", "quick"):
        ready(pod, name)
    send_all(session(pod.pid), signal.SIGTERM)
    assert pod.wait() == 7
    status = pod.status
    assert (status["phase"], status["reason"], status["result"]) == ("Ended", "PBSJobDeleted", "Failed")
    assert [status["containers"][name]["exit_code"] for name in ("main", "deaf", "quick")] == [7, 137, 7]
    assert b"got TERM" in pod.output("deaf")
    until(lambda: not session(pod.pid), "the session to be empty")


@bwrap
def test_containers_do_not_outlive_a_killed_podrun(pod: Pod) -> None:
    pod.write(container("main", STUBBORN)).start()
    ready(pod)
    os.kill(pod.pid, signal.SIGKILL)
    pod.wait()
    until(lambda: not session(pod.pid), "the containers to end")


@bwrap
def test_other_signals_do_no_harm(pod: Pod) -> None:
    pod.write(container("main", "trap '' USR1; echo ready; sleep 0.5; echo end")).start()
    ready(pod)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTSTP):
        os.kill(pod.pid, number)
    assert pod.wait() == 0
    assert pod.output() == b"ready\nend\n"


@bwrap
def test_suspension_and_resumption(pod: Pod) -> None:
    pod.write(container("main", "echo ready; sleep 0.5; echo end")).start()
    ready(pod)
    everything = session(pod.pid)
    send_all(everything, signal.SIGSTOP)
    until(lambda: b"T" in states(everything), "the processes to stop")
    send_all(everything, signal.SIGCONT)
    assert pod.wait() == 0
    assert pod.output() == b"ready\nend\n"


def states(pids: list[int]) -> set[bytes]:
    """The state letters of processes."""
    return {entry.state for entry in table() if entry.pid in pids}


@bwrap
def test_second_start_is_refused(pod: Pod) -> None:
    pod.write(container("main", TRAP)).start()
    ready(pod)
    until(lambda: pod.state()["state"] == "running", "the status")
    before = pod.path("status.json").read_bytes()
    assert pod.launch().wait(30) == 75
    assert b"run before" in pod.path("job.out").read_bytes()
    assert pod.path("status.json").read_bytes() == before
    pod.stop(5)
    assert pod.wait() == 7
    assert pod.launch().wait(30) == 75


@bwrap
def test_setup_lines_change_the_environment(pod: Pod) -> None:
    lines = ["export MODULE='a\nb'", 'export PATH="/opt/tool/bin:$PATH"', "echo noise", "unexported=1"]
    pod.write(container("main", "/bin/cat", "/proc/self/environ", env=[["OWN", "1"]]), setup=lines).run()
    got = dict(entry.partition(b"=")[::2] for entry in pod.output().split(b"\0")[:-1])
    assert got.pop(b"MODULE") == b"a\nb"
    assert got.pop(b"PATH") == b"/opt/tool/bin:" + pod.environment["PATH"].encode()
    assert set(got) == {b"HOME", b"HOSTNAME", b"PBS_JOBID", b"PWD", b"OWN"}


def test_failing_setup_line_fails_the_pod(pod: Pod) -> None:
    pod.write(container("main", "true"), setup=["echo no such module >&2; false", "true"])
    assert pod.start().wait() == 1
    assert (pod.status["reason"], pod.status["result"]) == ("PBSStartFailed", "Failed")
    assert pod.status["message"] == "the cluster's setup lines ended with 1: no such module"


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 2}', '{"version": 1}'])
def test_unusable_pod_json(pod: Pod, content: str) -> None:
    pod.put("pod.json", content)
    assert pod.start().wait() == 1
    assert (pod.status["phase"], pod.status["reason"], pod.status["result"]) == ("Ended", "PBSStartFailed", "Failed")
    assert "pod.json" in pod.status["message"]
    assert pod.status["uid"] == pod.uid


def test_unknown_runtime(pod: Pod) -> None:
    status = pod.write(container("main", "true", runtime="warp")).run()
    assert (status["reason"], "warp" in status["message"]) == ("PBSStartFailed", True)


class TestWithoutBubblewrap:
    """The host runtime where bubblewrap is missing."""

    @pytest.fixture
    def pod(self, pod: Pod) -> Pod:
        pod.environment["HPC_BRIDGE_BWRAP"] = "/nonexistent/bwrap"
        pod.isolation = "optional"
        return pod

    def test_it_must_be_allowed(self, pod: Pod) -> None:
        """Found by the security review: the wall fell open in silence."""
        pod.isolation = "required"
        pod.write(container("main", "echo started")).start()
        assert pod.wait() == 1
        assert (pod.status["reason"], pod.status["result"]) == ("PBSStartFailed", "Failed")
        assert "no isolation on" in pod.status["message"]
        assert "/nonexistent/bwrap" in pod.status["message"]
        assert not pod.path("logs").exists()

    def test_the_status_says_that_there_is_no_wall(self, pod: Pod) -> None:
        assert pod.write(container("main", "true")).run()["isolation"] == "none"

    def test_mounts_are_refused(self, pod: Pod) -> None:
        pod.write(container("main", "true", mounts=[mount("volumes/data", "/data")]))
        assert pod.start().wait() == 1
        assert pod.status["reason"] == "PBSStartFailed"
        assert "container main mounts /data, which needs bubblewrap" in pod.status["message"]

    def test_a_pod_with_the_default_token_runs(self, pod: Pod) -> None:
        token = mount("secrets/volumes/token", "/var/run/secrets/kubernetes.io/serviceaccount", read_only=True)
        pod.write(container("main", "touch $HOME/x; test $HOME = $TMPDIR; exit 3", mounts=[token])).start()
        assert pod.wait() == 3

    def test_a_signal_is_told_from_an_exit_code(self, pod: Pod) -> None:
        pod.write(container("killed", "kill -15 $$"), container("exited", "exit 143")).run()
        assert [pod.state(name)["signal"] for name in ("killed", "exited")] == [15, None]
        assert [pod.state(name)["exit_code"] for name in ("killed", "exited")] == [143, 143]

    def test_a_daemon_that_holds_the_output_does_not_hold_the_pod(self, pod: Pod) -> None:
        pod.write(container("main", "sleep 1000 & setsid sleep 1000 & echo $!")).start()
        assert pod.wait() == 0
        daemon = int(pod.output())
        assert daemon not in {entry.pid for entry in table()}  # although it left the session
        until(lambda: not session(pod.pid), "the session to end")

    def test_a_daemon_ends_with_a_killed_podrun(self, pod: Pod) -> None:
        """Found by the security review: setsid was enough to outlive podrun's guard."""
        pod.write(container("main", "setsid sleep 1000 & echo $!; echo ready; sleep 1000")).start()
        ready(pod)
        daemon = int(pod.output().split()[0])
        os.kill(pod.pid, signal.SIGKILL)
        pod.wait()
        until(lambda: daemon not in {entry.pid for entry in table()}, "the daemon to end")

    def test_command_not_found(self, pod: Pod) -> None:
        state = pod.write(container("main", "no-such-program", "x")).run()["containers"]["main"]
        assert (state["reason"], state["exit_code"]) == ("StartError", 128)
        assert state["message"] == 'exec: "no-such-program": No such file or directory'

    def test_stop(self, pod: Pod) -> None:
        pod.write(container("main", TRAP), container("deaf", STUBBORN)).start()
        ready(pod)
        ready(pod, "deaf")
        pod.stop(4)
        assert pod.wait() == 7
        assert (pod.state()["exit_code"], pod.state("deaf")["signal"]) == (7, 9)


@bwrap
@pytest.mark.parametrize("isolation", ["required", "optional"])
@pytest.mark.parametrize(
    "trouble",
    [
        "Creating new namespace failed: Resource temporarily unavailable",
        "Can't fork unshare child: Cannot allocate memory",
        "Creating new namespace failed: No space left on device",
    ],
)
def test_no_room_for_a_wall_is_not_the_absence_of_one(pod: Pod, isolation: str, trouble: str) -> None:
    """Another job of the account can use up processes and namespaces: the pod then waits for its wall."""
    program = wrapper(
        pod,
        f'n=$(cat $HOME/n 2>/dev/null); echo $n. > $HOME/n; [ "$n" = .. ] || {{ echo "bwrap: {trouble}"; exit 1; }}',
    )
    pod.environment["HPC_BRIDGE_BWRAP"] = program
    pod.isolation = isolation
    assert pod.write(container("main", "true")).run()["isolation"] == "bubblewrap"


def wrapper(pod: Pod, first: str) -> str:
    """A bubblewrap that does something else first."""
    path = pod.spool / "bwrap"
    path.write_text(f'#!/bin/sh\nexport HOME={pod.spool}\n{first}\nexec {shutil.which("bwrap")} "$@"\n')
    path.chmod(0o755)
    return str(path)


@bwrap
def test_the_status_names_the_wall(pod: Pod) -> None:
    assert pod.write(container("main", "true")).run()["isolation"] == "bubblewrap"


def in_memory() -> list[Path]:
    """The account's folders in the node's memory."""
    return list(Path("/dev/shm").glob(f"hpc-bridge-{USER}-*"))


MEMORY = mount("volumes/fast", "/dev/shm", medium="Memory", size=1 << 20)


@bwrap
def test_an_empty_dir_in_memory_is_a_tmpfs_that_containers_share(pod: Pod) -> None:
    """It lay in the spool, on the shared file system."""
    check = "stat -f -c %T /dev/shm; stat -c %a /dev/shm"
    writer = container("writer", f"{check}; echo shared > /dev/shm/x", kind="init", mounts=[MEMORY])
    other = mount("volumes/fast", "/cache/deep", medium="Memory", sub_path="sub")
    reader = container("main", "cat /dev/shm/x; touch /cache/deep/y; ls -A /dev/shm", mounts=[MEMORY, other])
    before = set(in_memory())
    assert pod.write(writer, reader).run()["result"] == "Succeeded", pod.status
    assert pod.output("writer") == b"tmpfs\n777\n"
    assert pod.output() == b"shared\nsub\nx\n"
    assert set(in_memory()) <= before
    assert not list(pod.path("volumes/fast").iterdir())


@bwrap
@pytest.mark.parametrize("guarded", [True, False])
def test_memory_is_given_back_by_the_guard_or_by_the_next_pod(make_pod: Callable[..., Pod], guarded: bool) -> None:
    before = set(in_memory())
    pod = make_pod("killed").write(container("main", "echo ready; sleep 1000", mounts=[MEMORY])).start()
    ready(pod)
    (folder,) = set(in_memory()) - before
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, USER)
    living = make_pod("living").write(container("main", "echo ready; sleep 1000", mounts=[MEMORY])).start()
    ready(living)
    (kept,) = set(in_memory()) - before - {folder}
    if guarded:
        os.kill(pod.pid, signal.SIGKILL)
        pod.wait()
    else:
        os.kill(pod.pid, signal.SIGSTOP)  # the guard ends first, as it may when MoM kills all
        send_all(sorted(set(session(pod.pid)) - {pod.pid}), signal.SIGKILL)
        pod.kill()
        assert folder.exists()
        make_pod("next").write(container("main", "true", mounts=[MEMORY])).run()
    until(lambda: not folder.exists(), "the folder to go")
    assert kept.exists()
    living.stop(2)
    living.wait()
    assert not kept.exists()


@bwrap
def test_an_empty_dir_has_the_mode_that_a_kubelet_gives(pod: Pod) -> None:
    config = mount("volumes/config", "/config", read_only=True)
    check = container("main", "stat -c %a /data /config", mounts=[mount("volumes/data", "/data"), config])
    pod.write(check)
    for name in ("data", "config"):
        pod.path(f"volumes/{name}").chmod(0o700)
    pod.put("volumes/config/..1/key", "x")
    assert pod.run()["result"] == "Succeeded"
    assert pod.output() == b"777\n700\n"
    assert pod.directory.stat().st_mode & 0o777 == 0o700


@bwrap
def test_a_changed_deadline_takes_effect(pod: Pod) -> None:
    """A kubelet ends a pod whose activeDeadlineSeconds is shortened while it runs."""
    pod.write(container("main", TRAP), active_deadline=3000).start()
    ready(pod)
    pod.put("limits.json", json.dumps({"version": 1, "activeDeadlineSeconds": 1}))
    assert pod.wait() == 7
    assert pod.status["reason"] == "DeadlineExceeded"


@bwrap
def test_a_deadline_may_also_come_later(pod: Pod) -> None:
    pod.write(container("main", "echo ready; sleep 6"), active_deadline=4)
    pod.put("limits.json", json.dumps({"version": 1, "activeDeadlineSeconds": 3000}))
    assert pod.start().wait() == 0


@bwrap
def test_no_stop_is_without_a_chance(pod: Pod) -> None:
    """`kubectl delete --force` is grace 0: a kubelet gives 2 s all the same."""
    pod.write(
        container("main", "trap 'sleep 1; echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done"), grace=0
    )
    pod.start()
    ready(pod)
    pod.stop(0)
    assert pod.wait() == 3
    assert b"saved" in pod.output()


def test_status_is_small_and_versioned(pod: Pod) -> None:
    pod.write(
        *[container(f"c{n}", "head -c 9000 /dev/urandom > /dev/termination-log; exit 1") for n in range(12)]
    ).run()
    content = pod.path("status.json").read_bytes()
    assert len(content) < 256 * 1024
    assert json.loads(content)["version"] == 1
