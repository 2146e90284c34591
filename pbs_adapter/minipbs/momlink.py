"""The server's end of the line to the MoM: starts one when there is none, turns its events into calls."""

from __future__ import annotations

import grp
import json
import os
import pwd
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from .config import Config
from .jobs import Job

START_DEADLINE = 10.0


class MomLink:
    """Sends commands at once (buffered), hands events to `on_event` when `read` is called."""

    def __init__(self, prefix: str, config: Config, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.prefix = prefix
        self.config = config
        self.on_event = on_event
        self.socket: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._incoming = b""
        self._outgoing = bytearray()
        self._shells: dict[int, pwd.struct_passwd] = {}

    def connect(self) -> socket.socket:
        """Reach the MoM, starting it if need be. Raises OSError when it does not come up."""
        path = f"{self.prefix}/var/private/mom.sock"
        deadline = time.monotonic() + START_DEADLINE
        started = False
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(path)
                break
            except OSError:
                link.close()
                if time.monotonic() > deadline:
                    raise
            if not started:
                started = True
                with open(f"{self.prefix}/var/private/mom.log", "ab") as log:
                    self.process = subprocess.Popen(
                        [f"{self.prefix}/sbin/minipbs-mom"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                    )
            time.sleep(0.01)
        link.setblocking(False)
        self.socket = link
        return link

    def read(self) -> bool:
        """Handle what has come; False when the MoM is gone."""
        if self.socket is None:
            return False
        while True:
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                self.socket.close()
                self.socket = None
                return False
            *lines, self._incoming = (self._incoming + data).split(b"\n")
            for line in lines:
                self.on_event(json.loads(line))

    def flush(self) -> bool:
        """Send what is buffered; True when all of it has gone."""
        while self._outgoing and self.socket is not None:
            try:
                sent = self.socket.send(self._outgoing)
            except OSError:
                return False
            del self._outgoing[:sent]
        return True

    def send(self, do: str, **fields: Any) -> None:
        """One command."""
        self._outgoing += json.dumps({"do": do, **fields}).encode() + b"\n"

    # -- what Lifecycle asks for

    def start(self, job: Job) -> None:
        """Run a job as its owner."""
        self.send("start", **self._spec(job))

    def terminate(self, job: Job) -> None:
        """SIGTERM to the session now, SIGKILL after kill_delay."""
        self.send("terminate", job=job.id)

    def kill(self, job: Job) -> None:
        """SIGKILL to the session."""
        self.send("kill", job=job.id)

    def signal(self, job: Job, number: int) -> None:
        """A signal to every process of the session."""
        self.send("signal", job=job.id, number=int(number))

    def walltime(self, job: Job) -> None:
        """A running job's walltime was changed."""
        self.send("walltime", job=job.id, walltime=job.walltime)

    def _account(self, uid: int) -> pwd.struct_passwd:
        if uid not in self._shells:
            self._shells[uid] = pwd.getpwuid(uid)
        return self._shells[uid]

    def _spec(self, job: Job) -> dict[str, Any]:
        account = self._account(job.uid)
        attrs, var = job.attrs, f"{self.prefix}/var"
        shell = str(attrs.get("Shell_Path_List", "")).split(",")[0].partition("@")[0] or account.pw_shell or "/bin/sh"
        nodes = [host for host, cpus in exec_hosts(job) for _ in range(cpus)]
        umask = attrs.get("umask")
        paths = {name: str(attrs[f"{name}_Path"]).partition(":")[2] for name in ("Output", "Error")}
        seq = f"{job.seq}{f'.{job.index}' if job.index >= 0 else ''}"
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        chosen = str(attrs.get("group_list", "")).split(",")[0].partition("@")[0]
        return {
            "job": job.id,
            "uid": account.pw_uid,
            "gid": grp.getgrnam(chosen).gr_gid if chosen and _in_group(chosen, groups) else account.pw_gid,
            "groups": groups,
            "home": account.pw_dir,
            "shell": shell,
            "argv": job.argv,
            "script": job.script,
            "script_path": f"{var}/jobs/{job.id}.SC",
            "env": self._environment(job, account, shell, f"{var}/aux/{job.id}"),
            "nodefile": f"{var}/aux/{job.id}",
            "nodes": nodes,
            "tmpdir": f"{var}/tmp/pbs.{job.id}",
            "spool": f"{var}/spool",
            "out": paths["Output"],
            "err": paths["Error"],
            "default_names": {"o": f"{job.name}.o{seq}", "e": f"{job.name}.e{seq}"},
            "join": attrs["Join_Path"],
            "keep": attrs["Keep_Files"],
            "remove": attrs.get("Remove_Files", ""),
            "umask": int(str(umask), 8) if umask is not None else None,
            "walltime": job.walltime,
            "kill_delay": self.config.kill_delay,
            "start_delay": self.config.start_delay,
            "simulate": self.config.simulate,
        }

    def _environment(self, job: Job, account: pwd.struct_passwd, shell: str, nodefile: str) -> dict[str, str]:
        """What the MoM gives to a job; nothing of the server's own environment."""
        attrs = job.attrs
        cpus = str(sum(amounts.get("ncpus", 0) for _, amounts in job.pieces[0]))
        threads = next((part[11:] for part in select_parts(job) if part.startswith("ompthreads=")), cpus)
        env = dict(job.environ)
        env.update(
            HOME=account.pw_dir,
            LOGNAME=account.pw_name,
            USER=account.pw_name,
            SHELL=shell,
            PATH=env.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
            TMPDIR=f"{self.prefix}/var/tmp/pbs.{job.id}",
            NCPUS=threads,
            OMP_NUM_THREADS=threads,
            ENVIRONMENT="BATCH",
            PBS_ENVIRONMENT="PBS_BATCH",
            PBS_JOBID=job.id,
            PBS_JOBNAME=job.name,
            PBS_QUEUE=job.queue,
            PBS_NODEFILE=nodefile,
            PBS_NODENUM="0",
            PBS_TASKNUM="1",
            PBS_MOMPORT="15003",
            PBS_JOBCOOKIE=secrets.token_hex(16).upper(),
            PBS_JOBDIR=account.pw_dir,
        )
        if "Account_Name" in attrs:
            env["PBS_ACCOUNT"] = str(attrs["Account_Name"])
        if job.parent is not None:
            env.update(PBS_ARRAY_INDEX=str(job.index), PBS_ARRAY_ID=job.parent.id)
        return env


def exec_hosts(job: Job) -> list[tuple[str, int]]:
    """Host and number of MPI processes of each chunk."""
    return [(host, int(process)) for (host, _), process in zip(job.slots, _processes(job), strict=True)]


def _processes(job: Job) -> list[int]:
    counts: list[int] = []
    for part in str(job.attrs["Resource_List"]["select"]).split("+"):
        items = part.split(":")
        wanted = next((item[9:] for item in items if item.startswith("mpiprocs=")), "1")
        counts += [int(wanted)] * int(items[0])
    return counts


def select_parts(job: Job) -> list[str]:
    """The items of the first chunk."""
    return str(job.attrs["Resource_List"]["select"]).split("+")[0].split(":")


def _in_group(name: str, groups: list[int]) -> bool:
    try:
        return grp.getgrnam(name).gr_gid in groups
    except KeyError:
        return False
