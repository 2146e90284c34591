"""What pods are given, compared byte by byte: variables, ConfigMaps, Secrets, tokens, volumes, host directories."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from world import World, pod, until

HOSTILE = {
    "QUOTES": 'it\'s "quoted"',
    "SHELL": "$(touch /tmp/pwned) `id` $HOME ${PATH} ; | & > <",
    "LINES": "one\ntwo\n\nthree\n",
    "TAIL": "ends with a backslash\\",
    "TAB": "a\tb",
    "UNICODE": "žluťoučký 🐎",
    "BLANK": "  two  spaces  ",
    "LONG": "x" * 100_000,
    "EQUALS": "a=b=c",
    "COMMA": "a,b,'c,d'",
}
BYTES = bytes(byte for byte in range(1, 256))


def env_dump(names: list[str]) -> str:
    """A shell line that prints each variable in base64, one a line."""
    return "; ".join(f'printf %s "${{{name}}}" | base64 -w0; echo' for name in names)


def test_variables_arrive_byte_by_byte(bridge: World) -> None:
    names = list(HOSTILE)
    thing = pod("bytes", env_dump([*names, "FROM_SECRET", "FROM_CONFIG", "COMPOSED"]))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "raw"},
        "data": {"all": base64.b64encode(BYTES).decode()},
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "odd"}, "data": {"all": HOSTILE["LINES"]}}
    thing["spec"]["containers"][0]["env"] = [
        *({"name": name, "value": value.replace("$(", "$$(")} for name, value in HOSTILE.items()),
        {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "raw", "key": "all"}}},
        {"name": "FROM_CONFIG", "valueFrom": {"configMapKeyRef": {"name": "odd", "key": "all"}}},
        {"name": "COMPOSED", "value": "<$(TAIL)> $(UNKNOWN) $$(TAIL)"},
    ]
    bridge.apply(secret, config, thing)
    bridge.wait_phase("bytes", "Succeeded")
    lines = bridge.logs("bytes").splitlines()
    arrived = [base64.b64decode(line) for line in lines]
    expected = [value.encode() for value in HOSTILE.values()]
    expected += [BYTES, HOSTILE["LINES"].encode(), f"<{HOSTILE['TAIL']}> $(UNKNOWN) $(TAIL)".encode()]
    assert arrived == expected
    assert not bridge.clusters["alpha"].run("ls /tmp/pwned").stdout


def test_arguments_are_expanded_and_kept_apart(bridge: World) -> None:
    thing = pod("argv", ["/bin/sh", "-c", 'for a in "$@"; do printf "%s|" "$a"; done', "sh"])
    main = thing["spec"]["containers"][0]
    main["env"] = [{"name": "WHO", "value": "it's me"}]
    main["args"] = ["$(WHO)", "$$(WHO)", "two words", "", "a'b\"c\\", "line\nbreak"]
    main["workingDir"] = "/tmp"
    bridge.apply(thing)
    bridge.wait_phase("argv", "Succeeded")
    assert bridge.logs("argv") == "it's me|$(WHO)|two words||a'b\"c\\|line\nbreak|"


def test_env_from_with_prefix_and_optional_references(bridge: World) -> None:
    thing = pod("env-from", "env | grep -E '^(P_|S_|GONE|WHERE)' | sort; pwd")
    main = thing["spec"]["containers"][0]
    main["workingDir"] = "/usr"
    main["envFrom"] = [
        {"prefix": "P_", "configMapRef": {"name": "many"}},
        {"prefix": "S_", "secretRef": {"name": "many"}},
        {"configMapRef": {"name": "absent", "optional": True}},
    ]
    main["env"] = [{"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "x", "optional": True}}}]
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "many"}, "data": {"a": "1", "b": "2"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "many"}, "stringData": {"c": "3"}}
    bridge.apply(config, secret, thing)
    bridge.wait_phase("env-from", "Succeeded")
    assert bridge.logs("env-from") == "P_a=1\nP_b=2\nS_c=3\n/usr\n"


def test_downward_api_in_variables_and_files(bridge: World) -> None:
    thing = pod("downward", "env | grep ^D_ | sort; cat /info/labels /info/cpu; echo")
    thing["metadata"]["labels"] = {"app": "x", "tier": "back"}
    fields = {
        "D_NAME": "metadata.name",
        "D_NS": "metadata.namespace",
        "D_NODE": "spec.nodeName",
        "D_HOST": "status.hostIP",
    }
    main = thing["spec"]["containers"][0]
    main["env"] = [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in fields.items()]
    main["env"].append({"name": "D_APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}})
    main["resources"] = {"limits": {"cpu": "2", "memory": "64Mi"}}
    main["env"].append(
        {"name": "D_MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}}
    )
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
    ]
    thing["spec"]["volumes"] = [{"name": "info", "downwardAPI": {"items": items}}]
    main["volumeMounts"] = [{"name": "info", "mountPath": "/info"}]
    bridge.apply(thing)
    bridge.wait_phase("downward", "Succeeded")
    lines = bridge.logs("downward").splitlines()
    host = f"D_HOST={bridge.agent.address}"
    expected = ["D_APP=x", host, "D_MEM=64", "D_NAME=downward", "D_NODE=pbs-alpha", "D_NS=default"]
    assert lines[:6] == expected
    assert 'app="x"' in lines
    assert 'tier="back"' in "\n".join(lines)


def test_volumes_with_items_modes_and_sub_paths(bridge: World) -> None:
    lines = (
        "cat /cfg/renamed; stat -L -c %a /cfg/renamed; cat /one; stat -L -c %a /sec/key; ls /cfg /sec; "
        "echo data > /scratch/file; cat /sub/file; echo no > /cfg/renamed || echo read-only; cat /all/a /all/k"
    )
    thing = pod("volumes", lines)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "vol"}, "data": {"a": "A\n", "b": "B\n"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vol"}, "stringData": {"k": "K\n"}}
    thing["spec"]["volumes"] = [
        {"name": "cfg", "configMap": {"name": "vol", "items": [{"key": "a", "path": "renamed", "mode": 0o440}]}},
        {"name": "whole", "configMap": {"name": "vol"}},
        {"name": "sec", "secret": {"secretName": "vol", "items": [{"key": "k", "path": "key"}], "defaultMode": 0o400}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "all", "projected": {"sources": [{"configMap": {"name": "vol"}}, {"secret": {"name": "vol"}}]}},
    ]
    thing["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "cfg", "mountPath": "/cfg"},
        {"name": "whole", "mountPath": "/one", "subPath": "b"},
        {"name": "sec", "mountPath": "/sec", "readOnly": True},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "scratch", "mountPath": "/sub"},
        {"name": "all", "mountPath": "/all"},
    ]
    bridge.apply(config, secret, thing)
    bridge.wait_phase("volumes", "Succeeded")
    assert bridge.logs("volumes").replace("/bin/sh: 1: cannot create /cfg/renamed: Read-only file system\n", "") == (
        "A\n440\nB\n400\n/cfg:\nrenamed\n\n/sec:\nkey\ndata\nread-only\nA\nK\n"
    )


def test_a_config_map_is_refreshed_while_the_pod_runs(bridge: World) -> None:
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "live"}, "data": {"v": "1"}}
    thing = pod("refreshed", "until grep -q 2 /live/v; do sleep 0.5; done; echo seen")
    thing["spec"]["volumes"] = [{"name": "live", "configMap": {"name": "live"}}]
    thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "live", "mountPath": "/live"}]
    bridge.apply(config, thing)
    bridge.wait_phase("refreshed", "Running")
    bridge.apply(config | {"data": {"v": "2"}})
    bridge.wait_phase("refreshed", "Succeeded", timeout=100)


def test_a_secret_that_is_deleted_leaves_the_volume_of_a_running_pod(bridge: World) -> None:
    """An optional source that is gone projects nothing: a revoked password is not kept for the rest of the run."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "revoked"}, "stringData": {"p": "old"}}
    thing = pod("revoked", "cat /s/p; while [ -e /s/p ]; do sleep 0.5; done; ls /s | wc -l")
    thing["spec"]["volumes"] = [{"name": "s", "secret": {"secretName": "revoked", "optional": True}}]
    thing["spec"]["containers"][0]["volumeMounts"] = [{"name": "s", "mountPath": "/s"}]
    bridge.apply(secret, thing)
    bridge.wait_phase("revoked", "Running")
    bridge.kubectl("delete", "secret", "revoked")
    bridge.wait_phase("revoked", "Succeeded", timeout=100)
    assert bridge.logs("revoked").split() == ["old0"]


