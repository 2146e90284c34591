"""What happens with each field of a pod's spec outside containers and volumes."""

from __future__ import annotations

from bridge.api import reasons
from bridge.plan.verdicts import QUANTITY, Honoured, Ignored, Refused, Verdict

_PLAN = "unit/test_plan.py::test_"
_SIZE = "unit/test_resources.py::test_"
_USER = "files and processes of a job belong to the cluster account's user and groups; leave it out"
_CONFINED = ({"type": "RuntimeDefault"}, {"type": "Unconfined"})


def _placement() -> dict[str, Verdict]:
    return {
        "affinity": Ignored("kube-scheduler has applied it when the pod reaches the node; PBS picks the hosts."),
        "nodeName": Ignored("It is how the pod came here: the scheduler's answer."),
        "nodeSelector{}": Ignored("kube-scheduler has matched it against the virtual node's labels."),
        "tolerations[]": Ignored(
            "The scheduler and the taint manager act on them, not the node. The limit of 300 s for lost nodes, which "
            "Kubernetes adds, is taken away. A limit that you write yourself, also one without a key, stays, and may "
            "end the pod while the agent is away."
        ),
        "topologySpreadConstraints[]": Ignored(
            "kube-scheduler has spread the pods over nodes; PBS spreads over hosts."
        ),
        "schedulerName": Ignored("Whichever scheduler bound the pod, its work is done."),
        "schedulingGates[]": Ignored("A pod that is bound has no gates left."),
        "schedulingGroup": Refused(
            "pods of one group would not start together in PBS; leave schedulingGroup out", tried={"podGroupName": "g"}
        ),
        "preemptionPolicy": Ignored("Preemption among pods is kube-scheduler's; among jobs it is PBS's."),
        "priority": Ignored("The number orders pods for the scheduler; jobs get theirs from priorityClassName."),
        "priorityClassName": Honoured(_SIZE + "priority", str),
        "runtimeClassName": Ignored(
            "Admission has merged the class's selector, tolerations and overhead; the image decides the runtime."
        ),
        "overhead{}": Honoured(_SIZE + "overhead", QUANTITY),
        "resourceClaims[]": Refused(
            "dynamic resource allocation does not reach PBS; ask for an extended resource instead",
            tried=[{"name": "gpu"}],
        ),
        "resources": Refused(
            "resources of the whole pod are not supported; give each container its own", tried={"limits": {"cpu": "1"}}
        ),
    }


def _life() -> dict[str, Verdict]:
    return {
        "activeDeadlineSeconds": Honoured(_SIZE + "walltime", int),
        "terminationGracePeriodSeconds": Honoured(_PLAN + "grace_and_deadline", int),
        "restartPolicy": Honoured(_PLAN + "restart_policy", str),
        "readinessGates[].conditionType": Honoured(
            "e2e/test_lifecycle.py::test_readiness_gates_of_others_are_respected", str
        ),
        "serviceAccountName": Honoured("unit/test_plan_volumes.py::test_token_references", str),
        "serviceAccount": Ignored("The old name of serviceAccountName, which the API server keeps equal."),
        "automountServiceAccountToken": Ignored(
            "Admission has added the token's volume, or not, before the pod is bound."
        ),
        "imagePullSecrets[]": Ignored("Nothing is pulled from a registry, so no credentials are used."),
        "enableServiceLinks": Ignored(
            "No variables of Services are ever set, because compute nodes have no route to cluster IPs; those of the "
            "API server follow from the setting `apiServer`."
        ),
        "ephemeralContainers[]": Ignored(
            "kubectl debug does not work in a job: the container waits for ever, and its status and an Event say so. "
            "Run the tool in a pod of its own."
        ),
        "os": Refused(
            "compute nodes run Linux", ({"name": "linux"},), tried={"name": "windows"}, reason=reasons.OS_UNSUPPORTED
        ),
    }


def _network() -> dict[str, Verdict]:
    return {
        "hostname": Honoured(_PLAN + "host_name", str),
        "hostnameOverride": Honoured(_PLAN + "host_name", str),
        "subdomain": Ignored("It only makes a DNS name in the cluster's zone, which jobs do not resolve."),
        "setHostnameAsFQDN": Refused("a job has no name in the cluster's DNS zone; leave it out", (False,)),
        "dnsPolicy": Refused(
            "jobs resolve names as the compute node does; leave dnsPolicy out",
            ("ClusterFirst", "ClusterFirstWithHostNet", "Default"),
            tried="None",
        ),
        "dnsConfig": Refused(
            "jobs resolve names as the compute node does; leave dnsConfig out", tried={"nameservers": ["192.0.2.1"]}
        ),
        "hostAliases[]": Refused(
            "/etc/hosts is the compute node's; leave hostAliases out", tried=[{"ip": "192.0.2.1", "hostnames": ["x"]}]
        ),
        "hostNetwork": Refused(
            "a job uses its compute node's network in any case, but not the virtual node's address; leave it out",
            (False,),
        ),
        "hostPID": Refused("a job sees its own processes only; leave hostPID out", (False,)),
        "hostIPC": Refused("containers do not share the host's IPC; leave hostIPC out", (False,)),
        "hostUsers": Refused("user namespaces are not set up per pod; leave hostUsers out", (True,), tried=False),
        "shareProcessNamespace": Refused("each container sees its own processes only; leave it out", (False,)),
    }


def _security() -> dict[str, Verdict]:
    at = "securityContext."
    return {
        at + "appArmorProfile": Refused(
            "the site alone confines jobs; use type RuntimeDefault or leave it out",
            _CONFINED,
            tried={"type": "Localhost"},
        ),
        at + "fsGroup": Refused(_USER, tried=1000),
        at + "fsGroupChangePolicy": Ignored("It qualifies fsGroup, which is refused."),
        at + "runAsGroup": Refused(_USER, tried=1000),
        at + "runAsNonRoot": Ignored("Jobs run as an ordinary user of the cluster, so it holds for the whole pod."),
        at + "runAsUser": Refused(_USER + " (runAsNonRoot: true is fine)", tried=1000),
        at + "seLinuxChangePolicy": Ignored("Volumes are never relabelled."),
        at + "seLinuxOptions": Refused("a job keeps the site's SELinux context; leave it out", tried={"level": "s0"}),
        at + "seccompProfile": Refused(
            "profiles are not loaded on compute nodes; use type RuntimeDefault or leave it out",
            _CONFINED,
            tried={"type": "Localhost", "localhostProfile": "x"},
        ),
        at + "supplementalGroups[]": Refused(_USER, tried=[1000]),
        at + "supplementalGroupsPolicy": Refused(
            "the account's groups are always kept; use Merge or leave it out", ("Merge",), tried="Strict"
        ),
        at + "sysctls[]": Refused(
            "a job cannot change the kernel's settings; leave it out",
            tried=[{"name": "kernel.x"}],
            reason=reasons.SYSCTL_FORBIDDEN,
        ),
        at + "windowsOptions": Refused("compute nodes run Linux; leave it out", tried={"hostProcess": True}),
    }


POD: dict[str, Verdict] = _placement() | _life() | _network() | _security()
