"""A PBS cluster on loopback: an embedded PBS, the login node's sshd in front of it, and the user whose jobs it runs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from bridge.testbed import sshd
from bridge.testbed.accounts import Account
from bridge.testbed.build import Progress, quiet
from bridge.testbed.errors import TestbedError
from bridge.testbed.guard import descendants
from bridge.testbed.processes import processes_of
from pbs_adapter.minipbs import Config, Host, Server, install

GIB = 1 << 30
OTHER = "carol"
"""Who owns the jobs that keep a cluster busy, where we cannot create users."""

ALPHA = Config(server="alpha", hosts=tuple(Host(f"alpha-n{number}", 16, 64 * GIB, numa=2) for number in (1, 2)))
"""Two hosts of 16 cores and 64 GiB, two NUMA domains each."""

BETA = Config(server="beta", hosts=(Host("beta-n1", 8, 32 * GIB),))
"""One host of 8 cores and 32 GiB; `keep_busy` fills it."""


class PbsTestCluster:
    """A context manager. The cluster is called as its PBS server is.

    pbs_exec: where PBS is installed (its bin has qsub). spool: a directory for pod directories. sshd: the login node's
    server, or None where OpenSSH cannot be had; `transport` says how to get in either way. server: the embedded PBS,
    with its faults. account: the user whose jobs run.
    """

    def __init__(
        self,
        config: Config,
        *,
        workdir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        host: str = sshd.HOST,
        progress: Progress = quiet,
    ) -> None:
        """workdir: an existing folder that other users may enter; a temporary one, removed at the end, if None.

        environment: what sessions on the login node have in theirs. host: the address of its sshd.
        """
        self.name = config.server
        self._own = workdir is None
        self.workdir = workdir or Path(tempfile.mkdtemp(prefix=f"hpc-bridge-{self.name}-"))
        if self._own:
            self.workdir.chmod(0o711)  # jobs and logins run as another user when we are root
        self.pbs_exec = self.workdir / "pbs"
        self.server = Server(self.pbs_exec)
        self.sshd: sshd.Sshd | None = None
        self._config = replace(config, python=_system_python(), users=(*config.users, OTHER))
        self._environment = environment
        self._host = host
        self._progress = progress
        self._accounts: list[Account] = []

    def __enter__(self) -> PbsTestCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Create the user, start PBS and sshd. Nothing is left running when it fails."""
        try:
            with_sshd = sshd.available(self._progress)
            self._progress(f"starting the PBS cluster {self.name}")
            self._accounts.append(Account(self.name, self.workdir / "home", self.workdir / "account.log"))
            install(self.pbs_exec, self._config)
            self.server.start()
            if with_sshd:
                folder = self.workdir / "sshd"
                folder.mkdir(mode=0o700)
                shared = self.workdir / "shared"  # in the place of /dev/shm, where helpers note what they took of PBS
                shared.mkdir()
                shared.chmod(0o1777)
                environment = {"HPC_BRIDGE_TEST_SHARED": str(shared), **(self._environment or {})}
                self.sshd = sshd.Sshd(self.account, folder, environment, self._host)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the jobs, PBS, sshd and the users' processes; remove the users, and the folder if it is ours."""
        self.server.stop(kill_jobs=True)
        if self.sshd is not None:
            self.sshd.stop()
        while self._accounts:
            self._accounts.pop().close()
        if self._own:
            shutil.rmtree(self.workdir, ignore_errors=True)

    @property
    def account(self) -> Account:
        """The user whose jobs run."""
        if not self._accounts:
            raise TestbedError(f"the cluster {self.name} is not running")
        return self._accounts[0]

    @property
    def spool(self) -> Path:
        """Where the bridge may keep pod directories: never in the invoking user's real home."""
        return self.account.home / ".hpc-bridge" if self.account.temporary else self.workdir / "spool"

    @property
    def pids(self) -> list[int]:
        """The servers and what runs below them, and the throw-away users' processes."""
        found = {self.server.pid, *descendants(self.server.pid)}
        found.update(self.sshd.pids if self.sshd is not None else ())
        for account in self._accounts:
            found.update(processes_of(account.uid) if account.temporary else ())
        return sorted(found)

    @property
    def transport(self) -> dict[str, Any]:
        """How to reach the login node, as `accounts[].transport` of bridge.yaml.

        Without sshd: `local`, or as root, where jobs would be root's, a command that becomes the cluster's user.
        """
        if self.sshd is not None:
            return {
                "type": "ssh",
                "host": self.sshd.host,
                "port": self.sshd.port,
                "user": self.sshd.user,
                "keyFile": str(self.sshd.key_file),
                "knownHostsFile": str(self.sshd.known_hosts),
            }
        if self.account.temporary:
            return {"type": "command", "argv": ["runuser", "--login", self.account.name, "--command"]}
        return {"type": "local"}

    def settings(self) -> dict[str, Any]:
        """What bridge.yaml must say of the cluster; one account serves all namespaces."""
        return {
            "name": self.name,
            "accounts": [{"transport": self.transport, "sharedTrust": True}],
            "spool": str(self.spool),
            "pbsExec": str(self.pbs_exec),
            "computePython": self._config.python,
            "isolation": "required" if shutil.which("bwrap") else "optional",
        }

    def run(self, *command: str, input: str = "", timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node: one string is a shell line, several are an argument list."""
        if self.sshd is not None:
            return self.sshd.run(*command, input=input, timeout=timeout)
        line = command[0] if len(command) == 1 else shlex.join(command)
        before = self.transport["argv"] if self.account.temporary else ["sh", "-c"]
        return subprocess.run(
            [*before, line], input=input, capture_output=True, text=True, check=False, timeout=timeout
        )

    def pbs(self, *command: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Run a PBS command, such as ("qstat", "-f"), on the login node."""
        return self.run(str(self.pbs_exec / "bin" / command[0]), *command[1:], input=input)

    def keep_busy(self, seconds: int = 15, jobs: int = 1) -> list[str]:
        """Fill every core with another user's jobs, `jobs` times `seconds` long; returns their ids.

        Whatever is submitted afterwards waits until they have ended.
        """
        other = self._other()
        cores, hosts = self._config.hosts[0].ncpus, len(self._config.hosts)
        wants = ["-l", f"select={hosts}:ncpus={cores}", "-l", "place=scatter", "-l", f"walltime={seconds + 60}"]
        argv = [str(self.pbs_exec / "bin" / "qsub"), "-N", "filler", *wants, "-j", "oe", "-o", "/dev/null"]
        ids = []
        for _ in range(jobs):
            done = subprocess.run(
                [*argv, "--", "/bin/sleep", str(seconds)],
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
                user=other.uid if other else None,
                group=other.gid if other else None,
                extra_groups=[] if other else None,
                env={"PATH": os.defpath, "LANG": "C.UTF-8", **({} if other else {"MINIPBS_USER": OTHER})},
            )
            if done.returncode:
                raise TestbedError(f"{self.name} took no job: {done.stderr.strip()}")
            ids.append(done.stdout.strip())
        return ids

    def _other(self) -> Account | None:
        """A second throw-away user, where we may have one."""
        if self.account.temporary and len(self._accounts) == 1:
            self._accounts.append(Account(f"{self.name}2", self.workdir / "home2", self.workdir / "account.log"))
        return self._accounts[1] if self.account.temporary else None


def _system_python() -> str:
    """A Python that every user can run: ours may lie in a home directory that they cannot enter."""
    return shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin") or sys.executable
