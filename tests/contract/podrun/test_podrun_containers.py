"""What happens inside containers: commands, environment, file tree, exit codes, restarts, logs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from podrunkit import USER, Json, Pod, container, mount, session, until

pytestmark = pytest.mark.usefixtures("bubblewrap")

NASTY = {
    "NEWLINE": b"first\nsecond\n",
    "QUOTES": b"'single' \"double\" `backtick`",
    "DOLLAR": b"$(touch /tmp/pwned) ${HOME} $$",
    "BACKSLASH": b"ends with a backslash\\",
    "EMPTY": b"",
    "BYTES": b"\xff\xfe\x80 not UTF-8",
    "UNICODE": "žluťoučký kůň".encode(),
    "LONG": b"x" * 100_000,
    "EQUALS": b"a=b=c",
    "PATH": b"/usr/bin:/bin",
    "LD_PRELOAD": b"",
    "dotted.name-x": b"kept",
}


def test_environment_arrives_byte_for_byte(pod: Pod) -> None:
    env: list[list[object]] = [["TWICE", "first"], ["TWICE", "second"]]
    secrets = {}
    for name, value in NASTY.items():
        if name in ("BYTES", "QUOTES"):
            secrets[name] = value
            env.append([name, {"secret": name}])
        else:
            env.append([name, value.decode()])
    pod.environment |= {"SECRET_OF_THE_USER": "x", "PBS_O_HOST": "login", "OMP_NUM_THREADS": "4"}
    pod.write(container("main", "cat", "/proc/self/environ", env=env), secrets=secrets).run()
    entries = pod.output().split(b"\0")[:-1]
    got = dict(entry.partition(b"=")[::2] for entry in entries)
    base = {b"HOME": b"/", b"HOSTNAME": b"hello", b"PBS_JOBID": b"12.alpha", b"PWD": b"/"}
    base |= {b"OMP_NUM_THREADS": b"4", b"TWICE": b"second"}
    assert got == base | {name.encode(): value for name, value in NASTY.items()}
    assert len(entries) == len(got)


def test_argv_and_working_directory_arrive_as_given(pod: Pod) -> None:
    script = "import os,sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, [os.getcwd(), *sys.argv[1:]])))"
    arguments: list[str | Json] = ["", "a b", "--", "$(id)", "new\nline", {"secret": "bytes"}, "back\\"]
    command = container("main", "python3", "-c", script, *arguments, cwd="/not/there/yet")
    pod.write(command, secrets={"bytes": b"\xff\n"}).run()
    assert pod.output().split(b"\0") == [
        b"/not/there/yet",
        b"",
        b"a b",
        b"--",
        b"$(id)",
        b"new\nline",
        b"\xff\n",
        b"back\\",
    ]


def test_exit_code_is_the_pods(pod: Pod) -> None:
    pod.write(container("main", "echo out; echo err >&2; exit 3")).start()
    assert pod.wait() == 3
    status = pod.status
    assert (status["phase"], status["result"], status["reason"]) == ("Ended", "Failed", "")
    state = status["containers"]["main"]
    assert (state["state"], state["reason"], state["exit_code"], state["signal"]) == ("terminated", "Error", 3, None)
    assert status["started_at"] <= state["started_at"] <= state["finished_at"] <= status["written_at"]
    assert (pod.output(), pod.output(stream="stderr")) == (b"out\n", b"err\n")
    assert status["job_id"] == "12.alpha"
    assert status["host"] == os.uname().nodename
    assert (pod.spool / "instance" / "dirty" / pod.uid).exists()


def test_death_by_signal_is_told(pod: Pod) -> None:
    pod.write(container("main", "kill -9 $$")).start()
    assert pod.wait() == 137
    assert (pod.state()["exit_code"], pod.state()["signal"]) == (137, 9)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["no-such-program"], "no-such-program: No such file or directory"),
        (["/etc/passwd"], "Permission denied"),
        (["true", "x" * 200_000], "Argument list too long"),
    ],
)
def test_command_that_cannot_be_run(pod: Pod, argv: list[str], text: str) -> None:
    status = pod.write(container("main", "", argv=argv)).run()
    state = status["containers"]["main"]
    assert (status["result"], state["reason"], state["exit_code"]) == ("Failed", "StartError", 128)
    assert text in state["message"]


def test_containers_run_side_by_side_and_share_an_emptydir(pod: Pod) -> None:
    data = [mount("volumes/data", "/data")]
    first = container("first", "mkfifo /data/pipe; echo hello > /data/pipe; cat /data/answer.pipe", mounts=data)
    second = container(
        "second",
        "mkfifo /data/answer.pipe; until read x < /data/pipe; do :; done; echo $x > /data/answer.pipe",
        mounts=data,
    )
    status = pod.write(first, second).run()
    assert status["result"] == "Succeeded", pod.lines("first") + pod.lines("second")
    assert pod.output("first") == b"hello\n"


def test_init_containers_run_in_order_and_before_the_others(pod: Pod) -> None:
    data = [mount("volumes/data", "/data")]
    names = ("one", "two", "main")
    items = [
        container(name, f"sleep 0.1; echo {name} >> /data/order", mounts=data, kind="app" if name == "main" else "init")
        for name in names
    ]
    assert pod.write(*items).run()["result"] == "Succeeded"
    assert pod.path("volumes/data/order").read_text().split() == list(names)


def test_failing_init_container_fails_the_pod_or_is_tried_again(make_pod: Callable[..., Pod]) -> None:
    script = "test -e /data/x && exit 0; touch /data/x; exit 4"
    init = container("init", script, kind="init", mounts=[mount("volumes/data", "/data")])
    never = make_pod("never").write(init, container("main", "true"))
    assert never.start().wait() == 1
    assert never.status["result"] == "Failed"
    assert never.state("init")["exit_code"] == 4
    assert (never.state()["state"], never.state()["reason"]) == ("waiting", "PodInitializing")
    again = make_pod("again").write(init, container("main", "true"), restart_policy="OnFailure")
    assert again.run()["result"] == "Succeeded"
    assert (again.state("init")["restart_count"], again.state("init")["last"]["exit_code"]) == (1, 4)


def test_crash_loop(pod: Pod) -> None:
    pod.write(container("main", "date; exit 5"), restart_policy="Always", crash_backoff={"base": 1, "max": 30}).start()
    until(lambda: (pod.state()["state"], pod.state().get("restart_count")) == ("waiting", 3), "a crash loop")
    state = pod.state()
    assert state["reason"] == "CrashLoopBackOff"
    assert state["message"] == f"back-off 4s restarting failed container=main pod=hello_default({pod.uid})"
    assert (state["last"]["exit_code"], state["last"]["run"], state["last"]["reason"]) == (5, 3, "Error")
    assert pod.status["phase"] == "Running"
    assert sorted(path.name for path in pod.path("logs/main").iterdir()) == ["2.log", "3.log"]
    pod.stop(0)
    assert pod.wait() == 5
    assert (pod.state()["state"], pod.state()["exit_code"]) == ("terminated", 5)


def test_on_failure_ends_with_success(pod: Pod) -> None:
    script = "echo run >> /data/n; test $(wc -l < /data/n) -ge 3 || exit 6"
    pod.write(container("main", script, mounts=[mount("volumes/data", "/data")]), restart_policy="OnFailure").start()
    assert pod.wait() == 0
    state = pod.state()
    assert (state["restart_count"], state["run"], state["reason"], state["last"]["exit_code"]) == (2, 2, "Completed", 6)


def test_termination_message(pod: Pod) -> None:
    logs = {"termination_message_policy": "FallbackToLogsOnError"}
    pod.write(
        container("file", "printf 'the end' > /dev/termination-log; exit 1", **logs),
        container("path", "echo here > /run/done/message", termination_message_path="/run/done/message"),
        container("log", "seq 1 100; exit 1", **logs),
        container("none", "echo no error", **logs),
        container("long", "head -c 9000 /dev/zero | tr '\\0' x > /dev/termination-log"),
    ).run()
    messages = {name: state["message"] for name, state in pod.status["containers"].items()}
    assert messages["log"] == "".join(f"{n}\n" for n in range(21, 101))
    assert len(messages.pop("long")) == 12 * 1024 // 5
    assert messages | {"log": ""} == {"file": "the end", "path": "here\n", "log": "", "none": ""}


def test_sibling_pods_spool_and_home_are_out_of_sight(make_pod: Callable[..., Pod]) -> None:
    sibling = make_pod("sibling").write(container("main", "true"), secrets={"key": b"canary-of-the-sibling"})
    sibling.path("volumes").mkdir()
    pod = make_pod("own")
    files = f"{sibling.path('secrets/values.json')} {pod.path('pod.json')}"
    script = f"cat {files}; ls {pod.spool} /root /home /work; ls -A / /tmp"
    pod.write(container("main", script)).run()
    assert b"canary" not in pod.path("logs/main/0.log").read_bytes()
    assert pod.output(stream="stderr").count(b"No such file or directory") == 6
    assert set(pod.output().split()) <= {
        *b"/: bin dev etc lib lib32 lib64 libx32 opt proc run sbin sys tmp usr var /tmp:".split(),
        Path(os.path.realpath("/etc/resolv.conf")).parts[1].encode(),
    }


def test_mounts_read_only_nested_and_where_the_host_has_nothing(pod: Pod) -> None:
    mounts = [
        mount("volumes/config", "/etc/new/config", read_only=True),
        mount("volumes/config", "/usr/share/made-up"),
        mount("volumes/data", "/data"),
        mount("volumes/inner", "/data/deep/inner"),
        mount("volumes/config", "/etc/single.conf", sub_path="file", read_only=True),
    ]
    script = """
    cat /etc/new/config/file /usr/share/made-up/file /etc/single.conf
    test -e /etc/passwd && test -d /usr/share/doc || echo host tree lost
    for f in /etc/new/config/file /etc/x /usr/x /etc/new/config/y; do touch $f && echo writable $f; done
    touch /data/deep/inner/z /x
    """
    pod.put("volumes/config/file", "content\n")
    pod.write(container("main", script, mounts=mounts)).start()
    assert pod.wait() == 0, pod.lines()
    assert pod.output() == b"content\n" * 3
    assert pod.path("volumes/inner/z").exists()
    assert not Path("/etc/new").exists()
    assert not Path("/etc/single.conf").exists()


def test_sub_path_stays_in_its_volume(make_pod: Callable[..., Pod]) -> None:
    pod = make_pod("inside")
    mounts = [mount("volumes/data", "/data", sub_path="a/b")]
    pod.write(container("main", "touch /data/x; ls -l /proc/self/fd", mounts=mounts)).run()
    assert pod.path("volumes/data/a/b/x").exists()
    assert b"volumes" not in pod.output()  # no descriptor leads out
    outside = make_pod("outside")
    outside.write(container("main", "true", mounts=mounts))
    outside.path("volumes/data/a").symlink_to("/etc")
    state = outside.run()["containers"]["main"]
    assert (state["reason"], "leads out of its volume" in state["message"]) == ("StartError", True)


def test_config_volume_as_the_kubelet_writes_it(pod: Pod) -> None:
    for stamp in ("1", "2"):
        pod.put(f"volumes/config/..{stamp}/key", f"version {stamp}\n")
    pod.path("volumes/config/..data").symlink_to("..1")
    pod.path("volumes/config/key").symlink_to("..data/key")
    script = "cat /etc/config/key /one; touch /data/ready; until grep 2 /etc/config/key; do sleep 0.05; done; cat /one"
    config = mount("volumes/config", "/etc/config", read_only=True)
    single = mount("volumes/config", "/one", sub_path="key", read_only=True)
    pod.write(container("main", script, mounts=[config, single, mount("volumes/data", "/data")])).start()
    until(pod.path("volumes/data/ready").exists, "the container to start")
    pod.path("volumes/config/..data.new").symlink_to("..2")
    pod.path("volumes/config/..data.new").rename(pod.path("volumes/config/..data"))
    assert pod.wait() == 0, pod.lines()
    assert pod.output() == b"version 1\nversion 1\nversion 2\nversion 1\n"  # a subPath is not refreshed


def test_host_path(pod: Pod, outside: Path) -> None:
    path = {"absolute": True, "allowed": str(outside), "type": "DirectoryOrCreate"}
    refused = {"absolute": True, "type": "File", "read_only": True}
    pod.write(
        container("main", "touch /shared/x", mounts=[mount(f"{outside}/new/shared", "/shared", **path)]),
        container("bad", "true", mounts=[mount(str(outside), "/shared", **refused)]),
    ).run()
    assert pod.state()["exit_code"] == 0
    assert (outside / "new" / "shared" / "x").exists()
    assert pod.state("bad")["message"] == f"hostPath {outside} is not of type File"


def test_read_only_root(pod: Pod) -> None:
    script = "for d in / /tmp /etc /run /w /sys; do touch $d/x && echo $d; done; touch /data/x && echo data; pwd"
    mounts = [mount("volumes/data", "/data")]
    pod.write(container("main", script, mounts=mounts, cwd="/w", read_only_root=True)).run()
    assert pod.output() == b"data\n/w\n"


def test_own_user_private_tmp_and_own_processes(pod: Pod) -> None:
    script = "id -u; id -g; touch /tmp/x /dev/shm/x; umask; kill 0; echo not reached"
    pod.write(container("main", script), container("other", "sleep 0.5; ls /tmp /dev/shm")).run()
    assert pod.output().split() == [b"%d" % USER, b"%d" % (os.getgid() if os.getuid() else USER), b"0022"]
    assert pod.state()["signal"] == signal.SIGTERM
    assert pod.state("other")["exit_code"] == 0  # `kill 0` reached neither the sibling nor podrun
    assert pod.output("other") == b"/dev/shm:\n\n/tmp:\n"


def test_what_a_container_leaves_behind_ends_with_it(pod: Pod) -> None:
    pod.write(container("main", "setsid sleep 1000 & sleep 1000 & (sleep 1000 &) ; echo done")).start()
    assert pod.wait() == 0
    assert pod.output() == b"done\n"
    until(lambda: not session(pod.pid), "the daemons to end")


def test_log_lines_long_and_unfinished(pod: Pod) -> None:
    long = b"y" * 40_000
    script = f"head -c {len(long)} /dev/zero | tr '\\0' y; echo; printf unfinished"
    pod.write(container("main", script)).run()
    assert [(tag, len(text)) for _, tag, text in pod.lines()] == [("P", 16384), ("P", 16384), ("F", 7232), ("P", 10)]
    assert pod.output() == long + b"\nunfinished"


def test_a_flood_of_output_is_complete(pod: Pod) -> None:
    pod.write(container("main", "seq 1 200000")).run()
    assert pod.output() == b"".join(b"%d\n" % n for n in range(1, 200_001))


def test_secrets_are_gone_at_the_end(pod: Pod) -> None:
    pod.put("secrets/volumes/token/token", "canary")
    mounts = [mount("secrets/volumes/token", "/var/run/secrets/kubernetes.io/serviceaccount", read_only=True)]
    script = "cat /var/run/secrets/kubernetes.io/serviceaccount/token"
    pod.write(container("main", script, mounts=mounts), secrets={"a": b"canary"}).run()
    assert pod.output() == b"canary"
    assert not pod.path("secrets").exists()
    assert b"canary" not in pod.path("status.json").read_bytes() + pod.path("job.out").read_bytes()
