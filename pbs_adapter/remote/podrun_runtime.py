"""How a container becomes a process: the interface that every runtime implements, and the plainest runtime.

A runtime turns a container of pod.json into a `Launch` and wraps the started process. `environment` is common to all:
a container gets what pod.json says, on top of a small base (PATH if there is no image, HOME, HOSTNAME; TMPDIR where
there is no private /tmp), of the few things that PBS alone knows (`FROM_PBS`) and of what the cluster's `setup` lines
changed; nothing else of PBS's or the user's environment.
"""

import os
import subprocess
from typing import Dict, Mapping, NamedTuple, Sequence

from .podrun_process import MARK, Exit, Launch, Process
from .podrun_spec import DEFAULT_TOKEN_PATH, Container, Pod

PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The job's id, and what PBS and its hooks say about the cores and accelerators that are this job's.
FROM_PBS = (b"PBS_JOBID", b"NCPUS", b"OMP_NUM_THREADS", b"CUDA_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES")


class StartFailed(Exception):
    """A container cannot be started; the text is for the pod's author."""


class Places(NamedTuple):
    """Where a container's things are: the pod directory (shared), its own folder on the node's disk, and the pod's
    folder in the node's memory, if it has one."""

    directory: str
    scratch: str
    memory: str = ""

    @property
    def message(self) -> str:
        """The file that the container sees at its terminationMessagePath."""
        return os.path.join(self.scratch, "termination-log")

    @property
    def tmp(self) -> str:
        return os.path.join(self.scratch, "tmp")


class Runtime:
    """One way to run containers. Kept for the whole pod. `wall`: what stands between its containers and the account."""

    name = ""
    wall = "none"

    def check(self, containers: Sequence[Container]) -> None:
        """Raise `StartFailed` when one of its containers can never run so; asked once, before anything is started."""

    def base(self, places: Places) -> Dict[bytes, bytes]:
        """What the environment starts with: PATH, HOME, and where temporary files go if that is not /tmp."""
        return {b"PATH": PATH, b"HOME": b"/"}

    def site(self, setup: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """What of the changes by the cluster's `setup` lines a container gets."""
        return setup

    def command(self, container: Container, places: Places, env: Dict[bytes, bytes]) -> Launch:
        """How to start `container` now. May prepare files; raises `StartFailed`."""
        raise NotImplementedError

    def process(self, popen: "subprocess.Popen[bytes]", launch: Launch) -> Process:
        """Wrap the process that was started by `launch`."""
        return Process(popen)

    def judged(self, result: Exit, output: bytes) -> Exit:
        """`result` again, unless the end of the output tells that the command could not be run."""
        return result

    def failure(self, container: Container, output: bytes) -> str:
        """Message for a container whose command could not be run, from the end of its output."""
        return output.decode("utf-8", "replace").strip()


class DirectRuntime(Runtime):
    """Runtime `host` where bubblewrap is missing and the settings let it be: the command runs on the node as it is, so
    no volumes."""

    name = "host"

    def __init__(self, why: str) -> None:
        self._why = why

    def check(self, containers: Sequence[Container]) -> None:
        for container in containers:
            paths = [mount.path for mount in container.mounts if mount.path != DEFAULT_TOKEN_PATH]
            if paths:
                text = "container %s mounts %s, which needs bubblewrap on the compute node: %s"
                raise StartFailed(text % (container.name, ", ".join(paths), self._why))

    def base(self, places: Places) -> Dict[bytes, bytes]:
        os.makedirs(places.tmp, mode=0o700, exist_ok=True)
        tmp, uid = os.fsencode(places.tmp), os.fsencode(os.path.basename(places.directory))
        return {b"PATH": PATH, b"HOME": tmp, b"TMPDIR": tmp, MARK: uid}

    def command(self, container: Container, places: Places, env: Dict[bytes, bytes]) -> Launch:
        return Launch(container.argv, env, container.cwd or "/")


def environment(
    container: Container, pod: Pod, base: Mapping[bytes, bytes], setup: Mapping[bytes, bytes]
) -> Dict[bytes, bytes]:
    """The exact environment of `container`; `base` is what its runtime starts with, `setup` what the site adds."""
    env = {b"HOSTNAME": pod.hostname.encode("utf-8")}
    env.update((name, os.environb[name]) for name in FROM_PBS if name in os.environb)
    for layer in (base, setup, dict(container.env)):
        env.update(layer)
    return env
