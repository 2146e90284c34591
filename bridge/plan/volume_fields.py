"""What happens with each field of a volume. Paths are relative to `volumes[]`."""

from __future__ import annotations

from bridge.plan.verdicts import QUANTITY, Honoured, Ignored, Refused, Verdict

_FILES = "unit/test_plan_volumes.py::test_"
_MOUNT = "unit/test_plan_mounts.py::test_"

# Volume types that would need the node to attach or mount something, which a job's user may not do.
_FOREIGN = (
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "iscsi",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
)


def _items(at: str, test: str) -> dict[str, Verdict]:
    return {
        at + "items[]": Honoured(test, dict, ("key", "path")),
        at + "items[].key": Honoured(test, str),
        at + "items[].path": Honoured(test, str),
        at + "items[].mode": Honoured(_FILES + "modes", int),
    }


def _object(at: str, name: str, test: str) -> dict[str, Verdict]:
    return {
        at.rstrip("."): Honoured(test, dict, (name,)),
        at + name: Honoured(test, str),
        at + "optional": Honoured(_FILES + "optional", bool),
        **_items(at, _FILES + "items"),
    }


def _downward(at: str, what: str) -> dict[str, Verdict]:
    test = _FILES + "downward_api"
    return {
        at.rstrip("."): Honoured(test),
        at + "items[]": Honoured(test, dict, ("path",)),
        at + "items[].path": Honoured(test, str),
        at + "items[].mode": Honoured(_FILES + "modes", int),
        at + "items[].fieldRef": Honoured(test, dict, ("fieldPath",)),
        at + "items[].fieldRef.apiVersion": Ignored(f"{what} know one version of fieldPath, v1."),
        at + "items[].fieldRef.fieldPath": Honoured(test, str),
        at + "items[].resourceFieldRef": Honoured(test, dict, ("resource", "containerName")),
        at + "items[].resourceFieldRef.containerName": Honoured(test, str),
        at + "items[].resourceFieldRef.divisor": Honoured(test, QUANTITY),
        at + "items[].resourceFieldRef.resource": Honoured(test, str),
    }


def _projected() -> dict[str, Verdict]:
    at, test = "projected.sources[].", _FILES + "api_access"
    return {
        "projected": Honoured(test),
        "projected.defaultMode": Honoured(_FILES + "modes", int),
        "projected.sources[]": Honoured(test),
        **_object(at + "configMap.", "name", test),
        **_object(at + "secret.", "name", test),
        **_downward(at + "downwardAPI.", "Projected files"),
        at + "serviceAccountToken": Honoured(test, dict, ("path",)),
        at + "serviceAccountToken.audience": Honoured(_FILES + "token_references", str),
        at + "serviceAccountToken.expirationSeconds": Honoured(_FILES + "token_references", int),
        at + "serviceAccountToken.path": Honoured(test, str),
        at + "clusterTrustBundle": Refused(
            "trust bundles are not fetched; put the certificates into a ConfigMap", tried={"path": "ca.pem"}
        ),
        at + "podCertificate": Refused(
            "pod certificates are not requested; mount a Secret with the certificate",
            tried={"keyType": "ED25519", "signerName": "example.com/x"},
        ),
    }


def _foreign(kind: str) -> Refused:
    return Refused(
        f"{kind} volumes cannot be attached to a job; copy the data, or use a hostPath of the cluster",
        tried={"readOnly": True},
    )


VOLUME: dict[str, Verdict] = {
    "name": Honoured(_MOUNT + "paths", str),
    **_object("configMap.", "name", _FILES + "config_map"),
    "configMap.defaultMode": Honoured(_FILES + "modes", int),
    **_object("secret.", "secretName", _FILES + "secret"),
    "secret.defaultMode": Honoured(_FILES + "modes", int),
    **_downward("downwardAPI.", "Files of a downwardAPI volume"),
    "downwardAPI.defaultMode": Honoured(_FILES + "modes", int),
    **_projected(),
    "emptyDir": Honoured(_FILES + "empty_dir"),
    "emptyDir.medium": Refused(
        "huge pages do not exist in a job; use Memory or leave medium out", ("Memory",), tried="HugePages"
    ),
    "emptyDir.sizeLimit": Ignored(
        "The quota of the spool's file system bounds it instead; with medium Memory it bounds the memory that is used."
    ),
    "hostPath": Honoured(_MOUNT + "host_paths", dict, ("path",)),
    "hostPath.path": Honoured(_MOUNT + "host_paths", str),
    "hostPath.type": Honoured(_MOUNT + "host_paths", str),
    "ephemeral": Refused(
        "no storage is provisioned for jobs; use emptyDir", tried={"volumeClaimTemplate": {"spec": {}}}
    ),
    "gitRepo": Refused("gitRepo is gone from Kubernetes; clone in an init container", tried={"repository": "x"}),
    "image": Refused(
        "image volumes are not pulled; put the files where a hostPath may reach", tried={"reference": "x"}
    ),
    "nfs": Refused(
        "a job cannot mount NFS; if the cluster has that file system, ask its admin to allow it as hostPath",
        tried={"server": "s", "path": "/p"},
    ),
    "persistentVolumeClaim": Refused(
        "persistent volumes do not exist on the cluster; use a hostPath that its admin allows, or copy the data",
        tried={"claimName": "c"},
    ),
    **{kind: _foreign(kind) for kind in _FOREIGN},
}
