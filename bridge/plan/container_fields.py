"""What happens with each field of a container. Paths are relative to `containers[]` and `initContainers[]`."""

from __future__ import annotations

from bridge.plan.verdicts import QUANTITY, Honoured, Ignored, Refused, Verdict

_ENV = "unit/test_plan_env.py::test_"
_RUN = "unit/test_plan_containers.py::test_"
_MOUNT = "unit/test_plan_mounts.py::test_"
_SIZE = "unit/test_resources.py::test_"
_KEY_REF = ("key", "name")
_PROBE = "probes do not run yet; leave the {} out, or let the program end when it is unhealthy"
_USER = "a job always runs as the cluster account's own user and group; leave it out (runAsNonRoot: true is fine)"
_CONFINED = ({"type": "RuntimeDefault"}, {"type": "Unconfined"})


def _env() -> dict[str, Verdict]:
    return {
        "env[]": Honoured(_ENV + "values", dict, ("name",)),
        "env[].name": Honoured(_ENV + "values", str),
        "env[].value": Honoured(_ENV + "values", str),
        "env[].valueFrom": Honoured(_ENV + "config_map_key"),
        "env[].valueFrom.configMapKeyRef": Honoured(_ENV + "config_map_key", dict, _KEY_REF),
        "env[].valueFrom.configMapKeyRef.key": Honoured(_ENV + "config_map_key", str),
        "env[].valueFrom.configMapKeyRef.name": Honoured(_ENV + "config_map_key", str),
        "env[].valueFrom.configMapKeyRef.optional": Honoured(_ENV + "optional_references", bool),
        "env[].valueFrom.secretKeyRef": Honoured(_ENV + "secret_key", dict, _KEY_REF),
        "env[].valueFrom.secretKeyRef.key": Honoured(_ENV + "secret_key", str),
        "env[].valueFrom.secretKeyRef.name": Honoured(_ENV + "secret_key", str),
        "env[].valueFrom.secretKeyRef.optional": Honoured(_ENV + "optional_references", bool),
        "env[].valueFrom.fieldRef": Honoured(_ENV + "fields", dict, ("fieldPath",)),
        "env[].valueFrom.fieldRef.apiVersion": Ignored("There is one version of fieldPath, v1."),
        "env[].valueFrom.fieldRef.fieldPath": Honoured(_ENV + "fields", str),
        "env[].valueFrom.fileKeyRef": Refused(
            "variables from files of a volume are not supported; read the file in the command",
            tried={"key": "k", "path": "p", "volumeName": "v"},
        ),
        "env[].valueFrom.resourceFieldRef": Honoured(_ENV + "container_resources", dict, ("resource",)),
        "env[].valueFrom.resourceFieldRef.containerName": Honoured(_ENV + "container_resources", str),
        "env[].valueFrom.resourceFieldRef.divisor": Honoured(_ENV + "container_resources", QUANTITY),
        "env[].valueFrom.resourceFieldRef.resource": Honoured(_ENV + "container_resources", str),
        "envFrom[]": Honoured(_ENV + "whole_objects"),
        "envFrom[].prefix": Honoured(_ENV + "whole_objects", str),
        "envFrom[].configMapRef": Honoured(_ENV + "whole_objects", dict, ("name",)),
        "envFrom[].configMapRef.name": Honoured(_ENV + "whole_objects", str),
        "envFrom[].configMapRef.optional": Honoured(_ENV + "optional_references", bool),
        "envFrom[].secretRef": Honoured(_ENV + "whole_objects", dict, ("name",)),
        "envFrom[].secretRef.name": Honoured(_ENV + "whole_objects", str),
        "envFrom[].secretRef.optional": Honoured(_ENV + "optional_references", bool),
    }


