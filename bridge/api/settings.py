"""The agent's settings: what an admin writes in bridge.yaml.

Every field says its meaning, unit, what leaving it out does, and why the default is what it is;
docs/reference/configuration.md is generated from here. Durations accept numbers (seconds) or `90s`, `15m`, `2h`,
`1h30m`, `HH:MM:SS`; sizes accept bytes or `512Mi`, `2Gi`.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from bridge.api import places, qsub
from bridge.api.nodelabels import node_labels
from bridge.api.qsub import ByNamespace

# load.py has a sentence for each of these.
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
ABSOLUTE = r"^/"
SPOOL = r"^(~/|/)"
ADDRESS = r"^[^:]+:[0-9]+$"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: object) -> object:
    """Seconds from `90`, `90s`, `1h30m` or `HH:MM:SS`; anything else is left for pydantic to refuse.

    >>> parse_duration("1h30m"), parse_duration("01:00:00"), parse_duration(5)
    (5400, 3600, 5)
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"(\d+[smhd])+", text):
        return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([smhd])", text))
    if re.fullmatch(r"\d+(:[0-5]?\d){1,2}", text):
        seconds = 0
        for part in text.split(":"):
            seconds = seconds * 60 + int(part)
        return seconds
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    raise ValueError(f"{value!r} is not a duration; write seconds, or for example 90s, 15m, 2h, 1h30m, 01:30:00")


def parse_bytes(value: object) -> object:
    """Bytes from `512Mi` or `2G`; anything else is left for pydantic to judge.

    >>> parse_bytes("2Gi"), parse_bytes(5)
    (2147483648, 5)
    """
    match = re.fullmatch(r"([0-9]+)([kMGT]|[KMGT]i)?", value.strip()) if isinstance(value, str) else None
    if match is None:
        if isinstance(value, str):
            raise ValueError(f"{value!r} is not a size; write bytes, or for example 512Mi, 2Gi")
        return value
    number, suffix = match.groups()
    if suffix is None:
        return int(number)
    base = 1024 if suffix.endswith("i") else 1000
    return int(number) * int(base ** ("kmgt".index(suffix[0].lower()) + 1))


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise ValueError(f"{value!r} is not a network; write for example 10.20.0.0/16 ({error})") from None


Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1 << 20)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, populate_by_name=True)


class SshTransport(_Strict):
    """Reach the cluster with the built-in SSH client."""

    type: Literal["ssh"] = "ssh"
    host: str = Field(description="Login node: name or address.")
    port: int = Field(22, ge=1, le=65535, description="Port of sshd on the login node.")
    user: str = Field(description="The account's user name. Jobs run as this user.")
    key_file: str = Field(alias="keyFile", description="Private key, unencrypted, readable by the agent alone.")
    known_hosts_file: str = Field(
        alias="knownHostsFile", description="File in OpenSSH's known_hosts format; a host key not in it is refused."
    )


class CommandTransport(_Strict):
    """Reach the cluster with any command that gives a shell's input and output (OpenSSH, jump hosts, kinit)."""

    type: Literal["command"]
    argv: tuple[str, ...] = Field(
        min_length=1, description="The remote command is appended as one last argument, as `ssh HOST` expects."
    )


class LocalTransport(_Strict):
    """The agent runs on the login node itself."""

    type: Literal["local"]


Transport = Annotated[SshTransport | CommandTransport | LocalTransport, Field(discriminator="type")]


