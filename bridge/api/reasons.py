"""Reasons that users see in pod statuses, container states and Events: one place, so that the docs list all of them.

Kubernetes' own reasons are used where it has one for the case; those that start with PBS are ours. `MEANING` is the
source of docs/reference/reasons.md.
"""

from __future__ import annotations

# Waiting containers
PENDING_SUBMIT = "ContainerCreating"
POD_INITIALIZING = "PodInitializing"
PBS_QUEUED = "PBSQueued"
PBS_BACKLOG = "PBSBacklog"
PBS_HELD = "PBSHeld"
SITE_FAULT = "PBSSiteFault"
PBS_SUSPENDED = "PBSSuspended"
UNSATISFIABLE = "PBSUnsatisfiable"
CONFIG_ERROR = "CreateContainerConfigError"
CRASH_LOOP = "CrashLoopBackOff"
CLUSTER_UNREACHABLE = "ClusterUnreachable"
DAEMON = "DaemonSetOnVirtualNode"

# Failed pods, and those that wait because their controller would replace them at once
UNSUPPORTED = "UnsupportedPodField"
INVALID_ANNOTATION = "InvalidAnnotation"
OS_UNSUPPORTED = "PodOSNotSupported"
SYSCTL_FORBIDDEN = "SysctlForbidden"
NO_API_ADDRESS = "NoAPIServerAddress"
IMAGE_NOT_MAPPED = "ImageNotMapped"
ACCOUNT_MISSING = "NoClusterAccount"
PBS_REJECTED = "PBSRejected"
PBS_VANISHED = "PBSJobVanished"
PBS_WALLTIME = "PBSWalltimeExceeded"
PBS_DELETED = "PBSJobDeleted"
PBS_REQUEUED = "PBSJobRequeued"
PBS_START_FAILED = "PBSStartFailed"
NUMA_SPLIT = "NUMASplit"
SPOOL_FULL = "SpoolFull"
DEADLINE = "DeadlineExceeded"
DISRUPTION_TARGET_REASON = "TerminationByKubelet"

# Events
SUBMITTED = "PBSSubmitted"
WAITING = "PBSWaiting"
KILLING = "Killing"
BACK_OFF = "BackOff"
AGENT_ERROR = "AgentError"
STATUS_REFUSED = "StatusRefused"
STATUS_UNREADABLE = "StatusUnreadable"
CHANGE_IGNORED = "ChangeNotApplied"
ROUTED = "Routed"
ROUTE_WAITING = "RoutingWaits"
ROUTE_FAILED = "RoutingFailed"

MEANING: dict[str, str] = {
    PENDING_SUBMIT: "The pod is bound to the virtual node; its job has not been submitted yet.",
    POD_INITIALIZING: "The job runs; init containers have not finished.",
    PBS_QUEUED: "The job waits in PBS. The message is PBS's own comment.",
    PBS_BACKLOG: "A limit on the number of jobs is reached; the bridge submits when PBS accepts again.",
    PBS_HELD: "The job is held in PBS; `qrls` (or its holder) lets it go on. The pod fails when it is held for longer "
    "than the settings allow (`heldLimit`).",
    SITE_FAULT: "A program of the site fails on the submission, such as a hook; the message is PBS's own text. It is "
    "tried again after growing pauses, and the pod fails when that goes on for longer than the settings allow "
    "(`siteFaultLimit`). The site's admin has to mend it.",
    PBS_SUSPENDED: "PBS suspended the running job; it goes on when PBS resumes it.",
    UNSATISFIABLE: "The pod asks for more than any host has; the message gives both numbers. It is submitted when a "
    "larger host appears, and fails when none does for as long as the settings say (`unsatisfiableAfter`).",
    CONFIG_ERROR: "A ConfigMap, Secret or key that the pod needs does not exist; the pod goes on when it appears.",
    CRASH_LOOP: "The container ended and is restarted after a growing pause.",
    CLUSTER_UNREACHABLE: "The cluster cannot be reached now; the state shown is the last one known.",
    DAEMON: "DaemonSet pods serve a node's machine; they are never submitted. `hpc-bridge doctor` "
    "gives the patch that keeps a DaemonSet off virtual nodes.",
    UNSUPPORTED: "The pod uses a field that the bridge cannot honour; the message names each and what to do.",
    INVALID_ANNOTATION: "An hpc-bridge.io annotation has a value that may not be passed to PBS.",
    OS_UNSUPPORTED: "The pod is for another operating system; compute nodes run Linux.",
    SYSCTL_FORBIDDEN: "The pod wants to change the kernel's settings, which a job cannot.",
    NO_API_ADDRESS: "The pod has a ServiceAccount of its own, so it probably talks to the API server, and the settings "
    "of the cluster give no address for that (`apiServer`). It is submitted all the same.",
    IMAGE_NOT_MAPPED: "The cluster's settings map this image to no runtime; ask the admin, or use a mapped image.",
    ACCOUNT_MISSING: "No account of the cluster serves the pod's namespace.",
    PBS_REJECTED: "PBS refused the job; the message is PBS's own text. The pod fails; where its controller would "
    "replace it at once (ReplicaSet, StatefulSet) it waits, and is submitted again every five minutes.",
    PBS_VANISHED: "PBS no longer knows the job and it left no final status: killed with its node, or purged.",
    PBS_WALLTIME: "The job reached its walltime. Ask for more with the annotation hpc-bridge.io/walltime.",
    PBS_DELETED: "The job was deleted in PBS by somebody else (qdel by its user or an operator, preemption).",
    PBS_REQUEUED: "PBS queued the job again after it had run. A pod never runs twice, so it ended.",
    NUMA_SPLIT: "The pod requires one NUMA domain (`hpc-bridge.io/numa: require`) and its job was given CPUs of "
    "several; it was handed back before anything was started. The message has the kernel's lists. Ask for fewer CPUs, "
    "or let the site's admin confine jobs to cpusets (pbs_cgroups).",
    PBS_START_FAILED: "PBS started the job but the pod could not be set up on the compute node.",
    SPOOL_FULL: "The cluster's file system takes no more of the pod's output: it is full, or the account's quota is "
    "used up.",
    DEADLINE: "The pod ran longer than its activeDeadlineSeconds.",
    SUBMITTED: "The pod's job was accepted by PBS; the message has its id and queue.",
    WAITING: "PBS's reason why the job waits has changed.",
    KILLING: "The pod is being stopped.",
    AGENT_ERROR: "The agent failed on this pod, or the API server refused what it asked; it tries again after a pause.",
    STATUS_REFUSED: "The API server refuses the pod's status, so that what is shown may be old. It is sent again "
    "later, with less in it; the job itself goes on, and can be deleted.",
    STATUS_UNREADABLE: "What podrun wrote of the pod cannot be read: what is shown may be old. The job goes on.",
    CHANGE_IGNORED: "A change of the pod's spec that a running job cannot follow; the message says what was changed.",
    BACK_OFF: "A container of the pod ends again and again; it is restarted after a growing pause.",
    ROUTED: "The pod may run where the message says, which also says why and what it was compared with.",
    ROUTE_WAITING: "It is not decided yet where the pod may run; the message says what it waits for.",
    ROUTE_FAILED: "The API server refused to release the pod, or something about it was unexpected; it is tried again "
    "after pauses that grow to ten minutes, and the other pods of its rule go on.",
}