def _run() -> dict[str, Verdict]:
    return {
        "name": Honoured(_RUN + "order_and_kinds", str),
        "image": Honoured(_RUN + "images", str),
        "command[]": Honoured(_RUN + "argv", str),
        "args[]": Honoured(_RUN + "argv", str),
        "workingDir": Honoured(_RUN + "working_directory", str),
        "terminationMessagePath": Honoured(_RUN + "termination_message", str),
        "terminationMessagePolicy": Honoured(_RUN + "termination_message", str),
        "imagePullPolicy": Ignored("No image is pulled: the admin maps images to files or to the host's programs."),
        "lifecycle": Refused(
            "hooks and stop signals do not run yet; do the work in the command, and trap SIGTERM",
            tried={"preStop": {"exec": {"command": ["true"]}}},
        ),
        "livenessProbe": Refused(_PROBE.format("livenessProbe"), tried={"tcpSocket": {"port": 1}}),
        "readinessProbe": Refused(_PROBE.format("readinessProbe"), tried={"tcpSocket": {"port": 1}}),
        "startupProbe": Refused(_PROBE.format("startupProbe"), tried={"tcpSocket": {"port": 1}}),
        "ports[]": Ignored("A declaration only: programs listen on the compute node's own network whatever it says."),
        "ports[].hostPort": Refused(
            "the virtual node's address is the agent's, so no host port leads to the job; leave hostPort out", tried=80
        ),
        "resizePolicy[]": Ignored("PBS fixes a job's resources when it starts, so containers are never resized."),
        "resources": Honoured(_SIZE + "chunk"),
        "resources.limits{}": Honoured(_SIZE + "chunk"),
        "resources.requests{}": Honoured(_SIZE + "chunk"),
        "resources.claims[]": Refused(
            "dynamic resource allocation does not reach PBS; ask for an extended resource", tried=[{"name": "gpu"}]
        ),
        "restartPolicy": Refused(
            "containers cannot have a restart policy of their own (no native sidecars yet); run a second app container",
            tried="Always",
        ),
        "restartPolicyRules[]": Refused(
            "restart rules do not work yet; use the pod's restartPolicy", tried=[{"action": "Restart"}]
        ),
        "stdin": Refused("attach does not work yet, so nothing could write to it; set stdin: false", (False,)),
        "stdinOnce": Refused("attach does not work yet; set stdinOnce: false", (False,)),
        "tty": Refused("containers get no terminal yet; set tty: false", (False,)),
    }


def _mounts() -> dict[str, Verdict]:
    return {
        "volumeMounts[]": Honoured(_MOUNT + "paths", dict, ("name", "mountPath")),
        "volumeMounts[].name": Honoured(_MOUNT + "paths", str),
        "volumeMounts[].mountPath": Honoured(_MOUNT + "paths", str),
        "volumeMounts[].readOnly": Honoured(_MOUNT + "read_only", bool),
        "volumeMounts[].subPath": Honoured(_MOUNT + "sub_paths", str),
        "volumeMounts[].subPathExpr": Honoured(_MOUNT + "sub_paths", str),
        "volumeMounts[].mountPropagation": Refused(
            "mounts made in a container are seen in that container alone; leave mountPropagation out",
            ("None",),
            tried="Bidirectional",
        ),
        "volumeMounts[].recursiveReadOnly": Refused(
            "it cannot be guaranteed for mounts below the volume; use IfPossible or Disabled",
            ("Disabled", "IfPossible"),
            tried="Enabled",
        ),
        "volumeDevices[]": Refused(
            "a job cannot have block devices; use a volume with a file system",
            tried=[{"name": "v", "devicePath": "/dev/x"}],
        ),
    }


def _security() -> dict[str, Verdict]:
    at = "securityContext."
    return {
        "securityContext": Honoured(_RUN + "read_only_root"),
        at + "readOnlyRootFilesystem": Honoured(_RUN + "read_only_root", bool),
        at + "allowPrivilegeEscalation": Refused(
            "a job cannot gain privileges; set allowPrivilegeEscalation: false or leave it out", (False,)
        ),
        at + "appArmorProfile": Refused(
            "the site alone confines jobs; use type RuntimeDefault or leave it out",
            _CONFINED,
            tried={"type": "Localhost", "localhostProfile": "x"},
        ),
        at + "capabilities": Ignored("Containers of an ordinary user have no capabilities that could be dropped."),
        at + "capabilities.add[]": Refused("a job has no capabilities to give; leave add out", tried=["SYS_ADMIN"]),
        at + "privileged": Refused("a job is never privileged; set privileged: false or leave it out", (False,)),
        at + "procMount": Refused("/proc is always masked; use Default", ("Default",), tried="Unmasked"),
        at + "runAsUser": Refused(_USER, tried=1000),
        at + "runAsGroup": Refused(_USER, tried=1000),
        at + "runAsNonRoot": Ignored("Always so: a job of the account can never become root, in any container."),
        at + "seLinuxOptions": Refused("a job keeps the site's SELinux context; leave it out", tried={"level": "s0"}),
        at + "seccompProfile": Refused(
            "profiles are not loaded on compute nodes; use type RuntimeDefault or leave it out",
            _CONFINED,
            tried={"type": "Localhost", "localhostProfile": "x"},
        ),
        at + "windowsOptions": Refused("compute nodes run Linux; leave it out", tried={"hostProcess": True}),
    }


CONTAINER: dict[str, Verdict] = _env() | _run() | _mounts() | _security()
