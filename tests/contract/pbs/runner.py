"""How the contract tests reach a PBS: the embedded one on this machine, or a real one by ssh."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pbs_adapter.minipbs import Config, Host, Queue, Server, install

GIB = 1 << 30
RECORDINGS = Path(__file__).parent / "recordings"
PASSWD = threading.Lock()
"""useradd and userdel fail when another one is at work."""
NO_NEW_PORTS = ("-o", "BatchMode=yes", "-o", "ControlMaster=auto", "-o", "ControlPersist=60")


@dataclass(frozen=True)
class Result:
    """What a command did."""

    exit_status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")


class Runner(Protocol):
    """A PBS with accounts; `user` is alice (ordinary), pbsuser (another one) or root (who manages the server)."""

    dialect: str
    real: bool
    alice: str  # her name on that machine

    def run(self, command: str, user: str = "alice") -> Result:
        """Run a shell command in the user's home."""
        ...


@dataclass
class Account:
    """An ordinary user of this machine that commands and jobs run as; without root that is oneself."""

    name: str
    uid: int
    gid: int
    home: Path
    demote: bool
    env: Mapping[str, str] = field(default_factory=dict)

    def call(self, command: str, extra_env: Mapping[str, str], timeout: float = 60) -> Result:
        """bash -c, in the home directory, with a small environment like that of the recordings."""
        env = {
            "HOME": str(self.home), "LANG": "C.UTF-8", "LOGNAME": self.name, "USER": self.name, **self.env, **extra_env,
        }  # fmt: skip
        as_user = {"user": self.uid, "group": self.gid, "extra_groups": []} if self.demote else {}
        done = subprocess.run(
            ["/bin/bash", "-c", "cd ~ && " + command], capture_output=True, env=env, cwd="/", timeout=timeout, **as_user
        )  # type: ignore[call-overload]
        return Result(done.returncode, done.stdout, done.stderr)


@contextmanager
def account(suffix: str = "") -> Iterator[Account]:
    """A throw-away user when root, else oneself with another home directory for the commands."""
    if os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid())
        with tempfile.TemporaryDirectory(prefix="minipbs-home-") as directory:
            yield Account(me.pw_name, me.pw_uid, me.pw_gid, Path(directory), demote=False)
        return
    name = f"mpbs{os.getpid()}{suffix}"
    with tempfile.TemporaryDirectory(prefix="minipbs-home-") as directory:
        home = Path(directory)
        with PASSWD:
            subprocess.run(
                ["useradd", "--no-create-home", "--home-dir", home, "--shell", "/bin/bash", name], check=True
            )
        try:
            entry = pwd.getpwnam(name)
            os.chown(home, entry.pw_uid, entry.pw_gid)
            yield Account(name, entry.pw_uid, entry.pw_gid, home, demote=True)
        finally:
            with PASSWD:  # by force: the user's background qsub may still be there
                subprocess.run(["userdel", "--force", name], check=True, capture_output=True)


def recorded_site(dialect: str) -> Config:
    """The site that the recordings were made on: one host of two NUMA domains, four queues."""
    return Config(
        server="pbs-x",
        dialect=dialect,
        hosts=(Host("pbs-x", 64, 256 * GIB, numa=2),),
        queues=(
            Queue("workq"),
            Queue("gpu", resources_max={"walltime": "01:00:00"}, max_queued="[u:PBS_GENERIC=3]"),
            Queue("closed", enabled=False, started=False),
            Queue("longq", started=False),
        ),
        resources_default={"walltime": "01:00:00"},
        start_delay=0.5,
        users=("pbsuser",),
    )


class MiniRunner:
    """An embedded PBS with its own throw-away user."""

    real = False

    def __init__(self, server: Server, who: Account, dialect: str) -> None:
        self.server = server
        self.who = who
        self.dialect = dialect
        self.alice = who.name
        self.prefix = server.prefix

    def run(self, command: str, user: str = "alice") -> Result:
        env = {"PATH": f"{self.prefix}/bin:{self.prefix}/sbin:/usr/bin:/bin"}
        if user == "alice":
            return self.who.call(command, env)
        if user != "root":
            env["MINIPBS_USER"] = user  # an account that only PBS knows; the server's owner may act as one
        me = pwd.getpwuid(os.geteuid())
        return Account(me.pw_name, me.pw_uid, me.pw_gid, self.who.home, demote=False).call(command, env)


@contextmanager
def minipbs(config: Config, suffix: str = "") -> Iterator[MiniRunner]:
    """Install, start, and leave nothing behind; `suffix` tells the users of several at once apart."""
    with ExitStack() as stack:
        who = stack.enter_context(account(suffix))
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minipbs-")))
        base.chmod(0o755)
        install(base / "pbs", config)
        server = stack.enter_context(Server(base / "pbs"))
        yield MiniRunner(server, who, config.dialect)


class SshRunner:
    """A real OpenPBS at HPC_BRIDGE_PBS_SSH=user@host:port; with root there, commands run as that host's own users.

    HPC_BRIDGE_PBS_USERS names them ("alice,pbsuser" by default). The site is set up as record_pbs.py does it.
    """

    real = True

    def __init__(self, target: str, users: str) -> None:
        where, _, port = target.rpartition(":")
        self.target = ["ssh", *NO_NEW_PORTS, "-o", "ControlPath=~/.ssh/cm-%C", "-p", port, where]
        self.root = where.startswith("root@")
        self.users = dict(zip(("alice", "pbsuser"), users.split(","), strict=False))
        self.alice = self.users["alice"]
        shown = self.run("qstat -B -f -F json")
        self.dialect = "main" if b'\n\t"' in shown.stdout else "release"

    def run(self, command: str, user: str = "alice") -> Result:
        path = "PATH=/opt/pbs/bin:/opt/pbs/sbin:/usr/bin:/bin"
        name = self.users.get(user, user)
        inner = f"cd ~ && {command}"
        if self.root:
            env = f"env -i HOME=$(eval echo ~{name}) LANG=C.UTF-8 LOGNAME={name} USER={name} {path}"
            words = f"cd / && {env} setpriv --reuid {name} --regid $(id -g {name}) --init-groups "
        else:
            words = f"cd / && env {path} "
        done = subprocess.run(
            [*self.target, f"{words}/bin/bash -c {shlex.quote(inner)}"], capture_output=True, timeout=120
        )
        return Result(done.returncode, done.stdout, done.stderr)
