"""Runtime `apptainer`: a container from a SIF file or an image directory, by apptainer or singularity.

It sees its image, a private /tmp and /dev, and its volumes at their paths; nothing of the host's that the site's
configuration binds, not $HOME, not the pod directory. The pod's command is executed as it is; without one the image's
runscript (made of ENTRYPOINT and CMD) gets the pod's arguments. The root is writable in memory (apptainer's
--writable-tmpfs, 64 MiB by default) unless the pod wants it read-only. Environment: podrun_shellenv.

Processes: podrun → apptainer (parent) → init of the PID namespace → the container's command; beside init FUSE programs
may serve the image. All of them stay in podrun's session. A SIGTERM that somebody sends to the whole session (qdel by
another user, preemption) ends those FUSE programs too and the container with them, at once; podrun's own never does.
"""

import csv
import io
import os
import shutil
import signal
import subprocess
import time
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from . import podrun_process as processes
from . import podrun_shellenv as shellenv
from .podrun_gate import Gate
from .podrun_process import Exit, Launch, Process, exit_of, mirrored
from .podrun_runtime import Places, Runtime, StartFailed
from .podrun_sif import working_directory
from .podrun_spec import Container
from .podrun_verify import Verifier
from .podrun_volumes import binds, close, message_path

PROGRAMS = ("apptainer", "singularity")
FAILED = 255  # apptainer's own status when it cannot run the command
_FATAL = b"FATAL:"
_GPU_FLAGS = {"nvidia": "--nv", "amd": "--rocm"}
PATIENCE = 5.0


