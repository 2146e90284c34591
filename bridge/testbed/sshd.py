"""A real OpenSSH server on loopback: the login node of a test cluster.

Public keys only, the host's key known beforehand, everything in one folder. What a login node has not by default is
not here either: MaxSessions and MaxStartups are OpenSSH's, PBS is not on PATH, nothing is forwarded.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.testbed.accounts import Account
from bridge.testbed.build import Progress, quiet
from bridge.testbed.certs import write_private
from bridge.testbed.errors import TestbedError
from bridge.testbed.packages import ensure_packages, find_program
from bridge.testbed.processes import Process, accepts, free_ports

HOST = "127.0.0.1"
PACKAGES = {"openssh-server": "sshd", "openssh-client": "ssh"}
RUN_DIRECTORY = Path("/run/sshd")
"""As root sshd wants this empty folder for its unprivileged half; without systemd nobody has made it."""


def available(progress: Progress = quiet) -> bool:
    """Whether sshd is here, or could be installed. Where it is not, use the `local` transport and say so."""
    return not ensure_packages(PACKAGES, progress)


class Sshd:
    """One server for one account; starts at once.

    host, port, user: where to log in. key_file (0600): the client's private key. known_hosts: the server's key.
    home: the account's home directory.
    """

    def __init__(
        self, account: Account, workdir: Path, environment: Mapping[str, str] | None = None, host: str = HOST
    ) -> None:
        """workdir: an existing folder for keys, configuration and log; only ours to read. environment: of sessions.

        host: the address to listen at.
        """
        self.host, self.user, self.home = host, account.name, account.home
        (self.port,) = free_ports(1, host)
        self.key_file = workdir / "client_key"
        self.known_hosts = workdir / "known_hosts"
        self._workdir = workdir
        self._environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"} | dict(environment or {})
        self._config = workdir / "sshd_config"
        self._write_keys(account)
        self._config.write_text(self._configuration(account))
        if account.temporary:
            RUN_DIRECTORY.mkdir(mode=0o755, exist_ok=True)
        self._process = self._start()

    def _write_keys(self, account: Account) -> None:
        host_public = new_key(self._workdir / "host_key")
        self.known_hosts.write_text(f"[{self.host}]:{self.port} {host_public}\n")
        client_public = new_key(self.key_file)
        folder = account.home / ".ssh" if account.temporary else self._workdir
        folder.mkdir(mode=0o700, exist_ok=True)
        self._authorized_keys = folder / "authorized_keys"
        self._authorized_keys.write_text(f"{client_public} testbed\n")
        self._authorized_keys.chmod(0o600)
        account.own(folder, self._authorized_keys)

    def _configuration(self, account: Account) -> str:
        # An ordinary user's authorized_keys lies in the test bed, not in the real home; the temporary folder above it
        # is writable by all, which StrictModes does not allow.
        strict = "yes" if account.temporary else "no"
        return f"""\
ListenAddress {self.host}
Port {self.port}
HostKey {self._workdir / "host_key"}
PidFile none
AuthorizedKeysFile {self._authorized_keys}
StrictModes {strict}
AllowUsers {account.name}
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitUserEnvironment no
AllowTcpForwarding no
X11Forwarding no
PrintMotd no
SetEnv {" ".join(f"{name}={value}" for name, value in self._environment.items())}
Subsystem sftp internal-sftp
"""

    def _start(self) -> Process:
        program = find_program("sshd")
        if program is None:
            raise TestbedError("sshd is missing (Debian: the package openssh-server)")
        argv = [program, "-D", "-e", "-f", str(self._config)]
        # Sessions inherit nothing of ours: a login node knows no virtual environment and no KUBECONFIG.
        env = {"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"}
        process = Process(f"sshd of {self.user}", argv, log=self._workdir / "sshd.log", env=env, grace=2)
        process.wait_until(lambda: accepts(self.port, self.host), "open port", timeout=20)
        return process

    @property
    def pids(self) -> list[int]:
        """The server, its sessions and what runs in them; empty when stopped."""
        return self._process.pids

    @property
    def log(self) -> Path:
        """What sshd says: logins, refusals."""
        return self._process.log

    def ssh_argv(self, *options: str) -> list[str]:
        """The OpenSSH client's command line up to the destination; a remote command may follow."""
        client = find_program("ssh")
        if client is None:
            raise TestbedError("ssh is missing (Debian: the package openssh-client)")
        settings = {
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "LogLevel": "ERROR",
        }
        pairs = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        where = ["-p", str(self.port), f"{self.user}@{self.host}"]
        return [client, "-F", os.devnull, "-i", str(self.key_file), *pairs, *options, *where]

    def run(self, *command: str, input: str = "", timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command there through the real client: one string is a shell line, several are an argument list."""
        line = command[0] if len(command) == 1 else shlex.join(command)
        argv = [*self.ssh_argv(), line]
        return subprocess.run(argv, input=input, capture_output=True, text=True, check=False, timeout=timeout)

    def restart(self) -> None:
        """Stop the server, its sessions with it, and start it on the same port: a login node that rebooted."""
        self.stop()
        self._process = self._start()

    def stop(self) -> None:
        """Stop the server and end every session."""
        self._process.stop()


def new_key(path: Path) -> str:
    """Write a new private key (0600) in OpenSSH's format; returns the public one as a line."""
    key = Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.OpenSSH
    write_private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()
