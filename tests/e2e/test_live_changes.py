"""What people change on a pod whose job was submitted, and what today's settings would say of it: the job runs on."""

from __future__ import annotations

import json

import yaml
from world import World, container, pod, until


def test_changes_that_a_job_cannot_follow_are_told(bridge: World) -> None:
    thing = pod("changing", "echo up; exec sleep 300")
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    bridge.apply(thing)
    bridge.wait_phase("changing", "Running")
    main = container(
        bridge.wait(
            "changing", lambda p: p["status"].get("containerStatuses") and container(p).get("imageID"), what="imageID"
        )
    )
    larger = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    # Older API servers let it through: unit/test_pods_live.py::test_a_resize_is_infeasible_until_it_is_taken_back
    args = ("patch", "pod", "changing", "--subresource=resize", "--patch", json.dumps(larger))
    assert "without support for resize" in bridge.kubectl(*args, check=False).stderr
    bridge.kubectl("set", "image", "pod/changing", "main=busybox:2")
    bridge.kubectl("debug", "changing", "--quiet", "--image=busybox:1.36", "--container=debugger", "--attach=false")

    def told() -> bool:
        texts = [message for reason, message in bridge.events("changing") if reason == "ChangeNotApplied"]
        return all(any(word in text for text in texts) for word in ("busybox:2", "debugger"))

    until(told, "both changes told")
    after = bridge.wait(
        "changing",
        lambda p: p["status"].get("observedGeneration") == p["metadata"]["generation"],
        what="observed",
    )
    (debugger,) = after["status"]["ephemeralContainerStatuses"]
    assert debugger["state"]["waiting"]["reason"] == "UnsupportedPodField"
    assert (container(after)["image"], container(after)["imageID"]) == (main["image"], main["imageID"])
    assert (after["status"]["phase"], container(after)["restartCount"]) == ("Running", 0)
    bridge.kubectl("delete", "pod", "changing", "--wait=false")
    bridge.wait_gone("changing")


def test_no_restart_ends_what_would_be_refused_today(bridge: World) -> None:
    """An annotation, a debug container, image and namespace that are refused, and an agent with another address."""
    names = ("kept-annotated", "kept-debugged", "kept-plain")
    bridge.apply(*(pod(name, "exec sleep 300") for name in names))
    jobs = {name: bridge.job_of(name) for name in names if bridge.wait_phase(name, "Running")}
    bridge.kubectl("annotate", "pod", "kept-annotated", "hpc-bridge.io/note=hello")
    bridge.kubectl("debug", "kept-debugged", "--quiet", "--image=busybox:1.36", "--attach=false")
    written = bridge.agent.config.read_text()
    settings = yaml.safe_load(written)
    alpha = next(cluster for cluster in settings["clusters"] if cluster["name"] == "alpha")
    alpha["images"] = [{"image": "nothing:*"}]
    for account in alpha["accounts"]:
        account["namespaces"] = ["elsewhere"]
    bridge.stop_agent(kill=True)
    bridge.agent.config.write_text(yaml.safe_dump(settings, sort_keys=False))
    try:
        bridge.restart_agent()
        for name in names:
            after = bridge.wait(name, lambda p: p["status"]["hostIP"] == bridge.agent.address, what="looked at")
            assert after["status"]["phase"] == "Running"
            assert jobs[name] in bridge.jobs()
        bridge.kubectl("delete", "pod", *names, "--wait=false")
        for name in names:
            bridge.wait_gone(name)
        assert not set(jobs.values()) & set(bridge.jobs())
    finally:
        bridge.stop_agent()
        bridge.agent.config.write_text(written)
        bridge.restart_agent()
