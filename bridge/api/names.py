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
AUTHOR_ANNOTATIONS = (QUEUE, WALLTIME, PROJECT, ACCOUNT, PLACE)

# Annotations the bridge writes; display only, never read back as truth.
JOB_ID = STATUS_PREFIX + "job-id"
CLUSTER = STATUS_PREFIX + "cluster"

# Taints and conditions of the virtual nodes.
CLUSTER_TAINT = PREFIX + "cluster"
UNREACHABLE_TAINT = PREFIX + "unreachable"
CLUSTER_REACHABLE = "ClusterReachable"

NODE_TYPE_LABEL = "type"
NODE_TYPE = "virtual-kubelet"
CLUSTER_LABEL = PREFIX + "cluster"
EXCLUDE_BALANCERS_LABEL = "node.kubernetes.io/exclude-from-external-load-balancers"
ZONE_LABEL = "topology.kubernetes.io/zone"
HOSTNAME_LABEL = "kubernetes.io/hostname"
OS_LABEL = "kubernetes.io/os"
ARCH_LABEL = "kubernetes.io/arch"