class Account(_Strict):
    """One account on a cluster, and the namespaces whose pods run under it."""

    name: str = Field("default", pattern=DNS_LABEL, description="Name used in messages and metrics.")
    transport: Transport = Field(description="How the account is reached.")
    namespaces: tuple[str, ...] = Field(
        ("*",),
        min_length=1,
        description="Namespaces served, shell patterns allowed. The first account that matches a pod is taken.",
    )
    shared_trust: bool = Field(
        False,
        alias="sharedTrust",
        description="An account is the isolation boundary: pods that share one can read each other's files. Must be "
        "true when more than one namespace, or a pattern, is served.",
    )

    @model_validator(mode="after")
    def _isolated(self) -> Account:
        several = len(self.namespaces) > 1 or any(set(n) & set("*?[") for n in self.namespaces)
        if several and not self.shared_trust:
            raise ValueError(
                "namespaces: the pods of several namespaces would share this account's files; "
                "name a single namespace, or set sharedTrust: true to accept that"
            )
        return self


class ImageRule(_Strict):
    """Maps images to a runtime."""

    image: str = Field(description="Image reference as written in pods; shell patterns allowed (`busybox:*`).")
    runtime: Literal["host", "apptainer"] = Field(
        "host",
        description="`host`: the container runs on the compute node's own /usr, in a root of its own (bubblewrap). "
        "`apptainer`: it runs from the SIF file or image directory at `path`, by apptainer or singularity.",
    )
    path: str | None = Field(
        None,
        pattern=ABSOLUTE,
        description="SIF file or image directory on the compute nodes; needed by, and only for, runtime `apptainer`.",
    )

    @model_validator(mode="after")
    def _placed(self) -> ImageRule:
        if self.runtime == "apptainer" and self.path is None:
            raise ValueError("path: is missing; give the SIF file or image directory (images are not pulled yet)")
        if self.runtime == "host" and self.path is not None:
            raise ValueError("path: is only for runtime: apptainer; the runtime host has no image")
        return self


class HostPath(_Strict):
    """A directory of the cluster that pods may mount with hostPath."""

    path: str = Field(pattern=ABSOLUTE, description="The directory; it and everything below may be mounted.")
    read_only: bool = Field(False, alias="readOnly", description="Only read-only mounts are allowed.")


class ApiServer(_Strict):
    """Where programs in pods reach the API server of Kubernetes."""

    host: str = Field(
        pattern=r"^[A-Za-z0-9.:_-]+$",
        description="Name or address that compute nodes can reach, and that the API server's certificate has.",
    )
    port: int = Field(443, ge=1, le=65535, description="Its port.")


class HostShape(_Strict):
    """Hosts that a queue has when it needs them, though PBS does not show them now."""

    queue: str | None = Field(None, description="The execution queue whose jobs they take. Left out: every queue's.")
    cpu: int = Field(ge=1, le=4096, description="Cores (ncpus) of one host.")
    memory: Bytes = Field(description="Memory of one host, in bytes or as `384Gi`.")
    count: int = Field(1, ge=1, le=10000, description="How many there may be.")
    resources: dict[str, int | str] = Field(
        default_factory=dict, description="Further resources of one host by their name in PBS (`ngpus: 4`)."
    )