def test_the_service_account_token_is_the_pods_own_and_works(bridge: World) -> None:
    """Check 40: the token authenticates as the ServiceAccount and carries claims of pod and node."""
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    thing = pod("token", f"cat {folder}/token; echo; cat {folder}/namespace; echo; base64 -w0 {folder}/ca.crt; echo")
    bridge.apply(thing)
    done = bridge.wait_phase("token", "Succeeded")
    token, namespace, authority = bridge.logs("token").splitlines()
    assert namespace == "default"
    assert base64.b64decode(authority) == bridge.control_plane.ca_file.read_bytes()
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    about = claims["kubernetes.io"]
    assert about["pod"] == {"name": "token", "uid": done["metadata"]["uid"]}
    assert about["node"]["name"] == "pbs-alpha"
    assert about["serviceaccount"]["name"] == "default"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    answer = json.loads(bridge.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(review)).stdout)
    assert answer["status"]["user"]["username"] == "system:serviceaccount:default:default"


def test_host_paths_obey_the_allow_list(bridge: World) -> None:
    shared = (
        bridge.clusters["alpha"]
        .run("mkdir -p ~/shared && echo from-host > ~/shared/file && echo ~/shared")
        .stdout.strip()
    )
    volumes = [{"name": "h", "hostPath": {"path": shared}}]
    refused = pod("host-refused", "true", volumes=[{"name": "h", "hostPath": {"path": "/etc"}}])
    refused["spec"]["containers"][0]["volumeMounts"] = [{"name": "h", "mountPath": "/h"}]
    allowed = pod("host-allowed", "cat /h/file; echo more > /h/other", volumes=volumes)
    allowed["spec"]["containers"][0]["volumeMounts"] = [{"name": "h", "mountPath": "/h"}]
    bridge.apply(refused, allowed)
    assert "hostPath" in bridge.wait_phase("host-refused", "Failed")["status"]["message"]
    bridge.wait_phase("host-allowed", "Succeeded")
    assert bridge.logs("host-allowed") == "from-host\n"
    assert bridge.clusters["alpha"].run(f"cat {shared}/other").stdout == "more\n"


