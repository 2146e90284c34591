"""A PBS cluster in a container, seen from the host as any cluster is: by SSH, at a published port of loopback."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from testcontainers.core.container import DockerContainer

from bridge.testbed.docker import Engine
from bridge.testbed.processes import free_ports
from bridge.testbed.sshd import new_key

Json = dict[str, Any]
USER = "hpc"
HOME = f"/home/{USER}"
IMAGES = "/images"
# What apptainer needs inside a container, and nothing more: user namespaces, mounts, FUSE.
PRIVILEGES: Json = {
    "cap_add": ["SYS_ADMIN"],
    "devices": ["/dev/fuse"],
    "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
}
MEMORY = 3 << 29  # less than what the test of an out-of-memory kill touches
# A program of its own, an entry point, a command, a directory and variables: what an image's author decides.
ENTRYPOINT = ["/bin/sh", "-c", 'pwd; printf "<%s>" "$@"; echo; echo "$FROM_IMAGE"; echo "$PATH"', "entry"]
CMD = ["de fault", "$(id)"]


class ContainerCluster:
    """The running container. Has what `testbed.agent` and the end-to-end tests' `World` want of a cluster."""

    def __init__(self, engine: Engine, image: str, folder: Path) -> None:
        """Start it. folder: an existing one for keys."""
        self.name, self.image = "alpha", image
        self.spool = Path(HOME, ".hpc-bridge")
        self._engine = engine
        self.key_file, self.known_hosts = folder / "key", folder / "known_hosts"
        public = new_key(self.key_file)
        (self.port,) = free_ports(1)
        container = DockerContainer(image).with_env("AUTHORIZED_KEY", public)
        container.with_kwargs(hostname="cluster", mem_limit=MEMORY, memswap_limit=MEMORY, init=True, **PRIVILEGES)
        container.ports = {"22/tcp": ("127.0.0.1", self.port)}
        self._container = container.start()

    @property
    def id(self) -> str:
        """The container's id."""
        return str(self._container.get_wrapped_container().id)

    def stop(self) -> None:
        """Stop and remove it."""
        self._container.stop()

    def logs(self) -> str:
        """What its programs said."""
        return "".join(part.decode(errors="replace") for part in self._container.get_logs())

    def root(self, line: str, input: bytes | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell line as root in the container."""
        return self._engine.docker("exec", "-i", self.id, "sh", "-c", line, input=input, check=False)

    def learn_host_key(self) -> bool:
        """Write known_hosts from inside, not over the network; False while there is no key yet."""
        key = self.root("cat /etc/ssh/ssh_host_ed25519_key.pub")
        if key.returncode or not key.stdout.startswith("ssh-ed25519 "):
            return False
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {' '.join(key.stdout.split()[:2])}\n")
        return True

    def ready(self) -> bool:
        """Whether one can log in and PBS answers."""
        return self.learn_host_key() and self.pbs("qstat", "-Q", "workq").returncode == 0

    def run(self, *command: str, input: str = "", timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command as the user through SSH: one string is a shell line, several are an argument list."""
        line = command[0] if len(command) == 1 else shlex.join(command)
        options = {"BatchMode": "yes", "IdentitiesOnly": "yes", "UserKnownHostsFile": str(self.known_hosts)}
        pairs = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        argv = ["ssh", "-F", "none", "-i", str(self.key_file), *pairs, "-p", str(self.port), f"{USER}@127.0.0.1", line]
        return subprocess.run(argv, input=input, capture_output=True, text=True, check=False, timeout=timeout)

    def pbs(self, *command: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Run a PBS command as the user."""
        return self.run(f"/opt/pbs/bin/{command[0]}", *command[1:], input=input)

    def read(self, path: str) -> bytes:
        """The bytes of a file in the container."""
        done = self.run(f"od -An -v -tx1 {shlex.quote(path)}")
        if done.returncode:
            raise AssertionError(f"{path}: {done.stderr}")
        return bytes.fromhex(done.stdout)

    def has_apptainer(self) -> bool:
        """Whether the image holds apptainer."""
        return self.run("command -v apptainer").returncode == 0

    def settings(self) -> Json:
        """The cluster's entry in bridge.yaml."""
        transport = {"type": "ssh", "host": "127.0.0.1", "port": self.port, "user": USER}
        files = {"keyFile": str(self.key_file), "knownHostsFile": str(self.known_hosts)}
        return {
            "name": self.name,
            "accounts": [{"transport": transport | files, "sharedTrust": True}],
            "pbsExec": "/opt/pbs",
            "queue": "workq",
        }

    def make_images(self) -> None:
        """`tool.sif` and `tool` (a directory) from one Docker image, and `plain`, a directory without any metadata."""
        commands = "sh cat ls id sleep echo pwd env printf head dd kill true touch od mount ps test"
        script = f"""set -e
mkdir -p /tmp/tree/bin /tmp/tree/etc /tmp/tree/srv/app && cd /tmp/tree
mkdir -p proc sys dev tmp var/tmp root usr
cp "$(command -v busybox)" bin/busybox
for c in {commands}; do ln -sf busybox bin/$c; done
touch etc/hosts etc/resolv.conf; echo root:x:0:0::/root:/bin/sh > etc/passwd; echo root:x:0: > etc/group
mkdir -p {IMAGES} && cp -a /tmp/tree {IMAGES}/plain && chown -R {USER}: {IMAGES} && chmod -R a+rX {IMAGES}
"""
        checked(self.root(script))
        tree = subprocess.run(
            ["docker", "exec", self.id, "tar", "-C", "/tmp/tree", "-c", "."],
            capture_output=True,
            check=True,
            env=self._engine.env,
        ).stdout
        changes = [f"ENTRYPOINT {json.dumps(ENTRYPOINT)}", f"CMD {json.dumps(CMD)}", "WORKDIR /srv/app"]
        changes += ['ENV FROM_IMAGE="from the image"', "ENV PATH=/bin:/usr/local/tool/bin"]
        flags = [word for change in changes for word in ("-c", change)]
        self._engine.docker("import", *flags, "-", "hpc-bridge-test-tool", input=tree)
        archive = subprocess.run(
            ["docker", "save", "hpc-bridge-test-tool"], capture_output=True, check=True, env=self._engine.env
        ).stdout
        checked(self.root("cat > /tmp/tool.tar && chmod 644 /tmp/tool.tar", input=archive))
        for kind in ("tool.sif", "--sandbox tool"):
            words = kind.split()
            line = f"apptainer --silent build {' '.join(words[:-1])} {IMAGES}/{words[-1]} docker-archive:/tmp/tool.tar"
            checked(self.run(line, timeout=300))


def checked(done: subprocess.CompletedProcess[str]) -> str:
    """Its output; AssertionError when it failed."""
    if done.returncode:
        raise AssertionError(f"{done.args[-1]}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