def parse_range(value: object) -> object:
    """A pair from one number, which stands for both ends.

    >>> parse_range(0.5), parse_range([0.1, 0.6])
    ((0.5, 0.5), [0.1, 0.6])
    """
    return (value, value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError(f"{list(value)} is not a range; write the smaller number first")
    return value


Share = Annotated[float, Field(ge=0, le=1)]
Shares = Annotated[tuple[Share, Share], BeforeValidator(parse_range), AfterValidator(_ordered)]
Ratio = Annotated[float, Field(ge=0.05, le=1)]
Ratios = Annotated[tuple[Ratio, Ratio], BeforeValidator(parse_range), AfterValidator(_ordered)]


class NumaHosts(_Strict):
    """How many NUMA domains some hosts have, where PBS shows each of them as a single vnode."""

    hosts: str = Field("*", description="Names of hosts as PBS shows them, shell patterns allowed (`node1*`).")
    domains: int = Field(
        ge=1, le=64, description="NUMA domains of each (`lscpu` on it: NUMA node(s)), taken to be of equal size."
    )


class Numa(_Strict):
    """What the estimate of a job's slowdown by NUMA is made of: `1 + m·f·(1/b − 1)` over two domains.

    Each of m, f and b is one number, or a range `[low, high]` where it differs from program to program.
    """

    memory_bound: Shares = Field(
        (0.1, 0.5),
        alias="memoryBound",
        description="m: the share of run time that programs here wait for memory, 0 to 1. The default spans what most "
        "programs do; measure yours with a profiler (`perf stat`, likwid) to narrow the estimate.",
    )
    remote_share: Shares = Field(
        (0.25, 0.5),
        alias="remoteShare",
        description="f: the share of memory accesses that leave their domain when a job is spread over two, 0 to 1. "
        "0.5 is what a program does that knows nothing of NUMA; over more domains the share grows accordingly.",
    )
    remote_bandwidth: Ratios = Field(
        (0.4, 0.7),
        alias="remoteBandwidth",
        description="b: bandwidth to another domain's memory as a part of that to the own, 0.05 to 1 (STREAM under "
        "`numactl`, once for each type of node). The default spans what has been published for two-socket machines.",
    )
    hosts: tuple[NumaHosts, ...] = Field(
        (),
        description="Domains of hosts that PBS shows as one vnode each; the first pattern that matches a host holds. "
        "Left out: PBS's vnodes are the domains, and for hosts of one vnode nothing is known. It decides only what is "
        "estimated: what a job really got is looked up where it runs.",
    )


class Cluster(_Strict):
    """One PBS server, and the virtual node that stands for it."""

    name: str = Field(
        pattern=DNS_LABEL, description="Name of the cluster; the node is `pbs-NAME` unless `node` is given."
    )
    node: str | None = Field(None, description="Name of the virtual node. Left out: `pbs-NAME`.")
    kubelet_port: int = Field(
        0, ge=0, le=65535, alias="kubeletPort", description="Port of this node's kubelet API. 0: any free port."
    )
    accounts: tuple[Account, ...] = Field(min_length=1, description="Accounts on the cluster.")
    spool: str = Field(
        "~/.hpc-bridge",
        pattern=SPOOL,
        description="Directory for pod directories, on a file system that login and compute nodes share.",
    )
    compute_spool: str | None = Field(
        None,
        alias="computeSpool",
        pattern=ABSOLUTE,
        description="The same directory as compute nodes see it. Left out: the same path.",
    )
    pbs_exec: str | None = Field(
        None,
        alias="pbsExec",
        description="Where PBS is installed (its bin/ has qsub). Left out: PBS_EXEC of /etc/pbs.conf, else PATH.",
    )
    python: str = Field("python3", description="Python (3.6 or newer) on the login node.")
    compute_python: str = Field(
        "/usr/bin/python3",
        alias="computePython",
        pattern=ABSOLUTE,
        description="Python (3.6 or newer) on the compute nodes, absolute.",
    )
    setup: tuple[str, ...] = Field(
        (),
        description="Shell lines run once at the start of each job (`module load …`); containers get the environment "
        "that results.",
    )
    queue: str | None = Field(
        None,
        description="Queue for pods that name none. Left out: the server's default. Not `name@server`: a queue of "
        "another server belongs to a cluster of its own.",
    )
    queues: tuple[str, ...] = Field((), description="Queues that pods may name by annotation. Empty: only `queue`.")
    priority_classes: dict[str, int] = Field(
        default_factory=dict, alias="priorityClasses", description="PriorityClass name to qsub -p (-1024 to 1023)."
    )
    projects: dict[str, str] = Field(default_factory=dict, description="Namespace to PBS project (qsub -P).")
    accounting: dict[str, str] = Field(default_factory=dict, description="Namespace to accounting string (qsub -A).")
    groups: dict[str, str] = Field(
        default_factory=dict,
        description="Namespace to the Unix group that PBS accounts to (qsub -W group_list=); `*`: all others.",
    )
    job_resources: dict[str, ByNamespace] = Field(
        default_factory=dict,
        alias="jobResources",
        description="What the site wants with every job as a whole (qsub -l NAME=VALUE), such as `filesystems: "
        "home:eagle` or `storage: gdata/ab1`. A value for all, or one by namespace (`storage: {team-a: gdata/ab1, "
        '"*": scratch}`; no entry: not given).',
    )
    chunk_resources: dict[str, ByNamespace] = Field(
        default_factory=dict,
        alias="chunkResources",
        description="What every job asks of its host besides what the pod does, such as `system: polaris` "
        "(qsub -l select=1:…:system=polaris). Values as in `jobResources`.",
    )
    placements: tuple[Literal["free", "pack", "scatter", "vscatter", "shared", "excl", "exclhost", "group"], ...] = (
        Field(
            ("free", "pack", "scatter", "vscatter", "shared", "group"),
            description="What pods may write into the annotation `hpc-bridge.io/place`. Left out: nothing exclusive, "
            "since a pod of one CPU would take whole hosts, and quotas of Kubernetes would count one CPU.",
        )
    )
    longest_walltime: Duration | None = Field(
        None,
        alias="longestWalltime",
        description="The longest time that a pod may ask for, with its grace period; one that asks for more is "
        "refused. Left out: what PBS allows.",
    )
    allow_project_annotation: bool = Field(
        False, alias="allowProjectAnnotation", description="Pods may choose -P and -A by annotation."
    )
    walltime: Duration = Field(
        3600, description="Walltime of pods that give neither activeDeadlineSeconds nor the annotation."
    )
    walltime_margin: Duration = Field(
        60,
        alias="walltimeMargin",
        description="Added to the asked walltime and grace period, for starting and for the last status.",
    )
    memory: Bytes = Field(
        1 << 30,
        description="Memory of containers that give neither request nor limit, in bytes or as `512Mi`, `2Gi`. "
        "At least 1Mi. PBS may kill a job that uses more than it asked for.",
    )
    resources: dict[str, str] = Field(
        default_factory=dict,
        description="Extended resource to PBS chunk resource, for example `nvidia.com/gpu: ngpus`.",
    )
    images: tuple[ImageRule, ...] = Field(
        (), description="Which images run, and how. An image that no rule matches is refused."
    )
    image_paths: tuple[Annotated[str, Field(pattern=ABSOLUTE)], ...] = Field(
        (),
        alias="imagePaths",
        description="Directories whose SIF files and image directories pods may name by path as their image "
        "(`image: /apps/images/x.sif`); they run with the runtime `apptainer`. Rules in `images` come first.",
    )
    isolation: Literal["required", "optional"] = Field(
        "required",
        description="What happens where bubblewrap does not work on a compute node. `required`: pods of the runtime "
        "`host` fail there with `PBSStartFailed`, which says why. `optional`: their commands run on the node as they "
        "are, with all that the account sees, and pods that mount volumes fail. A probe that takes too long, or finds "
        "no room for a process, is tried again and then fails the pod in both cases.",
    )
    host_paths: tuple[HostPath, ...] = Field(
        (), alias="hostPaths", description="Directories that pods may mount with hostPath."
    )
    api_server: ApiServer | None = Field(
        None,
        alias="apiServer",
        description="The API server as compute nodes reach it. Pods then get KUBERNETES_SERVICE_HOST and "
        "KUBERNETES_SERVICE_PORT, which client libraries look for. Left out: neither, because cluster IPs lead "
        "nowhere from a compute node.",
    )
    host_shapes: tuple[HostShape, ...] = Field(
        (),
        alias="hostShapes",
        description="Hosts that appear when jobs wait for them (cloud, power saving). The node offers at least these, "
        "and a job that fits on one is not refused as too large. Left out: what PBS shows is all there is.",
    )
    pod_networks: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(
        (),
        alias="podNetworks",
        description="Networks of compute nodes, as CIDRs (`10.20.0.0/16`), whose addresses can be dialled from "
        "Kubernetes. A pod gets `status.podIP` only when its compute node's address is in one of them. Empty: no pod "
        "does, so that no Service sends requests where nobody answers, or somebody else does.",
    )
    overcommit: float = Field(
        1.0,
        ge=1,
        le=100,
        description="The node's allocatable is this many times the cluster's usable resources, which are its capacity. "
        "1: what does not fit besides the pods there waits in Kubernetes. More: that much backlog waits in PBS, ages "
        "there and starts sooner; but kube-scheduler does not know running pods from waiting ones, and may preempt "
        "either (see limits).",
    )
    labels: Annotated[dict[str, str], AfterValidator(node_labels)] = Field(
        default_factory=dict,
        description="Labels of the node besides the bridge's own, for example `topology.kubernetes.io/zone`. There is "
        "no zone by default: a zone that only one node is in keeps other people's pods Pending that spread over zones. "
        "Of names below `kubernetes.io` and `k8s.io`, a node may carry a few only.",
    )
    provider_id: str | None = Field(
        None,
        alias="providerID",
        pattern=r"^(\S+://\S+)?$",
        max_length=253,
        description="The node's `spec.providerID`. Left out: `hpc-bridge://INSTANCE/NAME`, by which a cloud provider's "
        "controller sees that the node is none of its machines, and does not remove it while the agent is away. "
        "Empty: none. It is written once: Kubernetes does not let it change.",
    )
    pods: int = Field(500, ge=1, le=20000, description="Most pods on the node; bounded by the queue's max_queued too.")
    poll: Duration = Field(
        30, description="Pause between two polls of PBS. Pod directories are watched twice a second besides."
    )
    census: Duration = Field(60, description="Pause between two looks at queues and nodes.")
    lost_after: Duration = Field(
        60,
        alias="lostAfter",
        description="A job that PBS does not know is asked for twice this far apart before it counts as lost.",
    )
    unsatisfiable_after: Duration = Field(
        600,
        alias="unsatisfiableAfter",
        description="How long a pod that asks for more than any host has waits for a larger one, before it fails.",
    )
    site_fault_limit: Duration = Field(
        3600,
        alias="siteFaultLimit",
        description="How long a pod waits while a program of the site, such as a hook of PBS, fails on its submission, "
        "before the pod fails. Counted anew when the agent restarts.",
    )
    held_limit: Duration = Field(
        86400,
        alias="heldLimit",
        description="How long a job may be held in PBS before its pod fails. Counted anew when the agent restarts.",
    )
    connections_per_minute: int = Field(
        150,
        ge=6,
        le=900,
        alias="connectionsPerMinute",
        description="Budget of PBS connections a minute and login host. Each takes a reserved port for a minute, of "
        "about 1,000 that all users share.",
    )
    keep_directories: Duration = Field(
        600, alias="keepDirectories", description="How long a deleted pod's directory stays on the cluster."
    )

    numa: Numa = Field(
        default_factory=lambda: Numa.model_validate({}),
        description="NUMA: which domains hosts have, and what it costs a job to be spread over several.",
    )

    @property
    def node_name(self) -> str:
        """Name of the Node object."""
        return self.node or f"pbs-{self.name}"

    @model_validator(mode="after")
    def _apart(self) -> Cluster:
        shown = [(f"hostPaths[{n}].path", each.path) for n, each in enumerate(self.host_paths)]
        shown += [(f"imagePaths[{n}]", path) for n, path in enumerate(self.image_paths)]
        users = [a.transport.user for a in self.accounts if isinstance(a.transport, SshTransport)]
        for problem in places.problems(self.spool, self.compute_spool, shown, users):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _known_to_qsub(self) -> Cluster:
        queues = [("queue", self.queue), *((f"queues[{n}]", name) for n, name in enumerate(self.queues))]
        fixed, wide = self.chunk_resources, self.job_resources
        for problem in qsub.problems(queues, self.projects, self.accounting, self.groups, self.resources, fixed, wide):
            raise ValueError(problem)
        return self


class Kubelet(_Strict):
    """The HTTPS server that kube-apiserver calls for logs."""

    address: str = Field("127.0.0.1", description="Address the API server dials: the node's InternalIP.")
    bind: str | None = Field(None, description="Address to listen on. Left out: the same as `address`.")
    cert_file: str | None = Field(
        None,
        alias="certFile",
        description="Serving certificate (PEM). Left out: self-signed, for API servers that do not verify it.",
    )
    key_file: str | None = Field(None, alias="keyFile", description="Its private key.")
    client_ca_file: str | None = Field(
        None,
        alias="clientCAFile",
        description="CA of client certificates. Left out: the cluster's, from ConfigMap "
        "kube-system/extension-apiserver-authentication.",
    )


class Agent(_Strict):
    """The agent process itself."""

    namespace: str = Field("hpc-bridge", description="Namespace of the agent's Lease.")
    lease: str = Field("hpc-bridge", description="Name of the leader's Lease.")
    lease_duration: Duration = Field(
        15, alias="leaseDuration", description="A leader that has not renewed for this long is replaced."
    )
    status_listen: str = Field(
        "127.0.0.1:10280",
        alias="statusListen",
        pattern=ADDRESS,
        description="Address of the endpoint for `status`, `explain`, `clusters` and metrics: a loopback address, for "
        "it asks nobody who calls.",
    )
    probe_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        alias="probePort",
        description="Port for a kubelet's probes: `/healthz` and `/readyz` alone, at `kubelet.bind`. Left out: none; "
        "the Deployment gives 10281 with `--probe-port`.",
    )
    sweep: Duration = Field(
        120, description="Pause between two looks for jobs whose pod is gone; cancelled when seen twice."
    )

    @field_validator("status_listen")
    @classmethod
    def _loopback(cls, value: str) -> str:
        host = value.rpartition(":")[0]
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError(
                f"{value!r} can be reached from other machines, and asks nobody who calls; give 127.0.0.1:PORT, "
                "and probePort (--probe-port) for a kubelet's probes"
            )
        return value