def test_an_image_that_is_not_mapped_is_refused(bridge: World) -> None:
    thing = pod("unmapped", "true")
    thing["spec"]["containers"][0]["image"] = "nginx:latest"
    bridge.apply(thing)
    refused = bridge.wait_phase("unmapped", "Failed")
    assert refused["status"]["reason"] == "ImageNotMapped"
    assert "nginx:latest" in refused["status"]["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", "workq; touch /tmp/pwned"),
        ("queue", "nosuch"),
        ("walltime", "forever"),
        ("walltime", "$(id)"),
        ("place", "sideways"),
        ("project", "a b"),
    ],
)
def test_bad_annotations_are_refused(bridge: World, name: str, value: str) -> None:
    thing = pod(f"annotated-{name}-{abs(hash(value)) % 10000}", "true")
    thing["metadata"]["annotations"] = {f"hpc-bridge.io/{name}": value}
    bridge.apply(thing)
    refused = bridge.wait_phase(thing["metadata"]["name"], "Failed")
    assert refused["status"]["reason"] == "InvalidAnnotation"
    assert f"hpc-bridge.io/{name}" in refused["status"]["message"]


def test_a_secret_is_in_no_job_script_argument_or_log(bridge: World) -> None:
    canary = "canary-6f1d0c6e"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {"k": canary}}
    thing = pod("hides", 'test -n "$K" && echo has-it; sleep 300')
    thing["spec"]["containers"][0]["env"] = [
        {"name": "K", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "k"}}}
    ]
    bridge.apply(secret, thing)
    running = bridge.wait_phase("hides", "Running")
    until(lambda: "has-it" in bridge.logs("hides"), "the variable is there")
    cluster, folder = bridge.clusters["alpha"], bridge.directory(running["metadata"]["uid"])
    found = cluster.run(f"grep -rl {canary} {folder} || true").stdout.split()
    assert found == []  # secrets/values.json holds it in base64 only
    assert cluster.run(f"grep -l {canary[:-1]}[{canary[-1]}] /proc/*/cmdline 2>/dev/null || true").stdout.split() == []
    assert canary not in cluster.pbs("qstat", "-f", bridge.job_of("hides")).stdout
    assert canary not in bridge.agent.log.read_text()
    assert cluster.run(f"stat -c %a {folder}/secrets {folder}").stdout.split() == ["700", "700"]
    bridge.kubectl("delete", "pod", "hides", "--wait=false")
    bridge.wait_gone("hides")
    assert cluster.run(f"ls {folder}/secrets 2>/dev/null").stdout == ""