class Apptainer(Runtime):
    """`program` with the flags that it knows; `path`: PATH for its own helpers."""

    name = "apptainer"
    wall = "apptainer"

    def __init__(self, program: str, flags: FrozenSet[str], path: bytes) -> None:
        self._program, self._flags, self._path = program, flags, path

    def check(self, containers: Sequence[Container]) -> None:
        for container in containers:
            if not container.image_path or not os.path.exists(container.image_path):
                text = "image %s of container %s does not exist on %s, or the account may not see it"
                raise StartFailed(text % (container.image_path, container.name, os.uname()[1]))
            name = shellenv.impossible(name for name, _ in container.env)
            if name is not None:
                text = "variable %s of container %s cannot be given to an apptainer container"
                raise StartFailed(text % (name.decode("utf-8", "replace"), container.name))
            if container.image_command and "--no-eval" not in self._flags:
                self._check_evaluated(container)

    def _check_evaluated(self, container: Container) -> None:
        """Without --no-eval the image's runscript gives the pod's arguments to a shell."""
        if any(set(word) & set(b'$`"\\') for word in container.argv):
            text = 'an argument of container %s has $, `, " or \\, which this %s would evaluate; give a command too'
            raise StartFailed(text % (container.name, os.path.basename(self._program)))

    def base(self, places: Places) -> Dict[bytes, bytes]:
        return {b"HOME": b"/tmp"}

    def site(self, setup: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
        """What `module load` says of the host's programs and libraries is wrong inside an image."""
        return {k: v for k, v in setup.items() if not k.endswith(b"PATH") and not k.startswith((b"LD_", b"APPTAINER"))}

    def command(self, container: Container, places: Places, env: Dict[bytes, bytes]) -> Launch:
        message = message_path(container, places)
        in_dev = message if os.path.dirname(message) == "/dev" else None
        script, gate = os.path.join(places.scratch, "start.sh"), os.path.join(places.scratch, "gate")
        with open(script, "wb") as file:
            file.write(shellenv.script(env, in_dev))
        os.mkfifo(gate, 0o600)
        options = self._options(container, places)
        found = binds(container, places, "" if in_dev else message)
        verifier = None
        try:
            for bind in found:
                options += self._bind(bind.pin.path, bind.pin.target, bind.read_only)
            unsure = [bind.pin for bind in found if bind.nested or bind.pin.exposed]
            if unsure:
                verifier = Verifier([(pin.descriptor, pin.target) for pin in unsure])
        finally:
            close(found)
        options += self._bind(script, shellenv.SCRIPT, True) + self._bind(gate, shellenv.GATE, False)
        action = "run" if container.image_command else "exec"
        argv = [self._program, "--silent", action] + options + [str(container.image_path)]
        own = {b"PATH": self._path, b"HOME": os.environb.get(b"HOME", b"/"), b"TMPDIR": os.fsencode(places.scratch)}
        words = tuple(os.fsencode(word) for word in argv) + container.argv
        return Launch(words, own, "/", scratch=places.scratch, message=in_dev, verifier=verifier)

    def process(self, popen: "subprocess.Popen[bytes]", launch: Launch) -> Process:
        return ApptainerProcess(popen, launch.scratch, launch.message, launch.verifier)

    def judged(self, result: Exit, output: bytes) -> Exit:
        """A command that apptainer could not run has not been started."""
        last = output.rstrip().rpartition(b"\n")[2]
        return Exit(128, None, started=False) if result.code == FAILED and last.startswith(_FATAL) else result

    def failure(self, container: Container, output: bytes) -> str:
        last = output.rstrip().rpartition(b"\n")[2]
        text = last[len(_FATAL) :].decode("utf-8", "replace").strip()
        if "overlay" in text and not container.read_only_root:
            text += " (a writable root needs overlays; set securityContext.readOnlyRootFilesystem: true)"
        return text

    def _options(self, container: Container, places: Places) -> List[str]:
        cwd = container.cwd or working_directory(str(container.image_path)) or "/"
        options = ["--containall", "--no-home", "--cleanenv", "--pwd", cwd]
        unwanted = "bind-paths,hostfs,cwd"
        if container.read_only_root:
            unwanted += ",tmp"
        else:
            work = os.path.join(places.scratch, "work")
            os.makedirs(work, mode=0o700, exist_ok=True)
            options += ["--workdir", work, "--writable-tmpfs"]
        if "--no-eval" in self._flags:
            options.append("--no-eval")
        if "--no-mount" in self._flags:
            options += ["--no-mount", unwanted]
        if container.gpus in _GPU_FLAGS:
            options.append(_GPU_FLAGS[container.gpus])
        return options

    def _bind(self, source: str, path: str, read_only: bool) -> List[str]:
        if any(ord(letter) < 32 for letter in source + path):
            raise StartFailed("%r or %r cannot be given to apptainer: it has a control character" % (source, path))
        if "--mount" in self._flags:
            fields = ["type=bind", "source=" + source, "destination=" + path] + (["ro"] if read_only else [])
            line = io.StringIO()
            csv.writer(line, lineterminator="").writerow(fields)
            return ["--mount", line.getvalue()]
        if set(source + path) & set(":,\\"):
            raise StartFailed("this singularity cannot mount %s at %s: a path has : or , or \\" % (source, path))
        return ["--bind", "%s:%s%s" % (source, path, ":ro" if read_only else "")]


class ApptainerProcess(Process):
    """The container is over when apptainer's parent process is: it waits for init and unmounts the image."""

    def __init__(
        self,
        popen: "subprocess.Popen[bytes]",
        scratch: str,
        message: Optional[str],
        verifier: Optional[Verifier] = None,
    ) -> None:
        super().__init__(popen)
        self._scratch = scratch
        self._gate = Gate(os.path.join(scratch, "gate"), popen.pid, message, verifier)
        self._main: Optional[int] = None
        self._terminating: Optional[float] = None
        self._killing: Optional[float] = None

    @property
    def pid(self) -> int:
        return self._main or self._popen.pid

    def reaped(self, pid: int, status: int) -> None:
        if pid != self._popen.pid:
            return
        self._popen.returncode = status
        if self._gate.init is not None:
            processes.send(self._gate.init, signal.SIGKILL)  # alive only if the parent was killed
        processes.send_group(pid, signal.SIGKILL)
        if os.WIFSIGNALED(status):
            self._end_helpers()
        message = self._gate.close()
        if message:
            with open(os.path.join(self._scratch, "termination-log"), "wb") as file:
                file.write(message)
        self._exit = mirrored(os.WEXITSTATUS(status)) if os.WIFEXITED(status) else exit_of(status)
        if self._gate.wrong:
            self.problem, self._exit = self._gate.wrong, Exit(128, None, started=False)

    def _end_helpers(self) -> None:
        """FUSE programs whose mount is gone; nobody else ends them."""
        ours = os.getsid(0)
        for entry in processes.processes():
            if entry.pid in self._gate.helpers and entry.session == ours:
                processes.send(entry.pid, signal.SIGKILL)

    def poll(self) -> Optional[Exit]:
        if self._exit is None:
            if self._gate.wrong:
                self.kill()
            if self._main is None and self._gate.init is not None:
                self._main = processes.first_child(self._gate.init)
            if self._terminating is not None and (self._main or time.monotonic() - self._terminating > PATIENCE):
                processes.send(self._main or self._popen.pid, signal.SIGTERM)
                self._terminating = None
        return self._exit

    def terminate(self) -> None:
        """SIGTERM to the command, as soon as it runs; to apptainer, which passes it on, where it cannot be found."""
        self._terminating = time.monotonic()
        self.poll()

    def kill(self) -> None:
        """End init and with it all of the container; apptainer then unmounts the image. By force if it does not."""
        if self._exit is not None:
            return
        now = time.monotonic()
        self._killing = self._killing or now
        if self._gate.init is not None:
            processes.send(self._gate.init, signal.SIGKILL)
        if self._gate.init is None or now - self._killing > PATIENCE:
            processes.send_group(self._popen.pid, signal.SIGKILL)


def find(path: bytes) -> Tuple[Optional[Apptainer], str]:
    """apptainer, else singularity, on `path`; or None and why not. HPC_BRIDGE_APPTAINER names another program."""
    search = os.fsdecode(path)
    names = (os.environ.get("HPC_BRIDGE_APPTAINER"),) + PROGRAMS
    program = next((found for name in names if name for found in [shutil.which(name, path=search)] if found), None)
    if program is None:
        return None, "neither apptainer nor singularity is on PATH (%s); the cluster's setup lines may add it" % search
    try:
        code, output = _help(program, path)
    except OSError as error:
        return None, str(error)
    words = output.decode("utf-8", "replace").split()
    if code != 0 or "--containall" not in " ".join(words):
        return None, "%s exec --help ended with %d" % (program, code)
    return Apptainer(program, frozenset(word.strip("[],") for word in words), path), ""


def _help(program: str, path: bytes) -> Tuple[int, bytes]:
    """What it says of `exec`; tried twice, since a file system that was slow once says nothing about apptainer."""
    env = {b"PATH": path, b"HOME": os.environb.get(b"HOME", b"/")}
    try:
        return processes.ask([program, "exec", "--help"], env, 30.0)
    except TimeoutError:
        return processes.ask([program, "exec", "--help"], env, 60.0)
