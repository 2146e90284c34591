"""What is written by people who mean harm, or by programs gone wrong: refused, bounded, never taken for the truth."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

from faultkit import counting, helpers, kill_helper, settings_of_alpha
from world import World, container, job_annotation, pod, shared, until

from bridge.testbed.files import shipped
from bridge.testbed.kubectl import find_kubectl

TOUCH = "touch {home}/canary"
ANNOTATIONS = ("queue", "walltime", "project", "account", "place")
HOSTILE = (
    f"$({TOUCH})",
    f"`{TOUCH}`",
    f"workq; {TOUCH}",
    f"workq\n{TOUCH}\n",
    f"workq' ; {TOUCH} ; '",
    f'"; {TOUCH}; "',
    f"free -- /bin/sh -c '{TOUCH}'",
    "workq,walltime=9:00:00",
    "-x",
    "x" * 300,
    "physics\x00",
    "ﬀ\u202e",
)


def test_no_annotation_is_ever_executed(bridge: World) -> None:
    home = bridge.clusters["alpha"].account.home
    pods = {}
    for name in ANNOTATIONS:
        for index, text in enumerate((*HOSTILE, "workq@elsewhere") if name == "queue" else HOSTILE):
            thing = pod(f"hostile-{name}-{index}", "true")
            thing["metadata"] |= {
                "annotations": {f"hpc-bridge.io/{name}": text.format(home=home)}, "labels": {"test": "hostile"}
            }  # fmt: skip
            pods[thing["metadata"]["name"]] = thing
    listed = {"apiVersion": "v1", "kind": "List", "items": list(pods.values())}
    bridge.kubectl("create", "-f", "-", input=json.dumps(listed))
    broken = json.dumps(pod("hostile-bytes", "true", queue="BYTES")).encode().replace(b"BYTES", b"\xff\xfe$(id)")
    path = "/api/v1/namespaces/default/pods"
    subprocess.run(
        [*bridge_kubectl(bridge), "create", "--raw", path, "-f", "-"], input=broken, check=True, capture_output=True
    )

    def refused() -> bool:
        found = bridge.get("pods", "-l", "test=hostile")["items"]
        return all(each["status"].get("reason") == "InvalidAnnotation" for each in found)

    until(refused, "all are refused", 120)
    assert bridge.wait_phase("hostile-bytes", "Failed")["status"]["reason"] == "InvalidAnnotation"
    assert not (home / "canary").exists()
    bridge.kubectl("delete", "pods", "-l", "test=hostile", "--wait=false")


def bridge_kubectl(bridge: World) -> list[str]:
    """kubectl for input that is not text."""
    return [str(find_kubectl()), f"--kubeconfig={bridge.control_plane.admin_kubeconfig}"]


def test_what_pbs_allows_arrives_unharmed(bridge: World) -> None:
    accounting = "grp_a=b@c.d-e"
    thing = pod("odd-words", "true", queue="stopped")
    thing["metadata"]["annotations"] |= {
        "hpc-bridge.io/account": accounting,
        "hpc-bridge.io/project": "physics",
        "hpc-bridge.io/place": "scatter:excl",
        "note": f"$({TOUCH}) `id` \n;'\"",
    }
    bridge.apply(thing)
    bridge.wait_reason("odd-words", "PBSQueued")
    text = bridge.clusters["alpha"].pbs("qstat", "-f", "-F", "json", bridge.job_of("odd-words")).stdout
    (job,) = json.loads(text)["Jobs"].values()
    assert job["Account_Name"] == accounting
    assert job["project"] == "physics"
    assert job["Resource_List"]["place"] == "scatter:excl"
    bridge.kubectl("delete", "pod", "odd-words", "--wait=false")
    bridge.wait_gone("odd-words")


@contextlib.contextmanager
def unprotected(bridge: World) -> Iterator[None]:
    """Without the policies that keep status.hpc-bridge.io/ for the agent, as in a cluster that does not apply them."""
    bridge.kubectl("delete", "-k", str(shipped("deploy") / "admission"))
    try:
        yield
    finally:
        bridge.kubectl("apply", "-k", str(shipped("deploy") / "admission"))


def test_the_job_id_that_a_pod_shows_gives_no_power_over_the_job(bridge: World) -> None:
    bridge.apply(pod("victim", "exec sleep 300"))
    bridge.wait_phase("victim", "Running")
    job = bridge.job_of("victim")
    forger = pod("forger", "true", queue="stopped")
    forger["metadata"]["annotations"]["status.hpc-bridge.io/job-id"] = job
    with unprotected(bridge):

        def kept() -> bool:
            """The annotation: it takes a moment until the policies are gone for the API server, too."""
            words = ("create", "--dry-run=server", "-o", "json", "-f", "-")
            shown = bridge.kubectl(*words, input=json.dumps(forger), check=False)
            return not shown.returncode and job_annotation(json.loads(shown.stdout)) == job

        until(kept, "no policy in force")
        bridge.apply(forger)
    bridge.wait_reason("forger", "PBSQueued")
    bridge.kubectl("delete", "pod", "forger", "--wait=false")
    bridge.wait_gone("forger")
    assert job in bridge.jobs()
    assert bridge.pod("victim")["status"]["phase"] == "Running"
    bridge.kubectl("delete", "pod", "victim", "--wait=false")
    bridge.wait_gone("victim")


def ended_status(uid: str, **fields: object) -> str:
    """A status as podrun would write it at the end of a pod that succeeded."""
    main = {"kind": "app", "state": "terminated", "exit_code": 0, "reason": "Completed", "run": 0, "restart_count": 0}
    whole = {"version": 1, "uid": uid, "seq": 9, "phase": "Ended", "result": "Succeeded", "containers": {"main": main}}
    return json.dumps(whole | fields)


def test_a_forged_status_is_unknown_and_never_a_success(bridge: World) -> None:
    cluster = bridge.clusters["alpha"]
    bridge.apply(counting(bridge, "spoilt", "until [ -e /home-of-all/spoilt.go ]; do sleep 0.1; done; exit 3"))
    before = bridge.wait_phase("spoilt", "Running")
    uid = before["metadata"]["uid"]
    folder = bridge.directory(uid)
    running = {"main": {"kind": "app", "state": "running", "run": 0}}
    outside = f"{cluster.account.home}/outside.json"
    cluster.run(f"cat > {outside}", input=ended_status(uid))
    steps = {
        "empty": ": > status.json",
        "cut": f"head -c 40 {outside} > status.json",
        "no object": "echo '[1]' > status.json",
        "large": f"(head -c 300000 /dev/zero | tr '\\0' ' '; cat {outside}) > status.json",
        "endless": "truncate -s 200G status.json",
        "of another pod": f"sed s/{uid}/{uid[::-1]}/ {outside} > status.json",
        "without containers": f"echo '{ended_status(uid, containers={})}' > status.json",
        "that contradicts itself": f"echo '{ended_status(uid, containers=running)}' > status.json",
        "deep": "head -c 100000 /dev/zero | tr '\\0' '[' > status.json",
        "link": f"ln -sf {outside} status.json",
        "pipe": "rm -f status.json; mkfifo status.json",
        "directory": "rm -f status.json; mkdir status.json",
    }
    pids = helpers(cluster)
    for what, line in steps.items():
        done = cluster.run(f"cd {folder} && rm -rf status.json && {line} && touch ../../dirty/{uid}")
        assert done.returncode == 0, done.stderr
        until(lambda: not cluster.run(f"ls {folder}/../../dirty/").stdout.split(), f"the status was read: {what}")
    bridge.apply(pod("spoilt-after", "true"))  # what was read has been acted upon by the time that this one has ended
    bridge.wait_phase("spoilt-after", "Succeeded")
    after = bridge.pod("spoilt")
    assert after["status"]["phase"] == "Running"
    assert container(after)["restartCount"] == 0
    assert helpers(cluster) == pids
    cluster.run(f"rm -rf {folder}/status.json; touch {shared(cluster)}/spoilt.go")
    ended = bridge.wait_phase("spoilt", "Failed")
    assert container(ended)["state"]["terminated"]["exitCode"] == 3


def test_links_lead_nowhere(bridge: World) -> None:
    """In place of what is read and of what is removed; the target stays as it is and is shown to nobody."""
    cluster = bridge.clusters["alpha"]
    bridge.apply(pod("links", "echo mine; exec sleep 300"))
    folder = bridge.directory(bridge.wait_phase("links", "Running")["metadata"]["uid"])
    until(lambda: "mine" in bridge.logs("links"), "its log")
    assert cluster.run("mkdir -p ~/private/main && echo 2026-11-30T10:00:00Z stdout F private > ~/private/main/0.log")
    for line in (
        "rm logs/main/0.log && ln -s ~/private/main/0.log logs/main/0.log",
        "rm -rf logs && ln -s ~/private logs",
        "rm -rf volumes secrets; ln -s ~/private volumes; ln -s ~/private secrets; ln -sf ~/private/main/0.log job.id",
    ):
        assert cluster.run(f"cd {folder} && {line}").returncode == 0
        assert "private" not in bridge.logs("links", check=False)
    bridge.kubectl("delete", "pod", "links", "--wait=false")
    bridge.wait_gone("links")
    assert "private" in cluster.run("cat ~/private/main/0.log").stdout


WRAPPER = """#!/bin/sh
case "$(cat {home}/mode 2>/dev/null)" in
loud) echo "Welcome to alpha!"; printf 'HPC-BRIDGE-2\\n\\000\\377\\n'; echo "You have mail" >&2 ;;
garbage) printf '\\nHPC-BRIDGE-1\\n'; head -c 100000 /dev/urandom; exec sleep 60 ;;
silent) exec sleep 60 ;;
dies) printf '\\nHPC-BRIDGE-1\\n'; exit 3 ;;
esac
exec /usr/bin/env python3 "$@"
"""


def test_nonsense_on_the_channel_leaves_states_unknown(bridge: World) -> None:
    """A login script that prints is no obstacle; a program that is no helper is one, and harms no pod."""
    cluster = bridge.clusters["alpha"]
    home = cluster.account.home
    assert cluster.run(f"cat > {home}/python.sh; chmod +x {home}/python.sh", input=WRAPPER.format(home=home))
    bridge.apply(pod("steady", "exec sleep 300"))
    uid = bridge.wait_phase("steady", "Running")["metadata"]["uid"]

    def mode(word: str) -> None:
        cluster.run(f"echo {word} > {home}/mode")
        kill_helper(bridge)

    def reachable() -> bool:
        report = bridge.agent.report()
        return report is not None and all(c["reachable"] for c in report["clusters"])

    with settings_of_alpha(bridge, python=f"{home}/python.sh"):
        for word in ("garbage", "dies"):
            mode(word)
            until(lambda: not reachable(), f"{word}: not reachable")
        mode("loud")
        until(reachable, "reachable again", 120)
        bridge.apply(pod("spoke-after", "true"))
        bridge.wait_phase("spoke-after", "Succeeded")
        cluster.run(f"rm {home}/mode")
    after = bridge.pod("steady")
    assert (after["metadata"]["uid"], after["status"]["phase"]) == (uid, "Running")
    bridge.kubectl("delete", "pod", "steady", "--wait=false")
    bridge.wait_gone("steady")
