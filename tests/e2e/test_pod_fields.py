"""The live API server's own schema of PodSpec: every field is honoured, refused or ignored, and a pod can be written
to it in each way that the bridge honours."""

from __future__ import annotations

import json
from pathlib import Path

from openapi_fields import paths, read, types

from bridge.api.settings import Cluster
from bridge.plan import plan
from bridge.plan.fields import TABLE, is_group, verdict
from bridge.testbed.control_plane import ControlPlane

FIXTURE = Path(__file__).parents[1] / "unit/fixtures/podspec-1.36.txt"
CLUSTER = Cluster.model_validate(
    {
        "name": "alpha",
        "accounts": [{"transport": {"type": "local"}, "sharedTrust": True}],
        "images": [{"image": "busybox:*"}],
    }
)
EVERYTHING = """
apiVersion: v1
kind: Pod
metadata: {name: everything, labels: {app: x}, annotations: {hpc-bridge.io/walltime: 10m}}
spec:
  restartPolicy: OnFailure
  activeDeadlineSeconds: 60
  hostname: own
  nodeName: pbs-nowhere
  initContainers:
    - {name: first, image: "busybox:1", command: ["true"]}
  containers:
    - name: main
      image: busybox:1
      command: [/bin/sh]
      args: [-c, echo $(A)]
      workingDir: /data
      ports: [{containerPort: 80}]
      env:
        - {name: A, value: x}
        - {name: B, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
        - {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
        - {name: D, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}
      envFrom: [{configMapRef: {name: cm, optional: true}, prefix: P_}]
      resources: {limits: {cpu: 1500m, memory: 64Mi}}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        runAsNonRoot: true
        capabilities: {drop: [ALL]}
        seccompProfile: {type: RuntimeDefault}
      volumeMounts:
        - {name: data, mountPath: /data, subPath: a}
        - {name: own, mountPath: /own, readOnly: true}
  volumes:
    - {name: data, emptyDir: {sizeLimit: 1Gi}}
    - {name: own, downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}
    - {name: cm, configMap: {name: cm, optional: true}}
    - {name: sec, secret: {secretName: s, optional: true}}
"""


def test_every_field_of_the_live_schema_has_a_row(control_plane: ControlPlane) -> None:
    schema = types(json.loads(control_plane.kubectl("get", "--raw", "/openapi/v3/api/v1").stdout))
    live = paths(schema)
    assert [path for path in live if verdict(path) is None and not is_group(path)] == []
    assert [path for path in TABLE if path not in live] == []
    assert len(live) > 1000
    version = json.loads(control_plane.kubectl("version", "-o", "json").stdout)["serverVersion"]
    if version["minor"] == "36":  # then the fixture, from which unit tests work, is this server's schema
        assert schema == read(FIXTURE.read_text())


def test_nothing_that_the_api_server_fills_in_is_refused(control_plane: ControlPlane) -> None:
    try:
        control_plane.kubectl("apply", "-f", "-", input=EVERYTHING)
        pod = json.loads(control_plane.kubectl("get", "pod", "everything", "-o", "json").stdout)
        planned = plan(pod, CLUSTER)
    finally:
        control_plane.kubectl("delete", "pod", "everything", "--ignore-not-found", "--grace-period=0", "--force")
    assert planned.message == ""
    assert [ref.kind for ref in planned.inputs if not ref.optional] == ["Token", "ConfigMap"]  # kube-api-access
    assert planned.uid == pod["metadata"]["uid"]