class Routing(_Strict):
    """Deciding where gated pods go; see RoutingRule."""

    enabled: bool = Field(
        True,
        description="Whether this agent routes. Its ServiceAccount then needs the rights in deploy/routing; while they "
        "are missing nothing is routed and no job without a pod is looked for, and the log, `hpc-bridge status` and "
        "`doctor` say so. `false`: the agent needs no right over anything but its own virtual nodes and the pods bound "
        "to them. A node whose cluster cannot be reached then shows it as condition, without a taint: no node may "
        "change its own. Before you rename a node then, wait until its pods have ended: nobody else tells of them.",
    )


class Settings(_Strict):
    """bridge.yaml."""

    agent: Agent = Field(default_factory=lambda: Agent.model_validate({}), description="The agent process.")
    kubelet: Kubelet = Field(default_factory=lambda: Kubelet.model_validate({}), description="The kubelet API.")
    routing: Routing = Field(default_factory=lambda: Routing.model_validate({}), description="Routing of gated pods.")
    clusters: tuple[Cluster, ...] = Field(min_length=1, description="The clusters, one virtual node each.")

    @model_validator(mode="after")
    def _distinct(self) -> Settings:
        columns: tuple[tuple[str, list[str]], ...] = (
            ("name", [c.name for c in self.clusters]),
            ("node", [c.node_name for c in self.clusters]),
            ("kubeletPort", [str(c.kubelet_port or f"free port of {c.name}") for c in self.clusters]),
        )
        for key, values in columns:
            for index, value in enumerate(values):
                if value in values[:index]:
                    other = f"clusters[{values.index(value)}]"
                    raise ValueError(f"clusters[{index}].{key}: {value!r} is that of {other} too; give each its own")
        return self
