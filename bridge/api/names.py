"""Names in Kubernetes objects that belong to hpc-bridge: annotations and labels people write, and those it writes.

People write under `hpc-bridge.io/`; the bridge itself writes only under `status.hpc-bridge.io/`, so that an admission
policy can keep the second prefix for the agent.
"""

from __future__ import annotations

PREFIX = "hpc-bridge.io/"
STATUS_PREFIX = "status.hpc-bridge.io/"

# Annotations a pod author may write; docs/reference/annotations.md tells what each means.
QUEUE = PREFIX + "queue"
WALLTIME = PREFIX + "walltime"
PROJECT = PREFIX + "project"
ACCOUNT = PREFIX + "account"
PLACE = PREFIX + "place"
NUMA = PREFIX + "numa"
AUTHOR_ANNOTATIONS = (QUEUE, WALLTIME, PROJECT, ACCOUNT, PLACE, NUMA)

# Labels a pod author may write; the second is that of k8shpc.
ROUTE = PREFIX + "route"
TRANSFER = "hpctransfer"

# The scheduling gate that the admission policy adds, and the label of namespaces all of whose pods get it.
GATE = PREFIX + "routing"
ROUTING_LABEL = PREFIX + "routing"
AUTHOR_LABELS = (ROUTE, TRANSFER, ROUTING_LABEL)

# Annotations the bridge writes; these are for display only, never read back as truth.
JOB_ID = STATUS_PREFIX + "job-id"
CLUSTER = STATUS_PREFIX + "cluster"
NUMA_SPAN = STATUS_PREFIX + "numa"
ROUTED = STATUS_PREFIX + "route"
# Read back where it stands beside `submitted`: the account whose job it is, so that changed settings move no pod.
BOUND_ACCOUNT = STATUS_PREFIX + "account"
# Read back: the UID of the pod that was submitted, so that a copy of its YAML says nothing of the copy.
SUBMITTED = STATUS_PREFIX + "submitted"

# Annotations of the virtual nodes, read back: what of the Node is the bridge's, so that it can be taken away again.
OWN_LABELS = STATUS_PREFIX + "labels"
OWN_RESOURCES = STATUS_PREFIX + "resources"

# Taints and conditions of the virtual nodes.
CLUSTER_TAINT = PREFIX + "cluster"
UNREACHABLE_TAINT = PREFIX + "unreachable"
CLUSTER_REACHABLE = "ClusterReachable"

# Label of a DaemonSet that is to be let alone: no nodeAffinity is added that keeps it off virtual nodes.
DAEMON_SET_LABEL = PREFIX + "daemonset"
DAEMON_SET_ALLOWED = "allowed"

NODE_TYPE_LABEL = "type"
NODE_TYPE = "virtual-kubelet"
CLUSTER_LABEL = PREFIX + "cluster"
EXCLUDE_BALANCERS_LABEL = "node.kubernetes.io/exclude-from-external-load-balancers"
ZONE_LABEL = "topology.kubernetes.io/zone"
HOSTNAME_LABEL = "kubernetes.io/hostname"
OS_LABEL = "kubernetes.io/os"
ARCH_LABEL = "kubernetes.io/arch"

# Source of docs/reference/annotations.md.
MEANING: dict[str, str] = {
    QUEUE: "The PBS queue, one of those that the cluster's settings list under `queues` (or its `queue`).",
    WALLTIME: "How long the pod may run, where it sets no `activeDeadlineSeconds`: seconds, `90s`, `15m`, `2h`, "
    "`1h30m` or `HH:MM:SS`. The grace period and a margin are added to it for PBS.",
    PROJECT: "The PBS project (`qsub -P`), where the settings allow pods to choose (`allowProjectAnnotation`).",
    ACCOUNT: "The accounting string (`qsub -A`), where the settings allow pods to choose.",
    PLACE: "How PBS places the job: `free`, `pack`, `scatter` or `vscatter`, then `:excl`, `:exclhost` or `:shared`, "
    "then `:group=RESOURCE`; as far as the cluster's settings allow it (`placements`: left out, nothing exclusive).",
    ROUTE: "Where a pod may run: `can` (local cluster or HPC), `must` (HPC only), `never` (local cluster only). In any "
    "namespace, `can` and `must` have the pod routed; RoutingRules say where to.",
    TRANSFER: "The label of k8shpc, on pods or on a Job: `can` (goes to HPC if it asks for more than 70 % of the "
    "biggest local node), `cooperative` (if no local node can take it now), `must` (always).",
    ROUTING_LABEL: "As label of a namespace, with value `enabled`: all of its pods are routed. As scheduling gate of a "
    "pod, set by the admission policy or in a template: it is still to be decided where the pod goes.",
    DAEMON_SET_LABEL: "Label of a DaemonSet, with value `allowed`: the admission policy does not keep it off virtual "
    "nodes. Its pods there are never run, and wait.",
    ROUTED: "Where the pod was sent and why: the choice, the runners-up and each refusal. For display.",
    NUMA: "How much the pod minds being spread over several NUMA domains of its host. `ignore`: not. `prefer`: it "
    "counts when clusters are compared. `require`: the pod runs within one domain, or fails with `NUMASplit` before "
    "anything is started.",
    NUMA_SPAN: "On how many NUMA domains the job came to be, how that is known (`exec_vnode`: PBS's vnodes are "
    "domains; `cpuset`: podrun saw the job confined), where, and how many had been estimated. Only for pods that have "
    "`hpc-bridge.io/numa: prefer` or `require`, or were routed. For display.",
    JOB_ID: "The id of the pod's PBS job. For display: changing it changes nothing.",
    CLUSTER: "The cluster the job is on. For display.",
    BOUND_ACCOUNT: "The account of the cluster that the job was submitted under. The pod belongs to it until it ends.",
    SUBMITTED: "The pod's own UID once its job was submitted. Should the cluster know nothing of it any more, the pod "
    "fails rather than run a second time. In a copy of the pod it means nothing.",
    OWN_LABELS: "Of a virtual node: names of the labels that the settings gave it. Those that they give no more are "
    "taken away.",
    OWN_RESOURCES: "Of a virtual node: names of the resources that the bridge offers. Those that it offers no more are "
    "taken away; others' stay.",
    CLUSTER_TAINT: "As label of a virtual node: its cluster. As taint `hpc-bridge.io/cluster=NAME:NoSchedule`: only "
    "pods that tolerate it come there.",
    UNREACHABLE_TAINT: "Taint (NoSchedule) of a virtual node whose cluster cannot be reached now. Pods there go on.",
}
